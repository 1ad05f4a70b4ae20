# SPDX-License-Identifier: MIT
"""The bytes of one page that vLLM's backend packs, as the kernels read it, against kept hashes: page_bytes_test.py [--keep]. vLLM is a fake.

Transforms are a Hadamard matrix and powers of two, and rows have few bits, so that every sum is exact: the hashes hold on
every processor, on the CPU and on a GPU (OSCAR_TEST_DEVICE=cuda), and for every order of summation.
"""
import hashlib
import json
import sys
import unittest
from unittest import mock
from pathlib import Path

try:
    import torch
    import vllm_backend_test
    import vllm_one_layer as backends
except ImportError as missing:
    print(f"skipped: {missing}; run scripts/setup.sh --tests")
    sys.exit(77)

KEPT = Path(__file__).parents[1] / "data/page_bytes.json"
TOKENS = 5 * backends.BLOCK


def hadamard(heads, _):
    matrix = torch.ones(1, 1)
    while len(matrix) < backends.DIM:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    rotation = (matrix / backends.DIM**0.5).expand(heads, -1, -1).contiguous()
    return rotation, rotation.clone()


def rows(heads, seed):
    drawn = torch.randint(-24, 25, (TOKENS, heads, backends.DIM), generator=torch.Generator().manual_seed(seed))
    return (drawn / 8).bfloat16().to(backends.DEVICE)


def exact_random(*shape, seed):
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)) / 8


class PageBytesTest(unittest.TestCase):
    def pages(self):
        """SHA-256 of all blocks of a layer's cache after a prompt of five blocks, in the order of its table."""
        case = vllm_backend_test.BackendTest()
        with mock.patch.object(backends, "matrices", hadamard), mock.patch.object(backends, "random", exact_random):
            rotations = backends.coded_set()
        case.serve(rotations)
        server = backends.Server()
        prompt = (rows(backends.HEADS, 1), rows(backends.KV_HEADS, 2), rows(backends.KV_HEADS, 3))
        server.step({"request": prompt}, {"request": 0})
        found = hashlib.sha256(server.cache[server.tables["request"]].cpu().numpy().tobytes()).hexdigest()
        case.doCleanups()
        return {"coded": found}

    def test_pages_have_the_kept_bytes(self):
        self.maxDiff = None
        self.assertEqual(self.pages(), json.loads(KEPT.read_text()))


if __name__ == "__main__":
    if sys.argv[1:] == ["--keep"]:
        KEPT.write_text(json.dumps(PageBytesTest().pages(), indent=1) + "\n")
    else:
        unittest.main()
