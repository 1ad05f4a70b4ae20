# SPDX-License-Identifier: MIT
"""`oscar publish` to a folder zoo, by one and by many processes: publish_test.py [PublishTest.test_…]"""
import hashlib
import json
import os
import re
import shutil
import unittest

from support import NAME, ZooTest, make_set, read_folder

PUBLISHERS, SETS_EACH = 8, int(os.environ.get("OSCAR_SETS_EACH", "6"))  # 100 take a minute


class PublishTest(ZooTest):
    def index(self):
        return json.loads((self.zoo / "index.json").read_text())

    def test_makes_a_zoo_and_says_where(self):
        files = make_set(self.folder / "set", 1)
        done = self.succeed("publish", "set", "--zoo", "zoo", "--name", f"{NAME}:int2")
        self.assertEqual(done.stdout, "")
        self.assertIn(f"{self.zoo}/test/tiny/int2", done.stderr)
        self.assertEqual(read_folder(self.zoo / NAME / "int2"), files)
        entry = self.index()["entries"][0]
        self.assertEqual(entry["total_size"], sum(map(len, files.values())))
        self.assertEqual(entry["summary"]["parts"]["rotations"]["bits"], {"key": 2, "value": 2})
        self.assertEqual(entry["summary"]["verification"]["attention"], {"softmax_kl": 0.01})
        self.assertNotIn("layers", entry["summary"]["verification"])
        self.assertRegex(entry["created"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")

    def test_a_tag_keeps_its_content_unless_forced(self):
        old, new = self.published(), make_set(self.folder / "new", 2)
        publish = ("publish", "new", "--zoo", self.zoo, "--name")
        self.fail_with(2, "another set under test/tiny:latest", *publish, NAME)
        self.assertEqual(read_folder(self.zoo / NAME / "latest"), old)
        self.succeed(*publish, f"{NAME}:second")
        self.succeed(*publish, NAME, "--force")
        self.assertEqual(read_folder(self.zoo / NAME / "latest"), new)
        self.assertEqual([entry["forced"] for entry in self.index()["entries"]], [False, False])  # replaced, but accepted
        (self.zoo / "index.json").unlink()
        self.fail_with(2, "files that its index does not name", "publish", "set-1", *publish[2:], NAME)
        self.assertEqual(read_folder(self.zoo / NAME / "latest"), new)
        self.succeed(*publish, NAME)

    def test_a_set_that_no_reader_may_have_needs_force_and_the_index_says_so(self):
        publish = ("publish", "set", "--zoo", self.zoo, "--name", NAME)
        for verdict, said in (("rejected", "rejected"), ("not_measured", "not_measured"), (None, "not verified")):
            make_set(self.folder / "set", 1, verdict)
            self.fail_with(1, ["for no reader", f"sglang {said}"], *publish)
            self.assertFalse((self.zoo / "test").exists())
            self.assertIn("published because of --force", self.succeed(*publish, "--force").stderr)
            self.assertIs(self.index()["entries"][0]["forced"], True)
            shutil.rmtree(self.zoo)

    def test_a_set_that_hides_how_much_it_was_fitted_on_needs_force(self):
        make_set(self.folder / "set", 1)
        path = self.folder / "set/manifest.json"
        path.write_text(re.sub(r'"tokens": ?\d+', '"tokens": 0', path.read_text(), count=1))
        publish = ("publish", "set", "--zoo", self.zoo, "--name", NAME)
        self.fail_with(1, "does not say how many tokens", *publish)
        self.succeed(*publish, "--force")
        self.assertIs(self.index()["entries"][0]["forced"], True)

    def test_one_accepted_reader_is_enough(self):
        make_set(self.folder / "set", 1, "rejected")
        publish = ("publish", "set", "--zoo", self.zoo, "--name", NAME)
        path = self.folder / "set/manifest.json"
        manifest = json.loads(path.read_text())
        manifest["verification"]["readers"]["llamacpp"]["verdict"] = "accepted"
        path.write_text(json.dumps(manifest))
        self.succeed(*publish)
        self.assertIs(self.index()["entries"][0]["forced"], False)

    def test_again_changes_nothing(self):
        self.published()
        before = read_folder(self.zoo)
        done = self.succeed("publish", self.folder / "set-1", "--name", NAME, "--json", env={"OSCAR_ZOO": str(self.zoo)})
        self.assertIs(json.loads(done.stdout)["changed"], False)
        self.assertEqual(read_folder(self.zoo), before)
        published = self.zoo / NAME / "latest"
        (published / "serve.env").write_bytes(bytes(len((published / "serve.env").read_bytes())))
        self.succeed("publish", self.folder / "set-1", "--name", NAME, "--zoo", self.zoo)  # repairs what is damaged there
        self.same(read_folder(published), read_folder(self.folder / "set-1"))

    def test_refuses_a_damaged_set_and_leaves_the_zoo_alone(self):
        make_set(self.folder / "set", 1)
        (self.folder / "set/serve.env").write_text("A=2\n")
        self.fail_with(1, ["it was written", "serve.env"], "publish", "set", "--zoo", self.zoo, "--name", NAME)
        self.assertFalse(self.zoo.exists())

    def test_a_broken_index_is_not_written_over(self):
        make_set(self.folder / "set", 1)
        self.zoo.mkdir()
        (self.zoo / "index.json").write_text("{")
        self.fail_with(1, "index.json", "publish", "set", "--zoo", self.zoo, "--name", NAME)
        self.assertEqual((self.zoo / "index.json").read_text(), "{")

    def test_an_index_that_no_pull_would_read_is_not_written(self):
        self.published()
        index = json.dumps({**self.index(), "motto": "x" * ((8 << 20) - 2000)})
        (self.zoo / "index.json").write_text(index)
        make_set(self.folder / "set", 2)
        self.fail_with(1, ["index would have 8", "no more than 8388608", "index.json", "start another zoo"],
                       "publish", "set", "--zoo", self.zoo, "--name", "test/more")
        self.assertFalse((self.zoo / "test/more").exists())
        self.assertEqual((self.zoo / "index.json").read_text(), index)
        self.succeed("pull", NAME, "--zoo", self.zoo)

    def test_an_index_of_others_keeps_its_members_and_has_each_name_once(self):
        for seed, name in ((1, "b/b:x"), (2, "a/a:x"), (3, "a/a:y")):
            self.published(seed, name=name)
        index = self.index()
        index["entries"] = [{**entry, "rating": True} for entry in reversed(index["entries"])]
        (self.zoo / "index.json").write_text(json.dumps({**index, "motto": "kept"}))
        self.published(4, name="b/b:x")
        index = self.index()
        self.assertEqual((index["motto"], sorted((entry["name"], entry["tag"], "rating" in entry) for entry in index["entries"])),
                         ("kept", [("a/a", "x", True), ("a/a", "y", True), ("b/b", "x", False)]))
        digest = hashlib.sha256((self.folder / "set-3/manifest.json").read_bytes()).hexdigest()
        for name in (f"b/b@sha256:{digest}", "a/a"):
            self.assertIn(f"the zoo has no {name}", self.run_oscar("pull", name, "--zoo", self.zoo).stderr)
        pulled = self.succeed("pull", f"a/a@sha256:{digest}", "--zoo", self.zoo).stdout.strip()
        self.same(read_folder(pulled), read_folder(self.folder / "set-3"))

    def test_wrong_usage_is_told_apart(self):
        make_set(self.folder / "set", 1)
        self.fail_with(2, "ftp:// are not supported", "publish", "set", "--zoo", "ftp://host/zoo", "--name", NAME)
        for arguments in (("--name", NAME), ("--zoo", "zoo"), *(("--zoo", "zoo", "--name", name) for name in ("../x", "x", f"a/b@sha256:{'a' * 64}"))):
            done = self.fail_with(2, "error:", "publish", "set", *arguments)
            self.assertNotIn("HEX", done.stderr)  # no hash is a name to publish under
            self.assertNotIn("NAME\n", done.stderr)
        self.fail_with(1, "nothing-here", "publish", "nothing-here", "--zoo", "zoo", "--name", NAME)

    def test_a_zoo_that_cannot_be_written_is_not_one_that_is_locked(self):
        make_set(self.folder / "set", 1)
        (self.folder / "file").write_text("")
        done = self.fail_with(1, "file", "publish", "set", "--zoo", "file/zoo", "--name", NAME)
        self.assertNotIn("another process", done.stderr)
        (self.folder / "zoo").mkdir()
        (self.folder / "zoo/.index.lock").symlink_to(".index.lock")
        done = self.run_oscar("publish", "set", "--zoo", "zoo", "--name", NAME)
        self.assertEqual(done.returncode, 1)
        self.assertIn("a link", done.stderr)
        self.assertNotIn("another process", done.stderr)

    def test_many_at_once_lose_nothing(self):
        make_set(self.folder / "set", 1)
        for step in range(SETS_EACH):
            running = [self.start_oscar("publish", "set", "--zoo", self.zoo, "--name", f"test/m{publisher}:v{step}")
                       for publisher in range(PUBLISHERS)]
            outputs = [process.communicate(timeout=120) for process in running]
            self.assertEqual([process.returncode for process in running], [0] * PUBLISHERS, outputs)
        names = [(entry["name"], entry["tag"]) for entry in self.index()["entries"]]
        self.assertEqual(names, sorted(names))
        self.assertEqual(set(names), {(f"test/m{p}", f"v{s}") for p in range(PUBLISHERS) for s in range(SETS_EACH)})
        for name, tag in names:
            self.assertEqual(read_folder(self.zoo / name / tag), read_folder(self.folder / "set"))

    def test_the_same_by_many_at_once_succeeds_once(self):
        make_set(self.folder / "set", 1)
        running = [self.start_oscar("publish", "set", "--zoo", self.zoo, "--name", NAME) for _ in range(PUBLISHERS)]
        outputs = [process.communicate(timeout=120) for process in running]
        self.assertEqual([process.returncode for process in running], [0] * PUBLISHERS, outputs)
        self.assertEqual(sum("published" in error for _, error in outputs), 1)
        self.assertEqual(len(self.index()["entries"]), 1)


if __name__ == "__main__":
    unittest.main()
