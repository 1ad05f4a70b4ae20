# SPDX-License-Identifier: MIT
"""Runs the jobs of scripts/ci as a runner would: every command of the GitHub Actions and GitLab examples, in order, on the
sample model. Only what installs, builds and downloads is replaced. Skipped (77) without PyYAML."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

try:
    import yaml
except ImportError:
    print("skipped: needs PyYAML; run scripts/setup.sh --tests")
    sys.exit(77)

BINARY, PROJECT = Path(os.environ["OSCAR_BINARY"]), Path(os.environ["OSCAR_PROJECT"])
SAMPLE = PROJECT / "tests/data/qwen3-2m"
# Options that make the jobs small: they stand behind those of the examples.
SMALL = {"FIT_OPTIONS": "--seq-len 512 --max-tokens 2048", "VERIFY_OPTIONS": "--seq-len 512 --sequences 2 --compare naive"}
# In place of programs of the runner: they write down how they were called.
PROGRAMS = {"apt-get": "", "setup.sh": "", "build.sh": "",
            "pipx": f'[ "$1 $2 $3 $4 $5" = "run --spec huggingface_hub hf download" ] && [ "$7" = --local-dir ] && cp -r {SAMPLE} "$8"'}


def github():
    """(commands, environment) of each step, and the artifacts."""
    job = yaml.safe_load((PROJECT / "scripts/ci/github-actions.yml").read_text())
    inputs = job[True]["workflow_dispatch"]["inputs"]  # "on" is a boolean in YAML 1.1
    fill = lambda text: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda name: inputs[name[1]]["default"], text)
    steps = job["jobs"]["calibrate"]["steps"]
    runs = [(step["run"], {name: fill(value) for name, value in step.get("env", {}).items()}) for step in steps if "run" in step]
    paths = [step["with"]["path"].split() for step in steps if "upload-artifact" in step.get("uses", "")]
    return runs, paths[0], "texts"


def gitlab():
    job = yaml.safe_load((PROJECT / "scripts/ci/gitlab-ci.yml").read_text())["calibrate"]
    return [("\n".join(job["script"]), job["variables"])], job["artifacts"]["paths"], "."


class CiExamplesTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="oscar-ci-")))
        documents = map(json.loads, (PROJECT / "zoo/calibration/mix.jsonl").read_text().splitlines())
        texts = sorted((each["text"] for each in documents if "text" in each), key=len)
        self.texts = {"calibration.txt": "\n\n".join(texts[-3:-1]), "held_out.txt": texts[-1]}

    def checkout(self, texts):
        """The runner's folder: the texts, and this project where the examples expect it."""
        for name, text in self.texts.items():
            (self.folder / texts).mkdir(exist_ok=True)
            (self.folder / texts / name).write_text(text)
        (self.folder / "oscar/build").mkdir(parents=True)
        (self.folder / "oscar/scripts").mkdir()
        (self.folder / "bin").mkdir()
        (self.folder / "oscar/build/oscar").symlink_to(BINARY)
        (self.folder / "oscar/scripts/ci").symlink_to(PROJECT / "scripts/ci")
        for name, body in PROGRAMS.items():
            script = name.endswith(".sh")
            if script:
                self.assertTrue((PROJECT / "scripts" / name).exists())
            path = self.folder / ("oscar/scripts" if script else "bin") / name
            path.write_text(f'#!/bin/bash -e\necho "{name} $*" >>{self.folder}/calls\n{body}\n')
            path.chmod(0o755)

    def run_job(self, runs, **more):
        """The status of the first command that failed, else 0; and what was printed."""
        printed = ""
        for commands, variables in runs:
            variables = dict(variables) | more
            for name, options in SMALL.items():
                variables[name] = f"{variables.get(name, '')} {options}"
            environment = {"PATH": f"{self.folder}/bin:/usr/bin:/bin", "HOME": str(self.folder), **variables}
            done = subprocess.run(["bash", "-e", "-o", "pipefail", "-c", commands], cwd=self.folder, env=environment, text=True,
                                  capture_output=True, timeout=300)
            printed += done.stdout + done.stderr
            if done.returncode != 0:
                return done.returncode, printed
        return 0, printed

    def check_accepted(self, example):
        runs, artifacts, texts = example
        self.checkout(texts)
        status, printed = self.run_job(runs)
        self.assertEqual(status, 0, printed)
        self.assertIn("verdict: accepted", printed)
        self.assertLess(json.loads((self.folder / "out/report.json").read_text())["limits"][-1]["limit"], 0.03)
        for path in artifacts:
            self.assertTrue((self.folder / path).exists(), path)
        calls = (self.folder / "calls").read_text().splitlines()
        self.assertEqual([call for call in calls if not call.startswith("apt-get")],
                         ["setup.sh ", "build.sh oscar", "pipx run --spec huggingface_hub hf download Qwen/Qwen3-0.6B --local-dir model"])
        pulled = subprocess.run([BINARY, "pull", "Qwen/Qwen3-0.6B", "--zoo", self.folder / "zoo", "--out", self.folder / "pulled"],
                                capture_output=True, text=True, timeout=60)
        self.assertEqual(pulled.returncode, 0, pulled.stderr)

    def test_github_actions_publishes_what_is_accepted(self):
        self.check_accepted(github())

    def test_gitlab_publishes_what_is_accepted(self):
        self.check_accepted(gitlab())

    def test_both_fail_with_status_3_for_a_set_of_twelve_tokens(self):
        for example in (github(), gitlab()):
            runs, _, texts = example
            shutil.rmtree(self.folder)
            self.folder.mkdir()
            self.checkout(texts)
            with unittest.mock.patch.dict(SMALL, FIT_OPTIONS="--seq-len 512 --max-tokens 12 --clip off"):
                status, printed = self.run_job(runs, FIT_OPTIONS="--recipe oscar")
            self.assertEqual(status, 3, printed)
            self.assertIn("reason: calibration_tokens failed: 12 against 256", printed)
            self.assertFalse((self.folder / "zoo").exists())
            self.assertTrue((self.folder / "out/report.json").exists())


if __name__ == "__main__":
    unittest.main()
