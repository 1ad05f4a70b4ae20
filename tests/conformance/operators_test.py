# SPDX-License-Identifier: MIT
"""torch.ops.oscar.rotate_rows against its definition: operators_test.py [RotateTest]; operators.py says where"""
import unittest

import torch

from operators import BEFORE, BF16, CASES, DEVICE, F32, ON_CUDA, TOLERANCES, OperatorTest, before, each, expanded, ops, unaligned

LISTS = CASES["operators"]
def rotate(x, matrices, means, out, slots=None, kept=(), adds_mean=False):
    ops.rotate_rows(x, matrices, means, out, slots, [*kept], adds_mean=adds_mean)


class Product:
    """Rows of one kind, a part of wider ones, with what belongs to them. Of small whole numbers, whose sums are exact in any order, rows
    have the bits of the definition in float64. Of any numbers they are as near as one rounding to bfloat16 leaves them."""

    def __init__(self, dim, tokens, heads, matrices, means=0, is_exact=True, dtype=BF16):
        def numbers(most, *shape):
            return torch.randint(-most, most + 1, shape, device=DEVICE).float() if is_exact else torch.randn(shape, device=DEVICE)

        self.x = numbers(16, tokens, heads + 1, 2 * dim).to(dtype)[:, 1:, dim:]
        self.matrices = numbers(8, matrices, dim, dim).bfloat16()
        self.mean = numbers(64, means, dim) / 4 if means else None
        self.out = before(tokens, heads, dim)
        self.is_exact = is_exact

    def expected(self, adds_mean):
        heads = self.x.shape[1]
        x, matrices = self.x.transpose(0, 1).float(), self.matrices.double().repeat_interleave(heads // len(self.matrices), 0)
        mean = 0 if self.mean is None else self.mean.repeat_interleave(heads // len(self.mean), 0)[:, None]
        y = x.bfloat16().double() @ matrices + mean if adds_mean else (x - mean).bfloat16().double() @ matrices
        return y.transpose(0, 1)


class RotateTest(OperatorTest):
    def check(self, products, adds_mean=False, kept=0):
        """kept: so many of the first products keep rows, too, of which some tokens have none."""
        tokens = products[0].x.shape[0]
        slots = torch.randperm(tokens + 5, device=DEVICE)[:tokens].int()
        slots[2::3] = -1
        wide = [before(tokens + 5, each.x.shape[1] + 1, each.x.shape[2]) for each in products[:kept]]
        rotate([each.x for each in products], [each.matrices for each in products], [each.mean for each in products],
               [each.out for each in products], slots if kept else None, [x[:, :-1] for x in wide], adds_mean)
        for each in products:
            want = each.expected(adds_mean)
            if each.is_exact:
                self.same(each.out, want.float().bfloat16())
                continue
            error, size = (each.out.double() - want).abs(), want.square().mean(-1, keepdim=True).sqrt()
            self.assertEqual(int((error > want.abs() * TOLERANCES["rotate_rows"] + size * 1e-5).sum()), 0)
        for each, x in zip(products, wide):
            want, has_slot = torch.full_like(x, BEFORE), slots >= 0
            want[slots[has_slot].long(), :-1] = each.out[has_slot]
            self.same(x, want, "of kept rows, or more was written")

    @each(case for case in expanded(LISTS["rotate_rows"]) if ON_CUDA or case["tokens"] < 100)
    def test_steps_of_layers(self, dim, tokens, is_exact):
        def product(*shape, **how):
            return Product(dim, *shape, is_exact=is_exact, **how)

        if tokens >= 1000:
            return self.check([product(tokens, 8, 8, 8), product(tokens, 8, 1), product(tokens, 32, 8)], kept=2)
        self.check([product(tokens, 2, 2, 2), product(tokens, 2, 2), product(max(tokens - 2, 0), 12, 2)], kept=2)
        self.check([product(tokens, 3, 1, 3), product(tokens, 3, 3, 1), product(0, 6, 3), product(1, 6, 1)], kept=1)
        self.check([product(tokens, 12, 2, 2, dtype=F32)], adds_mean=True)
        self.check([product(tokens, 12, 1, 2), product(tokens, 6, 6)], adds_mean=True)

    def test_shapes_without_data(self):
        x, slots = torch.empty(3, 2, 128, dtype=BF16, device="meta"), torch.zeros(3, dtype=torch.int32, device="meta")
        rotate([x, x], [x, x], [None, x], [x, x], slots, [x])
        rotate([x], [x], [None], [x], adds_mean=True)
        self.assertIn("Tensor(a!)[] out", str(ops.rotate_rows.default._schema))

    def test_refusals(self):
        own = Product(128, 3, 4, 2)
        x, m, out, slots = own.x, own.matrices, own.out, torch.zeros(3, dtype=torch.int32, device=DEVICE)
        off = torch.full_like(slots, 3)
        on_cpu = (("slots has 3, and there are 3", lambda: rotate([x], [m], [None], [out], off, [out])),)
        on_cuda = (("matrices is on cpu", lambda: rotate([x], [m.cpu()], [None], [out])),
                   ("aligned", lambda: rotate([unaligned(out.shape)], [m], [None], [out])))
        for expected, call in (
                ("there are 5 x", lambda: rotate([x] * 5, [m] * 5, [None] * 5, [out] * 5)),
                ("1 x have 2 matrices", lambda: rotate([x], [m, m], [None], [out])),
                ("kept rows need slots", lambda: rotate([x], [m], [None], [out], None, [out])),
                ("kept rows need slots", lambda: rotate([x], [m], [None], [out], slots)),
                ("slots has 2 entries", lambda: rotate([x], [m], [None], [out], slots[:2], [out])),
                ("slots is Long", lambda: rotate([x], [m], [None], [out], slots.long(), [out])),
                ("kept is [3, 3, 128]", lambda: rotate([x], [m], [None], [out], slots, [out[:, 1:]])),
                ("out is [2, 4, 128]", lambda: rotate([x], [m], [None], [out[:2]])),
                ("x is Half", lambda: rotate([x.half()], [m], [None], [out])),
                ("matrices's rows are not dense", lambda: rotate([x], [m.transpose(1, 2)], [None], [out])),
                ("matrices are [2, 128, 128], not dense", lambda: rotate([x], [torch.cat([m, m])[::2]], [None], [out])),
                ("num_heads must be a multiple of num_matrices", lambda: rotate([x[:, 1:]], [m], [None], [out[:, 1:]])),
                ("means are [2, 64]", lambda: rotate([x], [m], [torch.zeros(2, 64, device=DEVICE)], [out])),
                ("num_heads must be a multiple of num_matrices", lambda: rotate([x], [m[:0]], [None], [out])),
                *(on_cuda if ON_CUDA else on_cpu)):
            self.refused(expected, call)

    def test_windows_need_blocks_and_entries_that_are_there(self):
        def numbers(*shape, dtype=torch.int32):
            return torch.zeros(shape, dtype=dtype, device=DEVICE)

        def step(blocks=1, entries=1, **added):
            of_blocks, of_entries = ([numbers(count + 1, dtype=torch.int64) for _ in range(2)] for count in (blocks, entries))
            arguments = {"table": numbers(1, 1), "starts": numbers(2), "lengths": numbers(1), "written": numbers(1, dtype=torch.int64),
                         "entry_of": of_blocks[0], "block_of": of_entries[0], "read_in": of_entries[1], "room": of_blocks[1]}
            for name, value in added.items():
                arguments[name] += value
            ops.window_step(*arguments.values(), numbers(1), numbers(1), numbers(1, 1), numbers(1), numbers(1, 4), numbers(1), 16, 2, 2, 1)

        for blocks, entries in ((0, 1), (1, 0)):
            self.refused(f"there are {blocks} blocks and {entries} entries", lambda: step(blocks, entries))
        if not ON_CUDA:
            step(lengths=16, written=15)
            for name, value, expected in (
                    ("table", 1, "table has block 1 of 1"), ("table", -1, "table has block -1 of 1"),
                    ("lengths", 17, "table has 16 tokens of a request at most, and a length is 17"), ("lengths", -1, "a length is -1"),
                    ("starts", -1, "starts must rise from 0, and has -1"), ("written", 16, "written has 16, and all must be below 16"),
                    ("entry_of", 1, "entry_of has 1, and all must be below 1"), ("block_of", 2, "block_of has 2, and all must be below 2")):
                self.refused(expected, lambda: step(**{name: value}))


if __name__ == "__main__":
    unittest.main()
