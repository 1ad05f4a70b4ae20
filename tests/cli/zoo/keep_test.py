# SPDX-License-Identifier: MIT
"""`oscar zoo`: pages, tags, deprecation: keep_test.py [KeepTest.test_…]"""
import json
import os
import unittest
from html.parser import HTMLParser
from pathlib import Path

from support import NAME, ZooTest, make_set, read_folder


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)

    def handle_data(self, data):
        self.text += data


class KeepTest(ZooTest):
    def entries(self):
        return {f"{e['name']}:{e['tag']}": e for e in json.loads((self.zoo / "index.json").read_text())["entries"]}

    def test_a_page_tells_models_methods_and_commands(self):
        zoo = Path(os.environ["OSCAR_PROJECT"]) / "zoo"
        self.succeed("zoo", "render", "--zoo", zoo, "--out", "page.html", "--url", "https://example.org/zoo")
        page = Page((self.folder / "page.html").read_text())
        self.assertNotIn("script", page.tags)
        for text in ("sample/qwen3-2m:latest", "oscar pull sample/qwen3-2m:latest --zoo https://example.org/zoo",
                     "accepted by its maker's verify", "hadamard_clip", "(this set)", "@sha256:"):
            self.assertIn(text, page.text)
        self.assertEqual((self.folder / "page.html").read_text().count("<html"), 1)

    def test_the_projects_own_zoo_is_sound_and_its_page_of_today(self):
        zoo = Path(os.environ["OSCAR_PROJECT"]) / "zoo"
        self.assertIn("sound", self.succeed("inspect", zoo).stdout)
        entries = json.loads((zoo / "index.json").read_text())["entries"]
        self.assertGreaterEqual(len({entry["summary"]["recipe"] + entry["summary"]["codec"] for entry in entries}), 3)
        for entry in entries:
            self.assertEqual(entry["summary"]["verification"]["verdict"], "accepted")
            pulled = self.succeed("pull", f"{entry['name']}:{entry['tag']}", "--zoo", zoo).stdout.strip()
            self.assertIn("sound", self.succeed("inspect", pulled).stdout)
        self.succeed("zoo", "render", "--zoo", zoo, "--out", "page.html")
        self.assertEqual((self.folder / "page.html").read_text(), (zoo / "index.html").read_text())

    def test_what_an_index_says_cannot_become_markup(self):
        self.published()
        index = json.loads((self.zoo / "index.json").read_text())
        evil = "<script>alert(1)</script>\"'&"
        index["entries"][0]["summary"].update(model=evil, recipe=evil, verification={"verdict": evil, "methods": {evil: {}}})
        index["entries"][0]["deprecated"] = evil
        (self.zoo / "index.json").write_text(json.dumps(index))
        self.succeed("zoo", "render", "--zoo", self.zoo, "--url", evil)
        page = Page((self.zoo / "index.html").read_text())
        self.assertNotIn("script", page.tags)
        self.assertIn(evil, page.text)

    def test_a_tag_is_one_more_name_of_the_same(self):
        files = self.published()
        self.succeed("zoo", "tag", NAME, "stable", "--zoo", self.zoo)
        self.assertEqual(read_folder(self.zoo / NAME / "stable"), files)
        before, after = (self.entries()[f"{NAME}:{tag}"]["manifest"] for tag in ("latest", "stable"))
        self.assertEqual(before, after)
        make_set(self.folder / "other", 2)
        self.succeed("publish", "other", "--zoo", self.zoo, "--name", f"{NAME}:v2")
        self.fail_with(2, "another set under test/tiny:stable", "zoo", "tag", f"{NAME}:v2", "stable", "--zoo", self.zoo)
        self.succeed("zoo", "tag", f"{NAME}:v2", "stable", "--zoo", self.zoo, "--force")
        self.assertEqual(read_folder(self.zoo / NAME / "stable"), read_folder(self.folder / "other"))
        self.assertEqual(read_folder(self.zoo / NAME / "latest"), files)
        self.fail_with(1, "has no test/tiny:v9", "zoo", "tag", f"{NAME}:v9", "x", "--zoo", self.zoo)

    def test_who_pulls_a_deprecated_set_is_told_why(self):
        self.published()
        self.succeed("zoo", "deprecate", NAME, "fitted on the wrong text", "--zoo", self.zoo)
        done = self.succeed("pull", NAME, "--zoo", self.zoo)
        self.assertIn("deprecated: fitted on the wrong text", done.stderr)
        self.succeed("zoo", "deprecate", NAME, "", "--zoo", self.zoo)
        self.assertNotIn("deprecated", self.succeed("pull", NAME, "--zoo", self.zoo).stderr)

    def test_only_folders_can_be_looked_after(self):
        for command in (("render",), ("tag", NAME, "x"), ("deprecate", NAME, "x")):
            self.fail_with(2, "only a zoo in a folder", "zoo", *command, "--zoo", "https://example.org/zoo")
            self.fail_with(1, "index.json", "zoo", *command, "--zoo", self.folder / "nothing")
        self.fail_with(2, "", "zoo")


if __name__ == "__main__":
    unittest.main()
