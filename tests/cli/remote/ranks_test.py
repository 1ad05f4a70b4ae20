# SPDX-License-Identifier: MIT
"""Several processes that share what lies at a server: the bytes of one on disk, and hardly more than one reads:
ranks_test.py [RanksTest.test_…]."""
import socket
import subprocess

from remote_case import DATA, MODEL, RemoteCase, main, read_folder

LONG = ["--tokens", DATA / "golden/qwen3-2m/tokens_calib.npy", "--sequences", "6", "--seq-len", "2048"]  # three blocks a layer


class RanksTest(RemoteCase):
    def setUp(self):
        super().setUp()
        self.environment["OSCAR_DEVICE"] = "cpu"  # of one process, too: the bytes of two devices differ

    def fit_together(self, size, *arguments):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        ranks = []
        for rank in range(size):
            place = {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size),
                     "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OSCAR_DEVICE": "cpu"}
            ranks.append(subprocess.Popen(self.command("fit", "--threads", "1", *arguments), cwd=self.folder, text=True,
                                          stderr=subprocess.PIPE, env={**self.environment, **place}))
            self.addCleanup(ranks[-1].communicate)
            self.addCleanup(ranks[-1].kill)
        errors = [rank.communicate(timeout=200)[1] for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0] * size, errors)

    def test_a_set_of_a_model(self):
        options = ["--recipe", "oscar", *LONG, "--max-tokens", "0"]  # two blocks
        here = self.fit("here", "--model", MODEL, *options)
        one = None
        for size in (1, 2, 3):
            server = self.serving(MODEL)
            with server as url:
                self.fit_together(size, "--model", f"{url}/{MODEL.name}", *options, "--out", f"of_{size}")
            there = read_folder(self.folder / f"of_{size}")
            self.assertEqual([path for path in {**here, **there} if here.get(path) != there.get(path)], [])
            asked = self.bytes_asked(server, "00001.safetensors")
            one = one or asked
            self.assertLess(asked, 1.15 * min(size, 2) * one)  # who has no text reads no layers


if __name__ == "__main__":
    main()
