# SPDX-License-Identifier: MIT
"""oscar zoo list: what a zoo has, from a folder and from a web server, whatever its publisher wrote."""
import json
import os
import unittest
from pathlib import Path

from peers import FileServer
from support import NAME, ZooTest, read_folder


class ListTest(ZooTest):
    def setUp(self):
        super().setUp()
        self.published(1)
        self.published(2, name="other/large:v2", verdict="rejected")

    def names(self, *arguments, **more):
        listed = json.loads(self.succeed("zoo", *arguments, "--json", **more).stdout)
        return [entry["name"] for entry in listed["sets"]]

    def change_index(self, change):
        path = self.zoo / "index.json"
        index = json.loads(path.read_text())
        change(index["entries"])
        path.write_text(json.dumps(index))

    def test_a_folder_is_listed_as_a_table_and_as_json(self):
        lines = self.succeed("zoo", "list", "--zoo", self.zoo).stdout.splitlines()
        self.assertEqual(lines[0].split(), ["name", "model", "parts", "and", "bits", "accepted", "for", "KLD", "MB", "notes"])
        self.assertEqual([line.split()[0] for line in lines[1:]], ["other/large:v2", f"{NAME}:latest"])
        self.assertIn("not sglang, sglang-v1, llamacpp", lines[1])
        self.assertIn("forced", lines[1])
        self.assertIn("rotations 2  ", lines[2])
        listed = json.loads(self.succeed("zoo", "list", "--zoo", self.zoo, "--json", "-").stdout)["sets"]
        self.assertEqual(listed[1]["recipe"], "oscar")
        self.assertEqual(listed[1]["readers"]["sglang"], {"part": "rotations", "verdict": "accepted"})
        self.assertEqual(listed[1]["parts"]["rotations"]["bits"], {"key": 2.0, "value": 2.0})

    def test_patterns_choose(self):
        zoo = ("--zoo", self.zoo)
        self.assertEqual(self.names("list", "LARGE", *zoo), ["other/large:v2"])
        self.assertEqual(self.names("list", "test/*", *zoo), [f"{NAME}:latest"])
        self.assertEqual(self.names("list", "test", *zoo), [f"{NAME}:latest"])
        self.assertEqual(self.names("list", "tes?", *zoo), [])
        nothing = self.succeed("zoo", "list", "nothing", *zoo)
        self.assertEqual(nothing.stdout, "")
        self.assertIn("none of the 2 sets fits", nothing.stderr)

    def test_a_web_server_and_the_default_zoo_are_listed(self):
        with FileServer(read_folder(self.zoo)) as url:
            self.assertEqual(self.names("list", "--zoo", url), self.names("list", "--zoo", self.zoo))
        self.assertEqual(len(self.names("list", env={"OSCAR_ZOO": str(self.zoo)})), 2)

    def test_what_others_wrote_stays_on_its_line(self):
        def change(entries):
            entries[0]["summary"] = {"model": "evil\x1b[2J\nfake/set:v1 good", "parts": {"coded": {"bits": {"key": "no"}}, "x\n": {}}, "readers": {"vllm": "coded\x1b", "x\n": "y\n"},
                                     "verification": {"verdict": ["accepted"], "methods": [1, {"kind": "this"}], "readers": {"vllm": {"verdict": "fine"}}}}
            entries[0]["summary"]["recipe"] = "x" * 5000
        self.change_index(change)
        table = self.succeed("zoo", "list", "--zoo", self.zoo).stdout
        self.assertEqual(len(table.splitlines()), 3)
        self.assertNotIn("\x1b", table)
        self.assertIn("evil\\u001b[2J\\u000afake", table)
        self.assertIn("coded ?", table)
        self.assertIn("not vllm", table)
        self.assertLess(max(map(len, table.splitlines())), 400)

    def test_an_index_that_is_none_is_an_error_as_in_pull(self):
        (self.zoo / "index.json").write_text("{}")
        self.fail_with(1, "index.json", "zoo", "list", "--zoo", self.zoo)
        (self.zoo / "index.json").write_text('{"schema": "oscar.zoo_index.v9", "entries": []}')
        self.fail_with(1, "update oscar", "zoo", "list", "--zoo", self.zoo)
        self.fail_with(2, "", "zoo")

    def test_the_projects_own_zoo_is_sound(self):
        zoo = Path(os.environ["OSCAR_PROJECT"]) / "zoo"
        self.assertIn("sound", self.succeed("inspect", zoo).stdout)
        entries = json.loads((zoo / "index.json").read_text())["entries"]
        parts = {entry["name"]: set(entry["summary"]["parts"]) for entry in entries}
        self.assertEqual(parts["sample/qwen3-2m"], {"coded", "rotations", "with_means"})
        self.assertEqual(parts["Qwen/Qwen2.5-Coder-1.5B-Instruct"], {"coded"})
        for entry in entries:
            verdicts = {name: each["verdict"] for name, each in entry["summary"]["verification"]["readers"].items()}
            self.assertEqual(set(verdicts.values()), {"accepted"}, verdicts)
            pulled = self.succeed("pull", f"{entry['name']}:{entry['tag']}", "--zoo", zoo).stdout.strip()
            self.assertIn("sound", self.succeed("inspect", pulled).stdout)


if __name__ == "__main__":
    unittest.main()
