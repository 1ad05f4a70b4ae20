# SPDX-License-Identifier: MIT
"""torch.ops.oscar.int2_*, and rotate_rows, against their definitions: operators_test.py [Int2Test|RotateTest]; operators.py says where"""
import unittest

import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from operators import (BEFORE, BF16, CASES, DEVICE, F32, LARGE, ON_CUDA, TOLERANCES, Int2Cache, OperatorTest, before, each, expanded, normal, ops,
                       rotations, some_of, targets, unaligned, unpacked)
import row_codecs  # noqa: E402

LISTS = CASES["operators"]
# What servers can read of the row codecs that backends are tested on; kernels take fewer.
SERVED = [codec for codec in expanded(CASES["codecs"]["small"] + CASES["codecs"]["medium"])
          if codec.get("levels", 4) == 4 and codec.get("search", "sort") == "sort" and 128 % (codec.get("group") or 128) == 0
          and not (ON_CUDA and (codec.get("grid") == "lloyd-max" or codec.get("group", 0) in (1, 16)))]


class Int2Test(OperatorTest):
    def test_shapes_without_data(self):
        cache = Int2Cache("meta", (40, 7), 5)
        out, lse = cache.attend()
        self.assertEqual((out.shape, lse.shape, out.dtype, lse.dtype), ((2, 8, 128), (2, 8), F32, F32))
        ops.int2_pack(cache.q[:, :2], cache.lengths, cache.codes[0], cache.params[0])
        ops.int2_unpack(cache.lengths, cache.codes[0], cache.params[0], cache.q)
        for name, said in (("int2_pack", "Tensor(a!) codes"), ("int2_unpack", "Tensor(a!) out")):
            self.assertIn(said, str(getattr(ops, name).default._schema))

    def test_sizes_that_torch_compile_does_not_know_are_passed_on_as_symbols(self):
        mode, cache = FakeTensorMode(shape_env=ShapeEnv()), Int2Cache("cpu", (40, 7, 3), 5)
        dynamic = StatelessSymbolicContext([DimDynamic.DYNAMIC, DimDynamic.STATIC, DimDynamic.STATIC])
        cache.q = mode.from_tensor(cache.q, symbolic_context=dynamic)
        for name, value in list(vars(cache).items()):
            if isinstance(value, list):
                setattr(cache, name, [mode.from_tensor(each, static_shapes=True) for each in value])
            elif torch.is_tensor(value) and name != "q":
                setattr(cache, name, mode.from_tensor(value, static_shapes=True))
        with mode:
            out, lse = cache.attend()
        self.assertIsInstance(lse.shape[0], torch.SymInt)
        self.assertEqual((lse.shape[1], out.shape == cache.q.shape, out.dtype, lse.is_contiguous()), (8, True, F32, True))

    @each(SERVED)
    def test_packed_rows_are_those_of_the_formulas(self, grid="minmax", levels=4, group=0, clip=0.0, search="sort", scale="float32"):
        x, slots = 3 * normal(50, 3, 128), torch.randperm(64, device=DEVICE)[:50].int()
        slots[7] = -1
        codes = torch.full((4, 16, 3, 32), 255, dtype=torch.uint8, device=DEVICE)
        params = torch.full((4, 16, 3, 128 // (group or 128), 2), -7.0, dtype=getattr(torch, scale), device=DEVICE)
        ops.int2_pack(x, slots, codes, params, grid=grid, clip_ratio=clip)
        expected = row_codecs.Codec(grid, levels, group, clip, search, scale).quantized(x.float().cpu().transpose(0, 1).numpy())
        written, others = slots >= 0, sorted(set(range(64)) - set(slots.tolist()))
        found, wanted = unpacked(codes, params, slots[written]).cpu(), torch.from_numpy(expected).transpose(0, 1)[written.cpu()]
        self.assertLess(float(((found - wanted).abs() - 1e-7 * wanted.abs()).max()), TOLERANCES["int2_pack"])
        self.assertTrue(bool((params.flatten(0, 1)[others] == -7).all()) and len(others) == 15)

    @each(expanded(LISTS["int2_unpack"]))
    def test_unpacked_rows_have_the_bits_of_the_formula(self, dim, group, params, page):
        """Of pools as vLLM's blocks have them: the rows of a head lie behind each other."""
        tokens, heads, groups = 333 if ON_CUDA else 40, 3, dim // (group or dim)
        count = tokens // page + 2
        codes = torch.randint(0, 256, (count, heads, page, dim // 4), dtype=torch.uint8, device=DEVICE).transpose(1, 2)
        scales = torch.exp2(torch.randint(-20, 12, (count, heads, page, groups, 1), device=DEVICE).float()) * 1.1
        pairs = torch.cat([scales, 1.5 + 2 * torch.randn_like(scales)], -1).to(getattr(torch, params)).transpose(1, 2)
        slots = some_of(torch.randperm(count * page, device=DEVICE)[:tokens].int())
        read = slots >= 0
        for out in targets(tokens, heads, dim):
            ops.int2_unpack(slots, codes, pairs, out)
            self.same(out[read], unpacked(codes, pairs, slots[read]).bfloat16())
            self.assert_rest_is_untouched(out, read)

    @each(LISTS["int2_decode"])
    def test_attention_is_that_of_float64(self, group, params, clip):
        cache = Int2Cache(DEVICE, (500, 33, 1) if ON_CUDA else (60, 33, 0), 9, group, params)
        rotation = rotations(2, 128)
        for codes, pairs in zip(cache.codes, cache.params):
            rows = normal(int(cache.lengths.sum()), 2, 128)
            ops.int2_pack(rows, cache.slots(), codes, pairs, rotation=rotation, clip_ratio=clip)
            self.near(unpacked(codes, pairs, cache.slots()), (rows.float().transpose(0, 1) @ rotation.float()).transpose(0, 1), 0.6)
        cache.window_lengths[2] = 0  # on the CPU there is no token at all
        found = cache.attend()
        self.check_attention(cache, found, "INT2")
        if ON_CUDA:
            self.check_graph(lambda workspace: cache.attend(workspace=workspace)[0], found[0])

    def check_shape(self, split_batch=0, **shape):
        cache = Int2Cache(DEVICE, **shape)
        cache.fill()
        self.check_decode(cache, "INT2", split_batch)

    @each(expanded(LISTS["int2_decode_shapes"]["small"]))
    def test_small_shapes(self, **shape):
        self.check_shape(**shape)

    @each(LARGE(LISTS["int2_decode_shapes"]))
    def test_shapes(self, **shape):
        self.check_shape(**shape)

    def test_a_sequence_alone(self):
        self.check_neighbours(Int2Cache(DEVICE, "900 70 3000" if ON_CUDA else "9 7 30", "32 5 31", window_page=32))

    def check_packed(self, tokens, dim, heads=3, group=0, params="float32", clip=0.96, page=16, turned=0):
        """Rows of every kind have the bytes of the CPU. turned: by so many matrices, whose products are exact in any order."""
        x = torch.randn(tokens, heads, dim)
        kind, i = torch.arange(tokens * heads).reshape(tokens, heads, 1) % 8, torch.arange(x.numel()).reshape(x.shape)
        for number, rows in ((1, x.round()), (2, torch.where(i % 3 == 0, 0.0, -0.0)), (3, torch.where(i % 5 == 0, -0.0, x.abs())),
                             *(() if turned else ((4, torch.full_like(x, -5)), (5, x * 1e30), (6, x * 1e-36)))):
            x = torch.where(kind == number, rows, x)
        signs = [[[(-1) ** ((a & b).bit_count() + (b >> h & 1)) for b in range(dim)] for a in range(dim)] for h in range(turned)]
        rotation = torch.tensor(signs, dtype=BF16) / 16 if turned else None
        x, slots = (x.round() if turned else x).bfloat16(), torch.randperm((tokens // page + 3) * page)[:tokens].int()
        slots[tokens // 2] = -1
        pages, both = tokens // page + 3, []
        for device in ("cpu", DEVICE):
            codes = torch.full((pages, heads, page, dim // 4), 0xEE, dtype=torch.uint8, device=device)
            pairs = torch.full((pages, heads, page, dim // (group or dim), 2), -7.0, dtype=getattr(torch, params), device=device)
            own = rotation if rotation is None else rotation.to(device)[0 if turned == 1 else slice(None)]
            ops.int2_pack(x.to(device), slots.to(device), codes.transpose(1, 2), pairs.transpose(1, 2), rotation=own, clip_ratio=clip)
            both.append((codes.cpu(), pairs.cpu()))
        for found, expected in zip(*both):
            self.same(found, expected)

    @each(expanded(LISTS["int2_pack"]["small"]) if ON_CUDA else ())  # on a CPU it would be held to itself
    def test_small_packed_rows_have_the_bytes_of_the_cpu(self, **shape):
        self.check_packed(**shape)

    @each(LARGE(LISTS["int2_pack"]))
    def test_packed_rows_have_the_bytes_of_the_cpu(self, **shape):
        self.check_packed(**shape)

    @each([{"rotated": False}, {"rotated": True}])
    def test_heads_with_ranks_of_their_own(self, rotated):
        """They have the bytes of each packed alone by its ratio."""
        ratios, heads, dim = [0.0, 0.5, 0.92, 1.0], 4, 128
        x, slots = normal(70, heads, dim), torch.randperm(80, device=DEVICE)[:70].int()
        ranks = torch.tensor([min(int(ratio * dim), dim - 1) if ratio > 0 else -1 for ratio in ratios], dtype=torch.int32, device=DEVICE)
        rotation = rotations(heads, dim) if rotated else None
        pools = [(torch.zeros(5, 16, heads, dim // 4, dtype=torch.uint8, device=DEVICE), torch.zeros(5, 16, heads, 1, 2, device=DEVICE))
                 for _ in range(2)]
        ops.int2_pack(x, slots, *pools[0], rotation=rotation, clip_ranks=ranks)
        for head, ratio in enumerate(ratios):
            own = slice(head, head + 1)
            ops.int2_pack(x[:, own], slots, *(pool[:, :, own] for pool in pools[1]), clip_ratio=ratio,
                          rotation=None if rotation is None else rotation[own])
        for found, expected in zip(*pools):
            self.same(found, expected)

    def test_refusals(self):
        cache = Int2Cache(DEVICE)
        self.changed(cache, "q is ", "q", cache.q.float())
        self.changed(cache, "q is not contiguous", "q", cache.q.transpose(0, 1).contiguous().transpose(0, 1))
        self.changed(cache, "v_codes has 16 bytes a row", "codes", [cache.codes[0], cache.codes[1][..., :16]])
        self.changed(cache, "pages and its lengths have 2", "table", cache.table[:2])
        self.changed(cache, "num_q_heads", "q", cache.q[:, :3].contiguous())
        x, slots = normal(3, 2, 128), torch.zeros(3, dtype=torch.int32, device=DEVICE)
        pools, out = (cache.codes[0], cache.params[0]), before(3, 2, 128)
        for expected, options in (("grid is \"best\"", {"grid": "best"}), ("clip_ratio must", {"clip_ratio": 2.0}),
                                  ("clip_ranks has 1 heads", {"clip_ranks": slots[:1]})):
            self.refused(expected, lambda: ops.int2_pack(x, slots, *pools, **options))
        self.refused("slots has 2 entries", lambda: ops.int2_pack(x, slots[:2], *pools))
        for expected, given in (("out is [3, 2, 128], not [2, ", (slots[:2], *pools, out)), ("codes has 16 bytes a row", (slots, pools[0][..., :16], pools[1], out)),
                                ("params is Long", (slots, pools[0], pools[1].long(), out)), ("slots is Long", (slots.long(), *pools, out)),
                                ("differ in pages", (slots, pools[0], pools[1][:1], out))):
            self.refused(expected, lambda: ops.int2_unpack(*given))
        if ON_CUDA:
            self.changed(cache, "is on cpu", "lengths", cache.lengths.cpu())
            self.refused("aligned", lambda: ops.int2_unpack(slots, *pools, unaligned(out.shape)))


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
                *(on_cuda if ON_CUDA else ())):
            self.refused(expected, call)


if __name__ == "__main__":
    unittest.main()
