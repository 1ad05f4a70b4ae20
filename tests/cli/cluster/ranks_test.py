# SPDX-License-Identifier: MIT
"""oscar fit by several processes: the bytes of one, whoever launches them; failures with a name; --resume."""
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

BINARY = Path(os.environ["OSCAR_BINARY"])
PROJECT = Path(os.environ["OSCAR_PROJECT"])
DATA = PROJECT / "tests/data"
TORCHRUN = PROJECT / ".venv/bin/torchrun"
ON_CPU = {**os.environ, "OSCAR_DEVICE": "cpu"}  # all of them: the bytes of two devices differ


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def torch_variables(rank, size, port):
    return {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


def slurm_variables(rank, size, port):
    return {"SLURM_JOB_ID": port, "SLURM_STEP_ID": "0", "SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": str(size),
            "SLURM_NTASKS": str(size), "SLURM_LOCALID": str(rank), "SLURM_STEP_TASKS_PER_NODE": str(size),
            "SLURM_STEP_NODELIST": "localhost"}


def mpi_variables(rank, size, port):
    return {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(size), "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(size), "PMIX_NAMESPACE": f"prterun-{port}@1"}


class RanksTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="oscar-ranks-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.run_alone("dump", "--model", DATA / "qwen3-2m", "--tokens", DATA / "golden/qwen3-2m/tokens_calib.npy",
                      "--sequences", "1", "--seq-len", "450", "--out", "dump")

    @classmethod
    def run_alone(cls, *arguments):
        done = subprocess.run([BINARY, arguments[0], "-q", *arguments[1:]], cwd=cls.folder, capture_output=True, text=True,
                              env=ON_CPU)
        assert done.returncode == 0, done.stderr
        return done

    def start(self, *options, size=2, variables=torch_variables, of_rank=None):
        """One process per rank; of_rank: further options by rank."""
        port = free_port()
        processes = []
        for rank in range(size):
            command = [BINARY, "fit", "--recipe", "oscar", "--threads", "1", *options, *(of_rank or {}).get(rank, [])]
            processes.append(subprocess.Popen(
                [str(part) for part in command], cwd=self.folder, stderr=subprocess.PIPE, text=True,
                env={**ON_CPU, **variables(rank, size, port)}))
            self.addCleanup(processes[-1].kill)
        return processes

    def finish(self, processes, seconds=120):
        errors = [process.communicate(timeout=seconds)[1] for process in processes]
        return [process.returncode for process in processes], errors

    def expect_same(self, one, other):
        names = sorted(path.name for path in (self.folder / one).iterdir())
        self.assertEqual(names, sorted(path.name for path in (self.folder / other).iterdir()))
        for name in names:
            self.assertEqual((self.folder / one / name).read_bytes(), (self.folder / other / name).read_bytes(), name)

    def spoil(self, layer):
        """Whoever reads this layer fails: its queries are NaN."""
        path = self.folder / f"dump/layer_{layer}/q/1.pt"
        whole = path.read_bytes()
        path.write_bytes(whole[:len(whole) // 2] + b"\xff" * 4096 + whole[len(whole) // 2 + 4096:])
        return lambda: path.write_bytes(whole)

    def resume_with_another_layer(self, layer, fit):
        """As if a server had written that layer again, of the same shape."""
        folder = self.folder / f"dump/layer_{layer}"
        folder.rename(self.folder / "own")
        shutil.copytree(self.folder / "dump/layer_2", folder)
        try:
            return subprocess.run([BINARY, *fit], cwd=self.folder, capture_output=True, text=True, env=ON_CPU)
        finally:
            shutil.rmtree(folder)
            (self.folder / "own").rename(folder)

    def wait_for(self, name, seconds=60):
        deadline = time.monotonic() + seconds
        while not (self.folder / name).exists():
            self.assertLess(time.monotonic(), deadline, f"{name} did not come")
            time.sleep(0.002)

    def stop_rank_1(self, out, *options):
        """Two ranks, of which rank 1 stands still with one of its two layers done."""
        for _ in range(5):
            processes = self.start("--dump", "dump", "--out", out, *options)
            self.wait_for(f"{out}.partial/layer_1.safetensors")
            processes[1].send_signal(signal.SIGSTOP)
            if not (self.folder / f"{out}.partial/layer_3.safetensors").exists():
                return processes
            for process in processes:
                process.kill()
                process.communicate()
        self.fail("rank 1 was too fast five times")

    def test_two_ranks_of_torchrun_write_the_bytes_of_one_process(self):
        if not TORCHRUN.exists():
            self.skipTest("no torchrun; scripts/setup.sh installs it")
        options = ["--dump", "dump", "--recipe", "stretch", "--target", "any", "--device", "cpu"]
        self.run_alone("fit", *options, "--out", "one")
        done = subprocess.run([TORCHRUN, "--no-python", "--nproc-per-node", "2", "--master-port", free_port(), BINARY, "fit",
                               *options, "--out", "two"], cwd=self.folder, capture_output=True, text=True, timeout=240)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("2 ranks", done.stderr)
        self.expect_same("one", "two")
        self.assertFalse((self.folder / "two.partial").exists())

    def test_ranks_of_srun_and_of_mpirun_write_the_bytes_of_one_process(self):
        self.run_alone("fit", "--dump", "dump", "--recipe", "oscar", "--out", "one")
        for name, variables in (("slurm", slurm_variables), ("mpi", mpi_variables)):
            codes, errors = self.finish(self.start("--dump", "dump", "--out", name, variables=variables))
            self.assertEqual(codes, [0, 0], errors)
            self.expect_same("one", name)

    def test_ranks_share_the_sequences_of_a_model(self):
        text = ["--model", DATA / "qwen3-2m", "--tokens", DATA / "golden/qwen3-2m/tokens_calib.npy", "--seq-len", "400",
                "--clip", "0.96,0.92", "--sequences"]
        self.run_alone("fit", *text, "3", "--recipe", "oscar", "--out", "live_one")
        codes, errors = self.finish(self.start(*text, "3", "--out", "live_two"))
        self.assertEqual(codes, [0, 0], errors)
        self.expect_same("live_one", "live_two")
        codes, errors = self.finish(self.start(*text, "1", "--out", "live_one_sequence"))
        self.assertEqual(codes[0], 2, errors)
        self.assertIn("1 sequences for 2 ranks", errors[0])

    def test_a_rank_that_fails_is_named_with_its_reason(self):
        self.addCleanup(self.spoil(1))
        codes, errors = self.finish(self.start("--dump", "dump", "--out", "failed"))
        self.assertEqual(codes, [1, 1])
        self.assertRegex(errors[0], r"rank 1 \(.*\) failed: q has NaN or Inf \(.*layer_1/q/1.pt")
        self.assertIn("--resume", errors[0])
        self.assertFalse((self.folder / "failed").exists())

    def test_a_killed_rank_ends_the_job_and_loses_only_its_share(self):
        processes = self.stop_rank_1("killed", "--rank-timeout", "3")
        processes[1].kill()
        since = time.monotonic()
        codes, errors = self.finish(processes)
        self.assertEqual(codes[0], 1, errors)
        self.assertRegex(errors[0], rf"rank 1 \(.*process {processes[1].pid}\) shows no sign of life")
        self.assertLess(time.monotonic() - since, 30)
        kept = {path.stem for path in (self.folder / "killed.partial").glob("layer_*")}
        self.assertEqual(kept, {"layer_0", "layer_1", "layer_2"})
        for layer in (0, 1, 2):
            self.addCleanup(self.spoil(layer))  # nobody may read these again
        codes, errors = self.finish(self.start("--dump", "dump", "--out", "killed", "--resume"))
        self.assertEqual(codes, [0, 0], errors)
        self.doCleanups()
        self.run_alone("fit", "--dump", "dump", "--recipe", "oscar", "--out", "unbroken")
        self.expect_same("unbroken", "killed")

    def test_ranks_notice_that_rank_0_is_gone(self):
        processes = self.stop_rank_1("headless")
        processes[0].kill()
        processes[1].send_signal(signal.SIGCONT)
        codes, errors = self.finish(processes)
        self.assertEqual(codes[1], 1, errors)
        self.assertRegex(errors[1], rf"rank 0 \(.*process {processes[0].pid}\) is gone")

    def test_ranks_with_different_options_are_refused(self):
        codes, errors = self.finish(self.start("--dump", "dump", "--out", "mixed", of_rank={1: ["--clip", "off"]}))
        self.assertEqual(codes, [1, 1])
        self.assertIn("rank 1 has other data or options than rank 0", errors[0])

    def test_one_process_resumes_and_refuses_the_layers_of_another_fit(self):
        fit = ["fit", "--dump", "dump", "--recipe", "oscar", "--resume", "--out", "resumed"]
        mend = self.spoil(3)
        self.addCleanup(mend)
        done = subprocess.run([BINARY, *fit], cwd=self.folder, capture_output=True, text=True, env=ON_CPU)
        self.assertEqual(done.returncode, 1)
        self.assertIn("layer_3", done.stderr)
        mend()
        done = subprocess.run([BINARY, *fit, "--sink", "32"], cwd=self.folder, capture_output=True, text=True,
                              env=ON_CPU)
        self.assertEqual(done.returncode, 1)
        self.assertIn("is of another: windows differ", done.stderr)
        done = self.resume_with_another_layer(0, fit)
        self.assertEqual(done.returncode, 1)
        self.assertIn("layer 0 is fitted already, to other data than the dump has now", done.stderr)
        self.addCleanup(self.spoil(0))
        self.run_alone(*fit)
        self.doCleanups()
        self.run_alone("fit", "--dump", "dump", "--recipe", "oscar", "--out", "at_once")
        self.expect_same("at_once", "resumed")
        self.assertFalse((self.folder / "resumed.partial").exists())


if __name__ == "__main__":
    unittest.main()
