# SPDX-License-Identifier: MIT
"""Ctrl-C: it ends commands that run no model, too, with 130. interrupt_test.py [InterruptTest.test_…]"""
import fcntl
import functools
import http.server
import os
import signal
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path
from unittest import mock

BINARY, PROJECT = Path(os.environ["OSCAR_BINARY"]), Path(os.environ["OSCAR_PROJECT"])
SET, MODEL = PROJECT / "zoo/sample/qwen3-2m/latest", PROJECT / "tests/data/qwen3-2m"


class InterruptTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="oscar-interrupt-")))

    def interrupted(self, *arguments):
        """What a command says that gets SIGINT after its first words, which wait for room in a pipe that is full."""
        reads, writes = os.pipe()
        fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, 4096)
        os.write(writes, filler := b"x" * fcntl.fcntl(writes, fcntl.F_GETPIPE_SZ))
        with subprocess.Popen([BINARY, "-v", *map(str, arguments)], cwd=self.folder, stdout=subprocess.PIPE, stderr=writes) as process:
            os.close(writes)
            status = Path(f"/proc/{process.pid}/status")
            while not int(status.read_text().split("SigCgt:")[1].split()[0], 16) >> (signal.SIGINT - 1) & 1:
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            with os.fdopen(reads, "rb") as stream:
                said = stream.read().removeprefix(filler).decode()
            process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, said)
        self.assertIn("oscar: interrupted", said)
        return said

    def test_a_server_does_not_start(self):
        self.interrupted("serve-env", SET, "--", "touch", "started")
        self.assertFalse((self.folder / "started").exists())

    def test_the_cache_is_not_said_to_lack_a_set(self):
        files = functools.partial(http.server.SimpleHTTPRequestHandler, directory=PROJECT / "zoo")
        files.func.log_message = lambda *_: None
        with mock.patch.dict(os.environ, OSCAR_CACHE=str(self.folder)), http.server.ThreadingHTTPServer(("127.0.0.1", 0), files) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            command = ("pull", "sample/qwen3-2m", "--zoo", f"http://127.0.0.1:{server.server_port}")
            subprocess.run([BINARY, "-q", *command], check=True, stdout=subprocess.DEVNULL, timeout=60)
            self.interrupted(*command, "--offline")
            server.shutdown()

    def test_inspect_and_convert_end(self):
        subprocess.run([BINARY, "dump", "-q", "--model", MODEL, "--tokens", PROJECT / "tests/data/golden/qwen3-2m/tokens_eval.npy",
                        "--max-tokens", "512", "--out", self.folder / "dump"], check=True, timeout=60)
        for place in (SET, "dump"):
            self.interrupted("inspect", place)
        subprocess.run([BINARY, "convert", "-q", SET, self.folder / "set.h5"], check=True, timeout=60)
        self.interrupted("convert", "set.h5", "copy.safetensors")
        self.assertFalse((self.folder / "copy.safetensors").exists())

    def test_only_what_takes_resume_is_told_of_it(self):
        tokens = PROJECT / "tests/data/golden/qwen3-2m/tokens_eval.npy"
        command = ("fit", "--model", MODEL, "--tokens", tokens, "--max-tokens", "512", "--save-stats")
        subprocess.run([BINARY, "-q", *command, self.folder / "sums"], check=True, timeout=60)
        self.assertIn("--resume", self.interrupted(*command, "others"))
        self.assertNotIn("--resume", self.interrupted("fit", "--stats", "sums", "--out", "set"))


if __name__ == "__main__":
    unittest.main()
