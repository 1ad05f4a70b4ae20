# SPDX-License-Identifier: MIT
"""scripts/cluster/: the Slurm recipe on a real Slurm of one node, the commands of the Kubernetes file, and the script for the GPUs
of one host with processes on the CPU; each on two parts of the sample model's tokens, against one fit of all of them."""
import json
import os
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

BINARY = Path(os.environ["OSCAR_BINARY"])
PROJECT = Path(os.environ["OSCAR_PROJECT"])
DATA = PROJECT / "tests/data"
RECIPES = PROJECT / "scripts/cluster"
SKIPPED = 77

try:
    import h5py
    import numpy
    import yaml
    from safetensors import safe_open
except ImportError as error:
    print(f"skipped: {error}; scripts/setup.sh --tests installs it")
    sys.exit(SKIPPED)

from real_slurm import NoSlurm, RealSlurm

OSCAR = "--recipe oscar --clip 0.96,0.92"
WINDOWS = "--sink 16 --recent 64"


def equal_sums(one, other):
    """Sums over the same rows, added in another order. An entry of x^T x over n rows then moves by at most n 2^-53 sqrt(x_i^2 x_j^2)
    (by Cauchy and Schwarz the size of its terms): of 1,024 tokens with two query heads 2.3e-13; entries of vectors are of one size."""
    one, other = (safe_open(file, "np") for file in (one, other))
    names = [name for name in other.keys() if ".sst." not in name and ".clip." not in name]
    assert sorted(name for name in one.keys() if ".clip." not in name) == sorted(names)
    for name in names:
        a, b = one.get_tensor(name), other.get_tensor(name)
        assert a.shape == b.shape, name
        size = numpy.abs(b).max(initial=0)
        if b.ndim == 3 and b.dtype == numpy.float64:
            root = numpy.sqrt(numpy.einsum("hii->hi", b))
            size = root[:, :, None] * root[:, None, :]
        assert (numpy.abs(a - b) <= 1e-12 * size).all(), (name, numpy.abs(a - b).max())


class RecipesTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="oscar-recipes-")))
        (self.folder / "parts").mkdir()
        tokens = numpy.load(DATA / "golden/qwen3-2m/tokens_calib.npy")[:2, :512]
        numpy.save(self.folder / "whole.npy", tokens)
        for i in range(2):
            numpy.save(self.folder / f"parts/{i}.npy", tokens[i:i + 1])
        self.environment = {**os.environ, "PATH": f"{BINARY.parent}:/usr/bin:/bin", "OSCAR_DEVICE": "cpu",
                            "INPUT": f"--model {DATA / 'qwen3-2m'} --tokens"}

    def run_bash(self, command, status=0, **variables):
        done = subprocess.run(["/bin/bash", "-euc", command], cwd=self.folder, capture_output=True, text=True,
                              env={**self.environment, **variables})
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stdout.strip() if status == 0 else done.stderr

    def use_dumps(self, windows=""):
        for name in ("parts/0", "parts/1", "whole"):
            self.run_bash(f"oscar dump -q $INPUT {name}.npy --out dump; rm {name}.npy; mv dump {name}.npy")
        self.environment["INPUT"] = f"{windows} --dump"

    def expect_the_set_of_all_text(self):
        """Its sums, rows and costs, but for trials that each part made with a plan of its own; and every part of a set. Rotations have
        the matrices that were decomposed, and what that gave, to the rounding of float32 files."""
        self.run_bash("oscar fit -q $INPUT whole.npy --save-stats all_at_once --out expected")
        equal_sums(self.folder / "all", self.folder / "all_at_once")
        manifests = [json.loads((self.folder / name / "manifest.json").read_text()) for name in ("expected", "work/set")]
        self.assertEqual(manifests[1]["calibration"]["tokens"], 1024)
        self.assertEqual(manifests[1]["readers"], manifests[0]["readers"])
        self.assertEqual(set(manifests[1]["parts"]), {"coded", "rotations", "with_means"})
        sets = [h5py.File(self.folder / name / "rotations.h5") for name in ("expected", "work/set")]
        for layer in sets[0]["layers"]:
            for side in ("key", "value"):
                one, other = (each[f"layers/{layer}/{side}"] for each in sets)
                for name in ("covariance", "eigenvalues"):
                    a, b = one[name][:], other[name][:]
                    self.assertLess(numpy.abs(a - b).max(), 2e-7 * numpy.abs(a).max(), (layer, side, name))

    def start_slurm(self):
        try:
            slurm = RealSlurm(self.folder / "slurm", self.environment)
        except NoSlurm as error:
            self.skipTest(f"no real Slurm here: {error}")
        self.addCleanup(slurm.stop)
        self.environment = slurm.environment
        return slurm

    def test_a_real_slurm_makes_a_set_and_none_where_a_part_fails(self):
        slurm = self.start_slurm()
        self.use_dumps(WINDOWS)
        first = self.run_bash(f"{RECIPES}/slurm.sh --time 5", OUT="--save-stats all --out work/set", FIT="")
        self.assertRegex(first, r"^\d+$")
        slurm.wait_for_jobs()
        said = "".join(path.read_text() for path in sorted((self.folder / "work").glob("*.txt")))
        self.assertTrue((self.folder / "work/set/manifest.json").exists(), said + slurm.logs())
        self.expect_the_set_of_all_text()
        chunk, = (self.folder / "parts/1.npy/layer_2/v").iterdir()
        chunk.unlink()
        self.run_bash(f"{RECIPES}/slurm.sh", FIT=OSCAR, WORK="broken")
        slurm.wait_for_jobs()
        self.assertIn("layer_2/v", (self.folder / "broken/oscar-part-1.txt").read_text())
        self.assertFalse((self.folder / "broken/set").exists())

    def test_processes_of_one_host_make_a_set(self):
        self.use_dumps(WINDOWS)
        self.run_bash(f"{RECIPES}/gpus.sh", OUT="--save-stats all --out work/set", DEVICES="cpu cpu")
        self.expect_the_set_of_all_text()

    def test_a_part_that_fails_ends_the_fit_on_one_host(self):
        (self.folder / "parts/1.npy").write_bytes(b"damaged")
        said = self.run_bash(f"{RECIPES}/gpus.sh", status=1, FIT=OSCAR, DEVICES="cpu cpu")
        self.assertRegex(said, "parts/1.npy(.|\n)*a part failed")
        self.assertFalse((self.folder / "work/set").exists())

    def test_kubernetes_jobs(self):
        documents = {each["metadata"]["name"]: each for each in yaml.safe_load_all((RECIPES / "kubernetes.yaml").read_text())}
        settings, part, merge = documents["oscar-fit"]["data"], documents["oscar-part"]["spec"], documents["oscar-merge"]["spec"]
        self.assertEqual((part["completionMode"], settings["COUNT"]), ("Indexed", str(part["completions"])))
        settings = {name: value.replace("/data", str(self.folder)) for name, value in settings.items()}
        self.use_dumps(WINDOWS)
        settings.update(COUNT="2", FIT="--bits 2.25", INPUT=self.environment["INPUT"], OUT="--save-stats all --out work/set")

        def run(spec, **variables):
            container, = spec["template"]["spec"]["containers"]
            self.assertEqual(container["command"][:2], ["/bin/bash", "-euc"])
            self.run_bash(container["command"][2].replace("sleep 10", "sleep 0.1"), **settings, **variables)

        (self.folder / "work").mkdir()
        merging = threading.Thread(target=run, args=(merge,))  # it waits for the others
        merging.start()
        for index in "10":
            self.assertTrue(merging.is_alive())
            run(part, JOB_COMPLETION_INDEX=index)
        merging.join()
        self.expect_the_set_of_all_text()

    def test_ranks_of_a_launcher_do_not_share_a_fit(self):
        for variable in ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"):
            said = self.run_bash(f"oscar fit {OSCAR} $INPUT whole.npy --out set", status=2, **{variable: "2"})
            self.assertRegex(said, f"this is one of 2 processes, and each would fit the same set.*\n.*{variable}(.|\n)*--save-stats")
            self.assertFalse((self.folder / "set").exists())
        self.run_bash(f"oscar fit -q {OSCAR} $INPUT parts/0.npy --save-stats one", WORLD_SIZE="2")
        self.run_bash(f"oscar fit -q {OSCAR} $INPUT whole.npy --out set", WORLD_SIZE="1", RANK="0")


if __name__ == "__main__":
    unittest.main()
