# SPDX-License-Identifier: MIT
"""`oscar pull` and `publish` of hf:// addresses, against the Hugging Face Hub's API on localhost; the hub's own client
checks that the API is the real one: hub_test.py [HubTest.test_…]. Run by the project's virtual environment."""
import json
import os
import unittest
from pathlib import Path

from peers import Hub, Serving, WritableHub, pinned
from support import KEYS, NAME, VALUES, ZooTest, make_set, read_folder

SAMPLE = Path(os.environ["OSCAR_PROJECT"]) / "zoo/sample/qwen3-2m/latest"
REPOSITORY = "someone/RotationZoo"
FOLDER = "Qwen3/seq20000_group128"
SECRET = "hf_secret"


class HubTest(ZooTest):
    def zoo_of_pickles(self):
        """As rotation zoos are: two .pt files in a folder, a README beside them."""
        files = {f"{FOLDER}/{name}": (SAMPLE / name).read_bytes() for name in (KEYS, VALUES)}
        return {"README.md": b"# Zoo\n", f"{FOLDER}/notes.txt": b"hello", **files}

    def pull(self, hub, address, *more, **env):
        return self.run_oscar("pull", address, *more, env={"HF_ENDPOINT": hub.url, **env})

    def test_foreign_files_become_a_set_that_says_what_is_known(self):
        with Hub(REPOSITORY, self.zoo_of_pickles()) as hub:
            done = self.pull(hub, f"hf://{REPOSITORY}/{FOLDER}")
            self.assertEqual(done.returncode, 0, done.stderr)
        folder = Path(done.stdout.strip())
        for name in (KEYS, VALUES):
            self.assertEqual((folder / name).read_bytes(), (SAMPLE / name).read_bytes())
        manifest = json.loads((folder / "manifest.json").read_text())
        self.assertEqual(manifest["origin"]["source"], f"hf://{REPOSITORY}/{FOLDER}@{Hub.COMMIT}")
        self.assertEqual(manifest["parts"]["rotations"]["objectives"]["key"], "qqt_r_h_pbr")
        self.assertEqual({file["path"] for file in manifest["origin"]["files"]}, {KEYS, VALUES})
        for unknown in ("model", "calibration", "clip_ratios"):
            self.assertIn(unknown, manifest["origin"]["unknown"])
        self.assertIn("published ones", (folder / "serve.env").read_text())
        self.assertIn("sound", self.succeed("inspect", folder).stdout)
        self.assertIn("verify has accepted this set for no reader", done.stderr)
        # Only what is needed was asked for, at one commit.
        asked = [path for _, path, _ in hub.seen]
        self.assertFalse([path for path in asked if "README" in path or "notes" in path])
        self.assertEqual(len([path for path in asked if f"/resolve/{Hub.COMMIT}/" in path]), 2)
        # Again: from the cache, the hub is gone; and into a folder of one's own.
        again = self.pull(hub, f"hf://{REPOSITORY}/{FOLDER}")
        self.assertEqual(again.stdout, done.stdout)
        self.assertEqual(self.pull(hub, f"hf://{REPOSITORY}/{FOLDER}", "--out", self.out, "--offline").returncode, 0)
        self.assertEqual(read_folder(self.out), read_folder(folder))

    def test_with_a_folder_of_ones_own_the_cache_keeps_nothing(self):
        with Hub(REPOSITORY, self.zoo_of_pickles()) as hub:
            done = self.pull(hub, f"hf://{REPOSITORY}/{FOLDER}", "--out", self.out)
        self.assertEqual((done.returncode, (self.out / KEYS).read_bytes()), (0, (SAMPLE / KEYS).read_bytes()), done.stderr)
        self.assertEqual([path for path in read_folder(self.cache) if not path.startswith("locks/")], [])

    def test_a_folder_of_several_pairs_asks_which(self):
        shared = self.zoo_of_pickles()
        per_head = {f"{FOLDER}/{side}_rotation_perhead.pt": shared[f"{FOLDER}/{name}"] for side, name in (("k", KEYS), ("v", VALUES))}
        address = f"hf://{REPOSITORY}/{FOLDER}"
        with Hub(REPOSITORY, shared | per_head) as hub:
            done = self.pull(hub, address)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("several pairs of rotations: perhead, qqt_r_h_pbr", done.stderr)
            self.assertIn("--pair NAME", done.stderr)
            done = self.pull(hub, address, "--pair", "none")
            self.assertEqual((done.returncode, 'no pair "none", but perhead, qqt_r_h_pbr' in done.stderr), (2, True), done.stderr)
            origins = {}
            for pair in ("perhead", "qqt_r_h_pbr"):
                done = self.pull(hub, address, "--pair", pair)
                self.assertEqual(done.returncode, 0, done.stderr)
                manifest = json.loads((Path(done.stdout.strip()) / "manifest.json").read_text())
                origins[pair] = {file["path"] for file in manifest["origin"]["files"]}
            self.assertEqual(origins, {"perhead": {"k_rotation_perhead.pt", "v_rotation_perhead.pt"},
                                       "qqt_r_h_pbr": {KEYS, VALUES}})
        # From the cache each is what was asked for.
        for pair in origins:
            done = self.pull(hub, address, "--pair", pair, "--offline")
            manifest = json.loads((Path(done.stdout.strip()) / "manifest.json").read_text())
            self.assertEqual({file["path"] for file in manifest["origin"]["files"]}, origins[pair])
        done = self.run_oscar("pull", "a/b", "--pair", "perhead")
        self.assertEqual((done.returncode, "sets in a zoo have one pair" in done.stderr), (2, True), done.stderr)

    def test_a_set_of_ours_comes_as_it_is_and_a_whole_zoo_too(self):
        files = make_set(self.folder / "set", 1)
        with Hub(REPOSITORY, {f"sets/one/{path}": content for path, content in files.items()}) as hub:
            done = self.pull(hub, f"hf://{REPOSITORY}/sets/one@{Hub.COMMIT}")
            self.assertEqual(done.returncode, 0, done.stderr)
        asked = [path for _, path, _ in hub.seen]
        self.assertLessEqual(len(asked), 1 + len([content for content in files.values() if content]), asked)
        self.assertEqual(read_folder(done.stdout.strip()), files)
        self.published()
        with Hub(REPOSITORY, read_folder(self.zoo)) as hub:
            done = self.pull(hub, "test/tiny", "--zoo", f"hf://{REPOSITORY}", "--out", self.out)
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(read_folder(self.out), files)

    def test_a_repository_that_was_renamed_is_followed_with_the_token(self):
        with Hub(REPOSITORY, self.zoo_of_pickles(), token=SECRET) as hub:
            answer = hub.answer

            def renamed(request):
                if "/renamed/" not in request.path:
                    return hub.reply(request, 307, b"", Location=f"{hub.url}/renamed{request.path}")
                request.path = request.path.removeprefix("/renamed")
                return answer(request)
            hub.answer = renamed
            done = self.pull(hub, f"hf://{REPOSITORY}/{FOLDER}", HF_TOKEN=SECRET)
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_repository_of_many_files(self):
        files = {f"{FOLDER}/a{i:04}.txt": b"x" for i in range(5000)} | self.zoo_of_pickles()
        with Hub(REPOSITORY, files) as hub:
            done = self.pull(hub, f"hf://{REPOSITORY}/{FOLDER}")
        self.assertEqual((Path(done.stdout.strip()) / KEYS).read_bytes(), (SAMPLE / KEYS).read_bytes())

    def test_the_token_goes_to_the_hub_and_not_where_it_redirects(self):
        with Hub(REPOSITORY, self.zoo_of_pickles(), token=SECRET) as hub:
            done = self.pull(hub, f"hf://{REPOSITORY}/{FOLDER}")
            self.assertEqual(done.returncode, 1)
            self.assertIn("private or gated", done.stderr)
            done = self.pull(hub, f"hf://{REPOSITORY}/{FOLDER}", "--verbose", HF_TOKEN=SECRET)
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(hub.storage_headers), 2)
        for headers in hub.storage_headers:
            self.assertNotIn("Authorization", headers)
        self.assertNotIn(SECRET, done.stdout + done.stderr)
        for path, content in read_folder(self.cache).items():
            self.assertNotIn(SECRET.encode(), content, path)

    def refused(self, hub, address, message, exit_code=1):
        done = self.pull(hub, address, "--retries", "0", "--out", self.out)
        self.assertEqual(done.returncode, exit_code, done.stderr)
        self.assertIn(message, done.stderr)
        self.assertFalse(self.out.exists())
        self.assertFalse((self.cache / "sets").exists())

    def test_what_is_not_there_or_not_right_is_an_error(self):
        files = self.zoo_of_pickles()
        with Hub(REPOSITORY, files) as hub:
            self.refused(hub, f"hf://{REPOSITORY}/nothing", "no rotation files")
            self.refused(hub, f"hf://{REPOSITORY}/{FOLDER}@other", "no revision")
            self.refused(hub, "hf://someone/else/folder", "no such repository")
            self.refused(hub, f"hf://{REPOSITORY}", "no rotation files")
            for address in ("hf://", "hf://x", f"hf://{REPOSITORY}/../x", f"hf://{REPOSITORY}/a@../b"):
                self.refused(hub, address, "is not an address", exit_code=2)
            # The hub promises another content than what comes.
            entry = hub.entry
            hub.entry = lambda name: {**entry(name), "lfs": {"sha256": "0" * 64, "size": len(files[name]), "pointerSize": 1}}
            self.refused(hub, f"hf://{REPOSITORY}/{FOLDER}", "sha256 differs")
            hub.entry = lambda name: {**entry(name), "lfs": {"sha256": "../x"}}
            self.refused(hub, f"hf://{REPOSITORY}/{FOLDER}", "unusable name")
            hub.entry = lambda name: {**entry(name), "rfilename": "../" + name}
            self.refused(hub, f"hf://{REPOSITORY}/{FOLDER}", "no rotation files")
            hub.entry = lambda name: {**entry(name), "size": 10 << 30}
            self.refused(hub, f"hf://{REPOSITORY}/{FOLDER}", "--max-size")
        with Hub(REPOSITORY, {f"{FOLDER}/{name}": b"<html>" * 1000 for name in (KEYS, VALUES)}) as hub:
            self.refused(hub, f"hf://{REPOSITORY}/{FOLDER}", "archive")

    def test_small_files_are_checked_by_gits_hash(self):
        files = self.zoo_of_pickles()
        with Hub(REPOSITORY, files, lfs_from=1 << 40) as hub:
            entry = hub.entry
            hub.entry = lambda name: {**entry(name), "blobId": "0" * 40}
            self.refused(hub, f"hf://{REPOSITORY}/{FOLDER}", "differs")
            hub.entry = entry
            self.assertEqual(self.pull(hub, f"hf://{REPOSITORY}/{FOLDER}").returncode, 0)

    def test_the_hubs_own_client_gets_and_commits_the_same(self):
        os.environ.update(HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_TELEMETRY="1")
        huggingface_hub = pinned("huggingface_hub")
        with Hub(REPOSITORY, self.zoo_of_pickles()) as hub:
            path = huggingface_hub.hf_hub_download(REPOSITORY, f"{FOLDER}/{KEYS}", endpoint=hub.url,
                                                   cache_dir=self.folder / "hf", token=False)
            about = huggingface_hub.HfApi(endpoint=hub.url, token=False).model_info(REPOSITORY, files_metadata=True)
            sizes = {file.rfilename: (file.size, bool(file.lfs and file.lfs.sha256)) for file in about.siblings}
        self.assertEqual(Path(path).read_bytes(), (SAMPLE / KEYS).read_bytes())
        self.assertEqual(sizes[f"{FOLDER}/{KEYS}"], ((SAMPLE / KEYS).stat().st_size, True))
        with WritableHub(REPOSITORY, {}, token=SECRET) as hub:
            make_set(self.folder / "set", 1)
            huggingface_hub.HfApi(endpoint=hub.url, token=SECRET).upload_folder(repo_id=REPOSITORY, folder_path=str(self.folder / "set"))
        self.assertEqual(hub.files[KEYS], (self.folder / "set" / KEYS).read_bytes())

    def publish(self, hub, name=NAME, *more, seed=1, **env):
        make_set(self.folder / f"set-{seed}", seed)
        return self.run_oscar("publish", self.folder / f"set-{seed}", "--zoo", f"hf://{REPOSITORY}", "--name", name, *more,
                              env={"HF_ENDPOINT": hub.url, "HF_TOKEN": SECRET, **env})

    def published_at(self, hub, *arguments, **more):
        done = self.publish(hub, *arguments, **more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def names(self, hub):
        return [entry["name"] for entry in json.loads(hub.files["index.json"])["entries"]]

    def test_one_commit_on_the_hub_and_back(self):
        with WritableHub(REPOSITORY, {"README.md": b"# Zoo\n"}, token=SECRET) as hub:
            self.published_at(hub)
            self.assertEqual(hub.commits, 1)
            self.assertEqual(len(hub.stored), 3)  # the two .pt files and serve.env are large
            pulled = self.succeed("pull", NAME, "--zoo", f"hf://{REPOSITORY}", env={"HF_ENDPOINT": hub.url, "HF_TOKEN": SECRET})
            self.assertEqual(read_folder(pulled.stdout.strip()), read_folder(self.folder / "set-1"))
            self.assertIn("exactly this set already", self.published_at(hub).stderr)
            self.assertEqual(hub.commits, 1)
            other = self.publish(hub, seed=2)
            self.assertEqual(other.returncode, 2)
            self.assertIn("another set under test/tiny:latest", other.stderr)
            hub.files.update({f"{NAME}/latest/notes.md": b"", "test/foreign/latest/notes.md": b""})
            signed = self.publish(hub, NAME, "--sign", self.key("first")[0])
            self.assertEqual((signed.returncode, "files that its index does not name" in signed.stderr), (2, True), signed.stderr)
            self.published_at(hub, NAME, "--force", seed=2)
            self.assertEqual([path for path in hub.files if "notes" in path], [f"{NAME}/latest/notes.md", "test/foreign/latest/notes.md"])
            del hub.files[f"{NAME}/latest/notes.md"]
            other = self.publish(hub, "test/foreign", seed=2)
            self.assertEqual((other.returncode, "files that its index does not name" in other.stderr), (2, True), other.stderr)
            self.published_at(hub, "test/other", seed=2)
            self.assertEqual(self.names(hub), ["test/other", NAME])
            for headers in hub.storage_headers:
                self.assertNotIn("Authorization", headers)
        self.assertEqual(hub.files[f"{NAME}/latest/{KEYS}"], (self.folder / "set-2" / KEYS).read_bytes())

    def test_folders_and_branches_have_names_of_any_letters(self):
        make_set(self.folder / "set", 1)
        zoo = ("--zoo", f"hf://{REPOSITORY}/my #1@zoos/first")
        with WritableHub(REPOSITORY, {}, token=SECRET, branch="zoos/first") as hub:
            env = {"HF_ENDPOINT": hub.url, "HF_TOKEN": SECRET}
            self.succeed("publish", "set", *zoo, "--name", NAME, env=env)
            self.assertIn(NAME, self.succeed("zoo", "list", *zoo, env=env).stdout)
            self.same(read_folder(self.succeed("pull", NAME, *zoo, env=env).stdout.strip()), read_folder(self.folder / "set"))

    def test_two_can_sign(self):
        with WritableHub(REPOSITORY, {"README.md": b"# Zoo\n"}, token=SECRET) as hub:
            first, second = (self.key(name)[0] for name in ("first", "second"))
            for key in (first, second, first):
                done = self.published_at(hub, NAME, "--sign", key)
            self.assertIn("exactly this set already", done.stderr)
            self.assertEqual(len(json.loads(hub.files[f"{NAME}/latest/signature.json"])["signatures"]), 2)
            hub.files[f"{NAME}/latest/signature.json"] = b"{"  # broken: publishing again repairs it
            self.assertIn("count as absent", self.published_at(hub).stderr)
            self.assertNotIn(f"{NAME}/latest/signature.json", hub.files)

    def test_what_is_refused_is_told_and_changes_nothing(self):
        with WritableHub(REPOSITORY, {}, token=SECRET) as hub:
            self.assertIn("needs a token", self.publish(hub, HF_TOKEN="").stderr)
            denied = self.publish(hub, HF_TOKEN="other")
            self.assertEqual(denied.returncode, 1)
            self.assertIn("HTTP 401", denied.stderr)
            env = {"HF_ENDPOINT": hub.url, "HF_TOKEN": SECRET}
            make_set(self.folder / "bad", 1, "rejected")
            self.fail_with(1, "oscar verify", "publish", "bad", "--zoo", f"hf://{REPOSITORY}", "--name", NAME, env=env)
            self.fail_with(2, ["is not written to", "copy that"], "publish", "set-1", "--zoo", hub.url, "--name", NAME)
            (self.folder / "set-1/serve.env").write_text("A=2\n")
            self.fail_with(1, "it was written", "publish", "set-1", "--zoo", f"hf://{REPOSITORY}", "--name", NAME, env=env)
            self.assertEqual((hub.files, hub.commits), ({}, 0))

    def test_an_index_that_no_pull_would_read_is_not_written(self):
        index = json.dumps({"schema": "oscar.zoo_index.v1", "entries": [], "motto": "x" * ((8 << 20) - 500)}).encode()
        with WritableHub(REPOSITORY, {"index.json": index}, token=SECRET) as hub:
            done = self.publish(hub)
            self.assertEqual((done.returncode, "start another zoo" in done.stderr), (1, True), done.stderr)
            self.assertEqual((hub.stored, hub.commits), ({}, 0))

    def test_what_lets_into_a_storage_does_not_go_on_to_another(self):
        hub, first = WritableHub(REPOSITORY, {}, token=SECRET), []
        storage, wanted = hub.storage.server.RequestHandlerClass, hub.lfs_object
        with Serving(type("Another", (storage,), {"do_PUT": storage.do_PUT})) as another, hub:
            def send_on(request):
                first.append(request.headers.get("Authorization"))
                request.rfile.read(int(request.headers["Content-Length"]))
                hub.reply(request, 307, b"", Location=another + request.path)

            def with_permission(object):
                answer = wanted(object)
                answer["actions"]["upload"]["header"] = {"authorization": "Basic permission", "X-Test": "1"}
                return answer

            storage.do_PUT, hub.lfs_object = send_on, with_permission
            self.published_at(hub)
        self.assertEqual(set(first), {"Basic permission"})
        self.assertEqual({headers.get("Authorization", headers.get("authorization")) for headers in hub.storage_headers}, {None})
        self.assertEqual({headers["X-Test"] for headers in hub.storage_headers}, {"1"})

    def test_a_commit_in_between_is_not_overwritten(self):
        with WritableHub(REPOSITORY, {}, token=SECRET) as hub:
            self.published_at(hub, "test/first")
            rivals = ["test/rival"]

            def interfere():
                if rivals:
                    index = json.loads(hub.files["index.json"])
                    index["entries"][0]["name"] = rivals.pop()
                    hub.files["index.json"] = json.dumps(index).encode()
                    hub.commits += 1
            hub.before_commit = interfere
            self.published_at(hub, "test/second", seed=2)
            self.assertEqual(self.names(hub), ["test/rival", "test/second"])
            rivals.append("test/third")
            other = self.publish(hub, "test/third", seed=2)
            self.assertEqual((other.returncode, "another set under test/third" in other.stderr), (2, True), other.stderr)
            self.assertEqual(self.names(hub), ["test/third", "test/second"])


if __name__ == "__main__":
    unittest.main()
