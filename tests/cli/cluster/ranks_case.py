# SPDX-License-Identifier: MIT
"""What the tests of several processes share: a dump, ranks as launchers start them, and their ends."""
import os
import shutil
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


class RanksCase(unittest.TestCase):
    SEQUENCES = ("--sequences", "1", "--seq-len", "450")  # of the dump

    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="oscar-ranks-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.run_alone("dump", "--model", DATA / "qwen3-2m", "--tokens", DATA / "golden/qwen3-2m/tokens_calib.npy",
                      *cls.SEQUENCES, "--out", "dump")

    @classmethod
    def run_alone(cls, *arguments):
        done = subprocess.run([BINARY, arguments[0], "-q", *arguments[1:]], cwd=cls.folder, capture_output=True, text=True,
                              env=ON_CPU)
        assert done.returncode == 0, done.stderr
        return done

    def start(self, *options, size=2, variables=torch_variables, of_rank=None, only=None, through=None):
        """One process per rank; of_rank: further options by rank; only: the ranks that are started; through: by rank, a
        command that starts it."""
        port = self.port = free_port()
        processes = []
        for rank in range(size) if only is None else only:
            recipe = [] if "--recipe" in options else ["--recipe", "oscar"]
            command = [*(through or {}).get(rank, []), BINARY, "fit", *recipe, "--threads", "1", *options, *(of_rank or {}).get(rank, [])]
            processes.append(subprocess.Popen(
                [str(part) for part in command], cwd=self.folder, stderr=subprocess.PIPE, text=True,
                env={**ON_CPU, **variables(rank, size, port)}))
            self.addCleanup(processes[-1].communicate)
            self.addCleanup(processes[-1].kill)
        return processes

    def finish(self, processes, seconds=120):
        errors = [process.communicate(timeout=seconds)[1] for process in processes]
        return [process.returncode for process in processes], errors

    def wait_for_ranks(self, count, seconds=60):
        """Until so many have come to the store, each with two connections, and a moment for what they say there."""
        there = f":{int(self.port):04X} 01"
        deadline = time.monotonic() + seconds
        while sum(" ".join(line.split()[2:4]).endswith(there) for name in ("tcp", "tcp6")
                  for line in Path("/proc/net", name).read_text().splitlines()) < 2 * count:
            self.assertLess(time.monotonic(), deadline, f"{count} ranks did not come")
            time.sleep(0.05)
        time.sleep(1)

    def expect_same(self, one, other):
        """Of two files or folders."""
        if (self.folder / one).is_file():
            self.assertEqual((self.folder / one).read_bytes(), (self.folder / other).read_bytes())
            return
        names = sorted(path.name for path in (self.folder / one).iterdir())
        self.assertEqual(names, sorted(path.name for path in (self.folder / other).iterdir()))
        for name in names:
            self.assertEqual((self.folder / one / name).read_bytes(), (self.folder / other / name).read_bytes(), name)

    def kept(self, folder):
        return {path.stem for path in (self.folder / folder).glob("layer_*")}

    def spoil(self, layer):
        """Whoever reads this layer fails: its queries are NaN."""
        path = self.folder / f"dump/layer_{layer}/q/1.pt"
        whole = path.read_bytes()
        path.write_bytes(whole[:len(whole) // 2] + b"\xff" * 4096 + whole[len(whole) // 2 + 4096:])
        return lambda: path.write_bytes(whole)

    def wait_for(self, name, seconds=60):
        deadline = time.monotonic() + seconds
        while not (self.folder / name).exists():
            self.assertLess(time.monotonic(), deadline, f"{name} did not come")
            time.sleep(0.002)
