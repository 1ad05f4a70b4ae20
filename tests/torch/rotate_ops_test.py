# SPDX-License-Identifier: MIT
"""torch.ops.oscar.rotate_rows against the definition in float64: rotate_ops_test.py LIBRARY shapes|cpu|cuda.

shapes   in every build: the schema, and shapes without data
cpu      the reference (oscar_kv/rotate_cpu.py), where the library was built with CUDA or without
cuda     the kernel, and what it refuses. Exit status 77 without a GPU.
Of small whole numbers, whose sums are exact in any order, rows have the bits of the definition. Of any numbers they are as near as one
rounding to bfloat16 leaves them.
"""
import sys
from pathlib import Path

import torch

PROJECT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(PROJECT / "apps/python")]
from int2_ops_test import expect_error  # noqa: E402

BEFORE = 7.0  # what rows hold that are not to be written


def rotate(x, matrices, means, out, slots=None, kept=(), adds_mean=False):
    torch.ops.oscar.rotate_rows(x, matrices, means, out, slots, [*kept], adds_mean=adds_mean)


class Product:
    """Rows of one kind, a part of wider ones, with what belongs to them."""

    def __init__(self, device, dim, tokens, heads, matrices, means=0, is_exact=True, dtype=torch.bfloat16):
        def numbers(most, *shape):
            return torch.randint(-most, most + 1, shape, device=device).float() if is_exact else torch.randn(shape, device=device)

        self.x = numbers(16, tokens, heads + 1, 2 * dim).to(dtype)[:, 1:, dim:]
        self.matrices = numbers(8, matrices, dim, dim).bfloat16()
        self.mean = numbers(64, means, dim) / 4 if means else None
        self.out = torch.full((tokens, heads, dim), BEFORE, dtype=torch.bfloat16, device=device)
        self.is_exact = is_exact

    def expected(self, adds_mean):
        heads = self.x.shape[1]
        x, matrices = self.x.transpose(0, 1).float(), self.matrices.double().repeat_interleave(heads // len(self.matrices), 0)
        mean = 0 if self.mean is None else self.mean.repeat_interleave(heads // len(self.mean), 0)[:, None]
        y = x.bfloat16().double() @ matrices + mean if adds_mean else (x - mean).bfloat16().double() @ matrices
        return y.transpose(0, 1)

    def check(self, adds_mean):
        want = self.expected(adds_mean)
        if self.is_exact:
            assert torch.equal(self.out, want.float().bfloat16()), (self.x.shape, int((self.out != want.float().bfloat16()).sum()))
            return
        error, size = (self.out.double() - want).abs(), want.square().mean(-1, keepdim=True).sqrt()
        assert bool((error <= want.abs() * 2.0 ** -8 + size * 1e-5).all()), (self.x.shape, float((error / size).max()))


def check(products, adds_mean=False, kept=0):
    """kept: so many of the first products keep rows, too, of which some tokens have none."""
    device, tokens = products[0].x.device, products[0].x.shape[0]
    slots = torch.randperm(tokens + 5, device=device)[:tokens].int()
    slots[2::3] = -1
    wide = [torch.full((tokens + 5, each.x.shape[1] + 1, each.x.shape[2]), BEFORE, device=device).bfloat16() for each in products[:kept]]
    rotate([each.x for each in products], [each.matrices for each in products], [each.mean for each in products],
           [each.out for each in products], slots if kept else None, [x[:, :-1] for x in wide], adds_mean)
    for each in products:
        each.check(adds_mean)
    for each, x in zip(products, wide):
        want, has_slot = torch.full_like(x, BEFORE), slots >= 0
        want[slots[has_slot].long(), :-1] = each.out[has_slot]
        assert torch.equal(x, want), "kept rows are not those of their tokens, or more was written"


def run(device):
    for dim in (64, 128, 256):
        for is_exact in (True, False):
            for tokens in (1, 7, 200) if device == "cuda" else (5,):
                def product(*shape, **how):
                    return Product(device, dim, *shape, is_exact=is_exact, **how)

                check([product(tokens, 2, 2, 2), product(tokens, 2, 2), product(max(tokens - 2, 0), 12, 2)], kept=2)  # a step of a layer
                check([product(tokens, 3, 1, 3), product(tokens, 3, 3, 1), product(0, 6, 3), product(1, 6, 1)], kept=1)
                check([product(tokens, 12, 2, 2, dtype=torch.float32)], adds_mean=True)
                check([product(tokens, 12, 1, 2), product(tokens, 6, 6)], adds_mean=True)
        print("dim", dim, "done", flush=True)
    if device == "cuda":
        check([Product(device, 128, 5000, 8, 8, 8), Product(device, 128, 5000, 8, 1), Product(device, 128, 5000, 32, 8)], kept=2)
        check_refusals()


def check_refusals():
    own = Product("cuda", 128, 3, 4, 2)
    x, m, out, slots = own.x, own.matrices, own.out, torch.zeros(3, dtype=torch.int32, device="cuda")
    expect_error("there are 5 x", lambda: rotate([x] * 5, [m] * 5, [None] * 5, [out] * 5))
    expect_error("1 x have 2 matrices", lambda: rotate([x], [m, m], [None], [out]))
    expect_error("kept rows need slots", lambda: rotate([x], [m], [None], [out], None, [out]))
    expect_error("kept rows need slots", lambda: rotate([x], [m], [None], [out], slots))
    expect_error("slots has 2 entries", lambda: rotate([x], [m], [None], [out], slots[:2], [out]))
    expect_error("slots is Long", lambda: rotate([x], [m], [None], [out], slots.long(), [out]))
    expect_error("kept is [3, 3, 128]", lambda: rotate([x], [m], [None], [out], slots, [out[:, 1:]]))
    expect_error("out is [2, 4, 128]", lambda: rotate([x], [m], [None], [out[:2]]))
    expect_error("x is Half", lambda: rotate([x.half()], [m], [None], [out]))
    expect_error("matrices's rows are not dense", lambda: rotate([x], [m.transpose(1, 2)], [None], [out]))
    expect_error("matrices are [2, 128, 128], not dense", lambda: rotate([x], [torch.cat([m, m])[::2]], [None], [out]))
    expect_error("num_heads must be a multiple of num_matrices", lambda: rotate([x[:, 1:]], [m], [None], [out[:, 1:]]))
    expect_error("means are [2, 64]", lambda: rotate([x], [m], [torch.zeros(2, 64, device="cuda")], [out]))
    expect_error("matrices is on cpu", lambda: rotate([x], [m.cpu()], [None], [out]))
    expect_error("aligned", lambda: rotate([torch.zeros(3 * 4 * 128 + 1, device="cuda").bfloat16()[1:].view(3, 4, 128)], [m], [None], [out]))


def shapes():
    x, slots = torch.empty(3, 2, 128, dtype=torch.bfloat16, device="meta"), torch.zeros(3, dtype=torch.int32, device="meta")
    rotate([x, x], [x, x], [None, x], [x, x], slots, [x])
    rotate([x], [x], [None], [x], adds_mean=True)
    assert "Tensor(a!)[] out" in str(torch.ops.oscar.rotate_rows.default._schema)


def main():
    library, part = sys.argv[1:]
    if part == "cuda" and not torch.cuda.is_available():
        print("skipped: needs an NVIDIA GPU")
        return 77
    torch.manual_seed(0)
    torch.ops.load_library(library)
    if part == "cpu":
        from oscar_kv import rotate_cpu  # noqa: F401  (registers the reference)
    shapes() if part == "shapes" else run(part)
    return 0


if __name__ == "__main__":
    sys.exit(main())
