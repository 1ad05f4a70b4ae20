# SPDX-License-Identifier: MIT
"""Pickles of a few bytes that would become many gigabytes are refused soon and in little memory: bomb_test.py [BombTest.test_…]"""
import os
import resource
import struct
import subprocess
import tempfile
import unittest
import zipfile
from pathlib import Path

PROTOCOL, STOP, TUPLE2, MARK, TUPLE, REDUCE = b"\x80\x02", b".", b"\x86", b"(", b"t", b"R"
PERSISTENT = b"Q"
MEGABYTES = 700  # of which sanitizers take most


def put(i):
    return b"r" + struct.pack("<I", i)


def get(i):
    return b"j" + struct.pack("<I", i)


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value


def storage():
    return MARK + text(b"storage") + b"ctorch\nFloatStorage\n" + text(b"0") + text(b"cpu") + b"K\x01" + TUPLE + PERSISTENT


class BombTest(unittest.TestCase):
    def refused(self, pickle, why):
        with tempfile.TemporaryDirectory(prefix="oscar-bomb-") as folder:
            path = Path(folder) / "k_rotation_bomb.pt"
            with zipfile.ZipFile(path, "w") as archive:
                for name, content in (("data.pkl", PROTOCOL + pickle + STOP), ("version", b"3\n"), ("data/0", bytes(4))):
                    archive.writestr(f"archive/{name}", content)
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            done = subprocess.run([os.environ["OSCAR_BINARY"], "inspect", path], capture_output=True, text=True, timeout=60,
                                  check=False)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn(why, done.stderr)
        self.assertLess(after.ru_utime - before.ru_utime, 10)
        self.assertLess(after.ru_maxrss, MEGABYTES << 10)

    def test_pairs_of_pairs(self):
        """Forty levels, each the one before twice: a million million values."""
        levels = b"".join(get(i) * 2 + TUPLE2 + put(i + 1) for i in range(40))
        self.refused(MARK + text(b"x") + put(0) + levels + TUPLE, "names the same values too often")

    def test_pairs_without_a_name(self):
        """The same by DUP, which copies what is on top of the stack."""
        self.refused(text(b"x") + (b"2" + TUPLE2) * 40, "an opcode that torch.save does not write")

    def test_a_long_text_many_times(self):
        self.refused(MARK + text(b"x" * 1_000_000) + put(0) + get(0) * 5000 + TUPLE, "names the same values too often")

    def test_tensors_of_many_dimensions(self):
        shape = MARK + b"K\x01" * 20000 + TUPLE + put(2)
        tensor = get(0) + MARK + get(1) + b"K\x00" + get(2) * 2 + TUPLE + REDUCE
        names = b"ctorch._utils\n_rebuild_tensor_v2\n" + put(0) + storage() + put(1) + shape
        self.refused(names + tensor * 4600, "too many dimensions")

    def test_deep_lists(self):
        self.refused(b"]" * 5000 + b"a" * 4999, "nested too deep")


if __name__ == "__main__":
    unittest.main()
