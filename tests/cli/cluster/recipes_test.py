# SPDX-License-Identifier: MIT
"""scripts/cluster/: the Slurm script with an sbatch that runs jobs at once, and every command line of the Kubernetes and GitHub
files, on parts of the sample model's tokens."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BINARY = Path(os.environ["OSCAR_BINARY"])
PROJECT = Path(os.environ["OSCAR_PROJECT"])
DATA = PROJECT / "tests/data"
RECIPES = PROJECT / "scripts/cluster"
SKIPPED = 77

try:
    import numpy
    import yaml
except ImportError as error:
    print(f"skipped: {error}; scripts/setup.sh --tests installs it")
    sys.exit(SKIPPED)

# Runs what sbatch would queue, task by task, and prints the job's id.
SBATCH = """#!/bin/bash
echo "$*" >>"$WORK/sbatch.txt"
array= command=
while [ $# -gt 0 ]; do
  case $1 in --array) array=$2; shift ;; --wrap) command=$2; shift ;; esac
  shift
done
if [ -z "$array" ]; then
  bash -c "$command" >&2 || exit 1
else
  for i in $(seq "${array%-*}" "${array#*-}"); do SLURM_ARRAY_TASK_ID=$i bash -c "$command" >&2 || exit 1; done
fi
wc -l <"$WORK/sbatch.txt"
"""


class RecipesTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="oscar-recipes-")))
        (self.folder / "parts").mkdir()
        tokens = numpy.load(DATA / "golden/qwen3-2m/tokens_calib.npy")
        for i in range(2):
            numpy.save(self.folder / f"parts/{i}.npy", tokens[i:i + 1, :200])
        self.environment = {**os.environ, "PATH": f"{BINARY.parent}:{self.folder}:/usr/bin:/bin", "OSCAR_DEVICE": "cpu",
                            "PARTS": str(self.folder / "parts"), "WORK": str(self.folder / "work"),
                            "MODEL": str(DATA / "qwen3-2m"), "FIT_OPTIONS": "--quiet", "AWAIT": "0"}

    def run_bash(self, command, **variables):
        return subprocess.run(["/bin/bash", "-euc", command], cwd=self.folder, capture_output=True, text=True,
                              env={**self.environment, **variables})

    def expect_set(self):
        manifest = json.loads((self.folder / "work/set/manifest.json").read_text())
        self.assertEqual(manifest["calibration"]["tokens"], 400)
        self.assertEqual(manifest["objectives"], {"key": "qqt_r_h_pbr", "value": "sst_r_h_pbr"})

    def test_slurm_arrays_and_a_second_try_that_repeats_nothing(self):
        (self.folder / "sbatch").write_text(SBATCH)
        (self.folder / "sbatch").chmod(0o755)
        for expected in ("", "is there already"):
            done = self.run_bash(f"{RECIPES}/slurm.sh --gpus-per-task 1")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(expected, done.stderr)
        self.expect_set()
        calls = (self.folder / "work/sbatch.txt").read_text().splitlines()
        self.assertEqual(len(calls), 8)
        self.assertRegex(calls[0], "--gpus-per-task 1")
        self.assertRegex(calls[2], "--dependency afterok:2 .*--array 0-1")

    def test_a_step_before_its_time_says_what_is_missing(self):
        done = self.run_bash(f"{RECIPES}/map_reduce.sh join")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "first_0.safetensors is not there")
        self.assertRegex(self.run_bash(f"{RECIPES}/map_reduce.sh first 7").stderr, "there is no part 7")

    def test_kubernetes_jobs(self):
        """In the order in which the last of them starts the others; a step begins only when it may, and holds no GPU before."""
        documents = {(each["kind"], each["metadata"]["name"]): each
                     for each in yaml.safe_load_all((RECIPES / "kubernetes.yaml").read_text())}
        settings = documents["ConfigMap", "oscar-fit"]["data"]
        self.assertLessEqual(set(settings), set(self.environment))
        jobs = {name: each["spec"] for (kind, name), each in documents.items() if kind == "Job"}
        running = {name for name, spec in jobs.items() if not spec.get("suspend")}
        self.assertEqual(running, {"oscar-first", "oscar-steps"})
        pod = jobs.pop("oscar-steps")["template"]["spec"]
        rules, = documents["Role", documents["RoleBinding", "oscar-steps"]["roleRef"]["name"]]["rules"]
        self.assertEqual(documents["RoleBinding", "oscar-steps"]["subjects"],
                         [{"kind": "ServiceAccount", "name": documents["ServiceAccount", pod["serviceAccountName"]]["metadata"]["name"]}])
        done = set()
        for container in [*pod["initContainers"], *pod["containers"]]:
            verb, arguments = container["args"][0], container["args"][1:]
            name, = (argument[len("job/"):] for argument in arguments if argument.startswith("job/"))
            self.assertIn({"wait": "watch"}.get(verb, verb), rules["verbs"])
            if verb == "patch":
                self.assertEqual(json.loads(arguments[-1]), {"spec": {"suspend": False}})
                running.add(name)
                continue
            self.assertIn("--for=condition=complete", arguments)
            self.assertIn(name, running)
            self.run_kubernetes_job(jobs[name])
            done.add(name)
        last, = running - done - {"oscar-steps"}
        self.run_kubernetes_job(jobs[last])
        self.assertEqual(running, {*jobs, "oscar-steps"})
        self.expect_set()

    def run_kubernetes_job(self, spec):
        indexed = spec.get("completionMode") == "Indexed"
        self.assertEqual(indexed, "completions" in spec)
        container, = spec["template"]["spec"]["containers"]
        command = container["command"][-1].replace("/opt/oscar", str(PROJECT))
        for index in range(2 if indexed else 1):
            done = self.run_bash(command, JOB_COMPLETION_INDEX=str(index))
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_folder_of_other_inputs_is_refused_by_what_differs(self):
        first = f"{RECIPES}/map_reduce.sh first 0"
        self.assertEqual(self.run_bash(first).returncode, 0)
        part = self.folder / "parts/1.npy"
        whole = part.read_bytes()

        def refused(said, **variables):
            done = self.run_bash(f"{RECIPES}/map_reduce.sh first 1", **variables)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, f"is of other inputs .*What differs: {said}")

        refused("options --quiet --sink 4", FIT_OPTIONS="--quiet --sink 4")
        part.write_bytes(whole[:-4] + b"\0\0\0\0")
        refused("part 1.npy")
        part.write_bytes(whole)
        (self.folder / "parts/2.npy").write_bytes(whole)
        refused("part 2.npy")
        (self.folder / "parts/2.npy").unlink()
        other = self.folder / "other"
        shutil.copytree(DATA / "qwen3-2m", other)
        (other / "config.json").write_text((other / "config.json").read_text() + " ")
        refused("model ", MODEL=str(other))
        self.assertEqual(self.run_bash(f"{RECIPES}/map_reduce.sh first 1").returncode, 0)
        self.assertEqual(self.run_bash(f"{RECIPES}/map_reduce.sh join", MODEL="").returncode, 0)  # where there is no model

    def test_github_matrix(self):
        (self.folder / "oscar").symlink_to(PROJECT)
        workflow = yaml.safe_load((RECIPES / "github-actions.yml").read_text())
        self.assertLessEqual(set(workflow["env"]) - {"MODEL_ID"}, set(self.environment))
        order = list(workflow["jobs"])
        for name, job in workflow["jobs"].items():
            needs = job.get("needs", [])
            for need in [needs] if isinstance(needs, str) else needs:
                self.assertLess(order.index(need), order.index(name))
            command = job["steps"][-2]["run"]
            for index in range(2 if "strategy" in job else 1):
                done = self.run_bash(re.sub(r"\$\{\{ *matrix.index *\}\}", str(index), command))
                self.assertEqual(done.returncode, 0, done.stderr)
        self.expect_set()

    def test_the_sizing_page_says_what_the_measured_rates_say(self):
        tables = subprocess.run([sys.executable, "-B", RECIPES / "sizing.py"], capture_output=True, text=True, check=True).stdout
        self.assertIn(f"<!-- sizing -->\n{tables}<!-- end of sizing -->", (RECIPES / "README.md").read_text())


if __name__ == "__main__":
    unittest.main()
