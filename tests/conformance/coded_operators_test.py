# SPDX-License-Identifier: MIT
"""torch.ops.oscar.coded_* against their definitions: coded_operators_test.py [CodedTest]; operators.py says where"""
import math
import unittest

import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from operators import (BEFORE, BF16, CASES, DEVICE, F32, LARGE, ON_CUDA, TOLERANCES, CodedCache, OperatorTest, before, each, expanded, normal,
                       ops, rotations, some_of, targets, unaligned)

LISTS = CASES["operators"]
CACHES = list(expanded(LISTS["coded"]))
EPSILON = 1e-6


def coded_rows(cache, count, kind):
    """(tokens, heads, d): normal ones of any size, with rows of zeros and of a single value; or what may overflow."""
    x = torch.randn(count, cache.heads, cache.dim, device=DEVICE)
    x *= torch.exp2(torch.randint(-6, 7, (count, cache.heads, 1), device=DEVICE).float())
    if kind == "extreme":
        x *= torch.tensor([1e-38, 1e-20, 1.0, 1e17, 1e30], device=DEVICE)[torch.arange(count, device=DEVICE) % 5][:, None, None]
    elif kind == "small integers":  # many values at the edges between levels
        x = torch.randint(-4, 5, x.shape, device=DEVICE).float()
    x[1::17] = 0
    x[2::17, :, 5:] = 0
    return x.bfloat16()


def finished_by_torch(x, k_norm_weight=None, norm_epsilon=EPSILON, positions=None, cos_sin=None, interleaved=False):
    """As a server: norms in float32, rounded to the weight's type, multiplied, rounded to the row's; pairs in float32, rounded once."""
    if k_norm_weight is not None:
        rows = x.float()
        scale = (rows.pow(2).mean(-1, keepdim=True) + norm_epsilon).double().rsqrt().float()
        x = ((rows * scale).to(k_norm_weight.dtype) * k_norm_weight).bfloat16()
    if cos_sin is None:
        return x
    pairs = torch.arange(cos_sin.shape[1] // 2, device=x.device)
    first, second = (2 * pairs, 2 * pairs + 1) if interleaved else (pairs, pairs + len(pairs))
    cos, sin = (cos_sin.float()[positions.long()][:, None, part] for part in (pairs, pairs + len(pairs)))
    rows = x.float()
    a, b = rows[..., first], rows[..., second]
    rows[..., first], rows[..., second] = a * cos - b * sin, b * cos + a * sin
    return rows.bfloat16()


def cos_sin_of(rotary, dtype=F32):
    angles = torch.arange(500).double()[:, None] * 10000.0 ** -(torch.arange(0, rotary, 2) / rotary)
    return torch.cat((angles.cos(), angles.sin()), 1).to(DEVICE, dtype)


def turning_layer(cache, interleaved, turning, far, ordered=False):
    """ordered: the coordinates of slow pairs are neighbours. A layer whose keys are packed as they were before RoPE: its table, and float64 functions (rows, positions) of keys and of rows."""
    heads, dim, half = cache.heads, cache.dim, turning // 2
    first = torch.arange(half)
    pairs = torch.cat((torch.stack((2 * first, 2 * first + 1) if interleaved else (first, first + half), 1),
                       torch.arange(turning, dim).view(-1, 2)))
    frequency = torch.cat((1e6 ** -(first / half), torch.zeros(dim // 2 - half)))
    basis, inverse, mean = torch.zeros(heads, dim, dim), torch.zeros(heads, dim, dim), torch.randn(heads, dim) * 4
    for head in range(heads):
        coordinates = (torch.arange(dim) if ordered else torch.randperm(dim)).view(-1, 2)
        for channels, own in zip(pairs, coordinates):
            matrix = torch.linalg.qr(torch.randn(2, 2))[0] * torch.tensor([0.5, 1.5])
            basis[head, channels[:, None], own], inverse[head, own[:, None], channels] = matrix, matrix.inverse()
    turn = ops.coded_turn(pairs.int(), frequency, basis, inverse, mean=mean, far_frequency=frequency / 3 if far else None).to(DEVICE)
    angle = frequency / 3 if far else frequency
    basis, inverse, mean, angle, pairs = (x.to(DEVICE) for x in (basis.double(), inverse.double(), mean.double(), angle, pairs))

    def turned(rows, positions, sign):
        angles = (positions.float()[:, None] * angle).double()[:, None]
        x, y, out = rows[..., pairs[:, 0]], rows[..., pairs[:, 1]], torch.empty_like(rows)
        out[..., pairs[:, 0]], out[..., pairs[:, 1]] = (x * angles.cos() - sign * y * angles.sin(), sign * x * angles.sin() + y * angles.cos())
        return out

    def stored(keys, positions):
        return torch.einsum("thi,hij->thj", turned(keys.double(), positions, -1) - mean, basis).bfloat16()

    def keys(rows, positions):
        return turned(torch.einsum("thi,hij->thj", rows.double(), inverse) + mean, positions, 1)

    return turn, stored, keys


class CodedTest(OperatorTest):
    def test_shapes_without_data(self):
        cache = CodedCache("meta", lengths=(40, 7))
        cache.places = torch.empty(len(cache.places), dtype=torch.uint8, device="meta")
        for q in (cache.q, cache.q[:, None].expand(-1, 3, -1, -1)):
            cache.q = q
            out, lse = cache.attend()
            self.assertEqual((out.shape, lse.shape, out.dtype, lse.dtype), (q.shape, q.shape[:-1], F32, F32))
        slots, k = torch.zeros(3, dtype=torch.int32, device="meta"), normal(3, cache.heads, 128, device="meta")
        cache.pack(slots, k=k)
        cache.unpack(slots, k=k, v=k)
        for name, said in (("coded_pack", "Tensor(a!) pages"), ("coded_unpack", "Tensor(b!)? v")):
            self.assertIn(said, str(getattr(ops, name).default._schema))

    def test_sizes_that_torch_compile_does_not_know_are_passed_on_as_symbols(self):
        mode, cache = FakeTensorMode(shape_env=ShapeEnv()), CodedCache("cpu", lengths=(40, 7, 3))
        dynamic = StatelessSymbolicContext([DimDynamic.DYNAMIC, DimDynamic.STATIC, DimDynamic.STATIC])
        cache.q = mode.from_tensor(cache.q, symbolic_context=dynamic)
        cache.windows = [mode.from_tensor(each, static_shapes=True) for each in cache.windows]
        for name, value in list(vars(cache).items()):
            if torch.is_tensor(value) and name != "q":
                setattr(cache, name, mode.from_tensor(value, static_shapes=True))
        with mode:
            out, lse = cache.attend()
        self.assertIsInstance(lse.shape[0], torch.SymInt)
        self.assertEqual((lse.shape[1], out.shape == cache.q.shape, out.dtype, lse.is_contiguous()), (cache.q.shape[1], True, F32, True))

    @each(case | {"kind": kind} for case in CACHES for kind in ("extreme", "small integers", "normal"))
    def test_packed_rows(self, dim, page, kind):
        """Every code is the nearest level's, so that what is read is as near as the step; kernels have the bytes of the CPU."""
        cache = CodedCache(DEVICE, dim, page)
        slots = cache.slots()
        slots[3::11] = -1
        slots = slots[torch.randperm(len(slots), device=DEVICE)].contiguous()
        k, v = (coded_rows(cache, len(slots), kind) for _ in range(2))
        found, written = cache.pack(slots, k=k, v=v), slots >= 0
        self.same(found, cache.pack(slots, cache.pack(slots, k=k), v=v), "keys and values one after another")
        if ON_CUDA:
            self.same(found.cpu(), cache.on_cpu().pack(slots.cpu(), k=k.cpu(), v=v.cpu()))
        for side, rows in enumerate((k, v) if kind == "normal" else ()):
            stored = (cache.reader.bits[side] == 8).repeat_interleave(8, 1).to(DEVICE)
            own, read = rows[written].double()[:, stored], cache.rows_at(slots[written], side, found)[:, stored]
            self.near(read, own, 0.15)

    @each(CACHES)
    def test_rotated_rows(self, dim, page):
        """bf16((x - mean) R) with float32 sums: of the bytes of rows that torch rotated nearly all are the same, and errors are as large."""
        cache = CodedCache(DEVICE, dim, page)
        slots, heads, matrices = cache.slots(), cache.heads, [rotations(count, dim) for count in (cache.heads, 1)]
        mean = 3 * torch.randn(heads, dim, device=DEVICE)
        k, v = (normal(len(slots), heads, dim).float() + mean).bfloat16(), normal(len(slots), heads, dim)
        found = cache.pack(slots, k=k, v=v, k_rotation=matrices[0], v_rotation=matrices[1][0], k_mean=mean)
        exact = [(rows.transpose(0, 1) @ rotation.double()).transpose(0, 1) for rows, rotation in zip((k.double() - mean, v.double()), matrices)]
        plain = cache.pack(slots, k=exact[0].bfloat16(), v=exact[1].bfloat16())
        for side, rows in enumerate(exact):
            mine, theirs = (cache.rows_at(slots, side, pages) for pages in (found, plain))
            self.assertGreater(float((mine == theirs).float().mean()), 0.96)
            self.assertLess(abs(float((mine - rows).norm() / (theirs - rows).norm()) - 1), 1e-3)

    @each(case | {"interleaved": interleaved, "turning": turning, "far": far} for case in CACHES
          for interleaved, turning, far in ((False, 1.0, False), (True, 1.0, True), (False, 0.5, True)))
    def test_keys_before_rope(self, **case):
        self.check_keys_before_rope(**case)

    def test_small_keys_before_rope(self):
        self.check_keys_before_rope(64, 16, True, 0.5, True)

    def check_keys_before_rope(self, dim, page, interleaved, turning, far):
        """Packed as they were before RoPE, and read as keys, at any positions: as float64 has it."""
        cache = CodedCache(DEVICE, dim, page)
        turn, stored, keys = turning_layer(cache, interleaved, int(turning * dim), far)
        slots = cache.slots()[torch.randperm(len(cache.slots()), device=DEVICE)].contiguous()
        slots[3::11] = -1
        written, positions = slots >= 0, torch.randint(0, 131072, (len(slots),), dtype=torch.int32, device=DEVICE)
        turned = {"k_turn": turn, "k_positions": positions, "k_far": far}
        k, v = coded_rows(cache, len(slots), "normal"), coded_rows(cache, len(slots), "normal")
        rotation = rotations(cache.heads, dim)
        found = cache.pack(slots, k=k, **turned)
        share = [int((found != other).sum()) / int((found != 0xA5).sum()) for other in (cache.pack(slots, k=stored(k, positions)), cache.pack(slots, k=k))]
        self.assertLess(share[0], 0.001, "a row of bfloat16 may round to either side")
        self.assertGreater(share[1], 0.1, "keys turn")
        for more in ({}, {"v_rotation": rotation}):
            self.same(cache.pack(slots, k=k, v=v, **turned, **more), cache.pack(slots, cache.pack(slots, k=k, **turned), v=v, **more), "values beside")
        cache.pages = cache.pack(slots, found, v=v)
        expected = keys(cache.rows_at(slots[written], 0).bfloat16(), positions[written])
        for own, values in zip(*(targets(len(slots), cache.heads, dim) for _ in range(2))):
            cache.unpack(slots, k=own, v=values, **turned)
            sizes = expected.abs() * 2**-8 + expected.abs().amax(-1, keepdim=True) * 1e-5
            self.assertEqual(int(((own[written].double() - expected).abs() > sizes).sum()), 0)
            self.assert_rest_is_untouched(own, written)
            plain = torch.full_like(values, BEFORE)
            cache.unpack(slots, v=plain)
            self.same(values, plain, "values do not turn")

    @each(CACHES)
    def test_unpacked_rows_are_those_of_the_header(self, dim, page):
        cache = CodedCache(DEVICE, dim, page)
        halves = [sum(-(-int(bits.sum()) // 8) % 2 for bits in head) for head in zip(*cache.reader.bits)]
        self.assertTrue(2 in halves and 0 in halves, "heads with 8-byte pieces of both sides, and of none")
        kind = "extreme" if page == 64 else "normal"
        cache.pages = cache.pack(cache.slots(), **{side: coded_rows(cache, len(cache.slots()), kind) for side in "kv"})
        slots = some_of(cache.slots())
        read = slots >= 0
        expected = [cache.rows_at(slots[read], side) for side in range(2)]
        for k, v in zip(*(targets(len(slots), cache.heads, dim) for _ in range(2))):
            cache.unpack(slots, k=k, v=v)
            for found, exact in zip((k, v), expected):
                self.assertEqual(int(((found[read].double() - exact).abs() > exact.abs() * TOLERANCES["coded_unpack"]).sum()), 0)
                self.assert_rest_is_untouched(found, read)
            for name, whole in (("k", k), ("v", v)):  # one side alone
                own = torch.full_like(whole, BEFORE)
                cache.unpack(slots, **{name: own})
                self.same(own, whole, name)
        if ON_CUDA:
            found = before(*k.shape).cpu()
            cache.on_cpu().unpack(slots.cpu(), k=found)
            self.same(found, k.cpu())

    @each(CACHES)
    def test_attention_is_that_of_float64(self, dim, page):
        cache = CodedCache(DEVICE, dim, page)
        slots, rows = cache.slots(), {side: normal(int(cache.lengths.sum()), cache.heads, dim) for side in "kv"}
        cache.pages = cache.pack(slots, **rows)
        found = cache.attend()
        self.check_attention(cache, found)
        if ON_CUDA:
            def step(workspace):
                cache.pack(slots, cache.pages, **rows)
                return cache.attend(workspace=workspace)[0]

            self.check_graph(step, found[0])
        cache.q = normal(len(cache.lengths), 3, *cache.q.shape[1:])  # the newest tokens of the window, each of which sees those before it
        self.check_attention(cache, cache.attend())

    def check_shape(self, split_batch=0, operands=None, **shape):
        """operands: products that a head's values take, of which the kernel is compiled for some numbers."""
        cache = CodedCache(DEVICE, **shape)
        cache.fill()
        self.assertIn(operands, (None, cache.layout[3]) if ON_CUDA else (operands,))
        self.check_decode(cache, split_batch)

    @each(expanded(LISTS["coded_decode"]["small"]))
    def test_small_shapes(self, **shape):
        self.check_shape(**shape)

    @each(LARGE(LISTS["coded_decode"]))
    def test_shapes(self, **shape):
        self.check_shape(**shape)

    @each([*expanded(LISTS["coded_decode"]["turned"]), *(expanded(LISTS["coded_decode"]["turned, large"]) if ON_CUDA else ())])
    def test_attention_to_keys_before_rope(self, interleaved=False, turning=1.0, far=False, ordered=False, **shape):
        cache = CodedCache(DEVICE, **shape)
        cache.fill()
        turn, _, cache.keys = turning_layer(cache, interleaved, int(turning * cache.dim), far, ordered)
        positions = torch.randint(0, 20000, (len(cache.lengths),), dtype=torch.int32, device=DEVICE)
        cache.turned = {"k_turn": turn, "k_positions": positions, "k_far": far}
        self.check_decode(cache)

    @each({"dim": dim, "per_head": per_head, "turns": turns, "soft_cap": cap} for dim in ((64, 128, 256) if ON_CUDA else (64,))
          for per_head in ((1, 4, 6, 16) if ON_CUDA else (4,)) for turns in (False, True) for cap in (0.5, 30))
    def test_soft_caps(self, turns, **shape):
        """Scores of a spread of 5 or so; what lies behind a sequence's end, and a query of zeros, have a score of 0 or none."""
        cache = CodedCache(DEVICE, lengths="700 64 9" if ON_CUDA else "40 9 1", most=3, tokens=2, peak=5, **shape)
        cache.q[1, 0, 0] = 0
        cache.fill()
        if turns:
            turn, _, cache.keys = turning_layer(cache, False, cache.dim, False)
            positions = torch.randint(0, 20000, (len(cache.lengths),), dtype=torch.int32, device=DEVICE)
            cache.turned = {"k_turn": turn, "k_positions": positions, "k_far": False}
        self.check_decode(cache)

    @each({"dim": dim, "per_head": per_head, "peak": peak} for dim in (64, 128) for per_head in (1, 4, 6) for peak in (1, 24))
    def test_scales_far_apart(self, **shape):
        """Weights times scales are integers of two bytes up to four query heads: what rounding leaves out of each of a step's 64 tokens is up to
        2^-17 of the highest weight times the highest scale, which is some 2^-8 of a token with all weight and a scale 2^-6 as high."""
        cache = CodedCache(DEVICE, lengths="700 64 9", most=3, **shape)
        cache.fill(least=44)
        self.check_attention(cache, cache.attend(), more=2**-8)

    def test_a_sequence_alone(self):
        for tokens in (None, 2):
            self.check_neighbours(CodedCache(DEVICE, most=4, lengths="900 70 3000" if ON_CUDA else "9 7 30", windows="19 5 10", tokens=tokens))

    def options(self, cache, weight=None, rotary=None, interleaved=False, table="float32", positions="int64"):
        """rotary: channels that are turned; up to 0: so many fewer than all."""
        found, count = {}, len(cache.slots())
        if weight is not None:
            found |= {"k_norm_weight": (0.5 + torch.rand(cache.dim, device=DEVICE)).to(getattr(torch, weight)), "norm_epsilon": EPSILON}
        if rotary is not None:
            rotary += cache.dim if rotary <= 0 else 0
            found |= {"positions": torch.randint(0, 500, (count,), device=DEVICE).to(getattr(torch, positions)),
                      "cos_sin": cos_sin_of(rotary, getattr(torch, table)), "interleaved": interleaved}
        return found

    @each({"dim": dim, "page": page, "rotated": rotated, **lacking} for dim, page in ((64, 4), (128, 16), (256, 64))
          for lacking in ({}, *LISTS["norm_rope"]) for rotated in (False, True))
    def test_keys_that_lack_their_norm_and_rope(self, dim, page, rotated, **lacking):
        """Pages and finished keys have the bytes of keys that plain torch finished, packed without the option. Rows are small whole numbers
        times powers of two, whose squares add up exactly in any order. Nothing lacking: finished rows are a copy."""
        cache = CodedCache(DEVICE, dim, page)
        slots, options = cache.slots(), self.options(cache, **lacking)
        slots[3::11] = -1
        shape = len(slots), cache.heads + 1, 2 * dim
        x = torch.randint(-127, 128, shape, device=DEVICE) * torch.exp2(torch.randint(-6, 7, (*shape[:2], 1), device=DEVICE).float())
        x[1::17] = 0
        x = x.bfloat16()[:, 1:, dim:]  # a part of wider rows, as a server's projection has them
        others, v = {}, normal(len(slots), cache.heads, dim)
        if rotated:
            others = {"k_rotation": rotations(cache.heads, dim), "v_rotation": rotations(cache.heads, dim),
                      "k_mean": torch.randn(cache.heads, dim, device=DEVICE)}
        rows = finished_by_torch(x, **options)
        self.assertTrue(not options or not torch.equal(rows, x))
        expected, wide = cache.pack(slots, k=rows, v=v, **others), before(*shape)
        finished = wide[:, :-1, :dim]
        found = cache.pack(slots, k=x, v=v, **options, **others, k_finished=finished)
        self.same(finished, rows)
        self.same(found, expected)
        finished.fill_(BEFORE)
        self.assertEqual(float((wide.float() - BEFORE).abs().max()), 0, "more than the finished rows was written")
        keys = {name: value for name, value in others.items() if name.startswith("k_")}  # alone: without finished rows, then in place
        expected = cache.pack(slots, k=rows, **keys)
        self.same(cache.pack(slots, k=x, **options, **keys), expected)
        self.same(cache.pack(slots, k=x, **options, **keys, k_finished=x), expected)
        self.same(x, rows)

    @each({"dim": dim, "page": page, **lacking} for dim, page in ((64, 4), (128, 16), (256, 64)) for lacking in
          ({"weight": "bfloat16", "rotary": 0}, {"weight": "float32", "rotary": 32, "table": "bfloat16", "positions": "int32"}))
    def test_finished_keys_of_any_size(self, dim, page, **lacking):
        """Near float64: a server rounds normed rows, their products with the weight, and turned pairs, to 8 bits; kernels have the bits of
        the CPU."""
        cache = CodedCache(DEVICE, dim, page)
        slots, options = cache.slots(), self.options(cache, **lacking)
        x = (torch.randn(len(slots), cache.heads, dim, device=DEVICE) *
             torch.exp2(torch.randint(-9, 10, (len(slots), 1, 1), device=DEVICE).float())).bfloat16()
        finished = torch.empty_like(x)
        cache.pack(slots, k=x, k_finished=finished, **options)
        rows = x.double()
        y = rows * (rows.pow(2).mean(-1, keepdim=True) + EPSILON).rsqrt() * options["k_norm_weight"].double()
        half = options["cos_sin"].shape[1] // 2
        cos, sin = options["cos_sin"].double()[options["positions"].long()][:, None].chunk(2, -1)
        a, b = y[..., :half], y[..., half:2 * half]
        exact, sizes = y.clone(), y.abs()
        exact[..., :half], exact[..., half:2 * half] = a * cos - b * sin, b * cos + a * sin
        sizes[..., :half] = sizes[..., half:2 * half] = a.abs() + b.abs()
        self.assertEqual(int(((finished.double() - exact).abs() > TOLERANCES["norm_rope"] * sizes).sum()), 0)
        if ON_CUDA:
            expected, moved = torch.empty(x.shape, dtype=BF16), {name: x.cpu() if torch.is_tensor(x) else x for name, x in options.items()}
            cache.on_cpu().pack(slots.cpu(), k=x.cpu(), k_finished=expected, **moved)
            self.same(finished.cpu(), expected)

    def test_nothing_to_read(self):
        """A batch of none has results of none; where no sequence has a history, there need be no pages."""
        cache = CodedCache(DEVICE, lengths=(0, 0), windows="19 5")
        found = cache.attend()
        self.check_attention(cache, found)
        cache.pages = cache.pages[:0]
        self.same(cache.attend()[0], found[0])
        for name in ("table", "lengths", "window_table", "window_lengths", "q"):
            setattr(cache, name, getattr(cache, name)[:0])
        out, lse = cache.attend()
        self.assertEqual((out.shape, lse.shape), (cache.q.shape, cache.q.shape[:-1]))
        cache.table = torch.empty(0, 1 << 27, dtype=torch.int32, device=DEVICE)
        cache.pages = torch.empty(1, cache.page, cache.layout[5], dtype=torch.uint8, device=DEVICE)
        self.refused("page_table has room for 2147483648 tokens", cache.attend)

    if not ON_CUDA:  # kernels do not look at these numbers

        def test_tokens_out_of_range_are_refused(self):
            cache = CodedCache(DEVICE, 64, 16, (40, 9, 1))
            slots, x, pages = cache.slots(), normal(50, cache.heads, 64), cache.pages
            for expected, name, value in (
                    ("page_table has 48 tokens of a sequence at most, and a length is 49", "lengths", cache.lengths + 9),
                    ("and a length is -8", "lengths", cache.lengths - 9), ("page_table has page 9 of 9", "table", cache.table * 0 + 9),
                    ("page_table has page -1 of 9", "table", cache.table * 0 - 1), ("page_table has 0 tokens", "pages", pages[:, :0]),
                    ("window_pages has 16 tokens of a sequence at most, and a length is 17", "window_lengths", cache.window_lengths + 8),
                    ("window_pages has page 3 of 3", "window_table", cache.window_table * 0 + 3),
                    ("window_pages has 0 tokens", "windows", [x[:, :0] for x in cache.windows])):
                self.changed(cache, expected, name, value)
            for slot, pages in ((144, pages), (0, pages[:, :0])):
                slots[7], cache.pages = slot, pages
                said = f"slots has {slot}, and there are {slot}" if slot else "and there are 0"
                self.refused(said, lambda: cache.pack(slots, k=x))
                self.refused(said, lambda: cache.unpack(slots, k=x))

    def test_refusals(self):
        cache = CodedCache(DEVICE, 256, 64, (40, 9, 1))
        k_window, v_window = cache.windows
        for other in (v_window[1:], v_window[:, :8]):
            self.changed(cache, "k_window is [3, 16, ", "windows", [k_window, other])
        for cap in (-1.0, 2.0**-11, 1e6, 2e38, math.nan):
            self.changed(cache, "soft_cap must be from 2^-10 to 2^14", "soft_cap", cap)
        for scale in (0.0, -1.0, math.inf):
            self.refused("softmax_scale must be positive", lambda: cache.attend(softmax_scale=scale))
        self.changed(cache, "query_tokens must be 1 to 8", "q", cache.q[:, None].repeat(1, 9, 1, 1))
        self.changed(cache, "q is ", "q", cache.q.float())
        self.changed(cache, "q is not contiguous", "q", cache.q.transpose(0, 1).contiguous().transpose(0, 1))
        self.changed(cache, "num_q_heads", "q", cache.q[:, :2].contiguous())
        if ON_CUDA:
            self.changed(cache, "is on cpu", "lengths", cache.lengths.cpu())
            for number in (2, 3, 4):
                layout = [-1 if i == number else each for i, each in enumerate(cache.layout)]
                self.changed(cache, "layout must be what", "layout", layout)
            space = torch.zeros((1 << 24) + 8, dtype=torch.uint8, device=DEVICE)
            self.refused("16-byte aligned", lambda: cache.attend(workspace=space[8:]))
        self.changed(cache, "q has 128 channels", "q", cache.q[..., :128].contiguous())
        self.changed(cache, "layout has 2 numbers", "layout", [1, 2])
        self.changed(cache, "pages must be (pages, page_size", "pages", cache.pages[..., :16])
        self.changed(cache, "page_table and its lengths have 2", "table", cache.table[:2])
        self.changed(cache, "the layout is not theirs", "places", cache.places[:64])
        slots = torch.zeros(3, dtype=torch.int32, device=DEVICE)
        x, norm, rope = normal(3, cache.heads, cache.dim), self.options(cache, "float32"), self.options(cache, None, 64)
        rope["positions"] = rope["positions"][:3]
        on_cuda = (
            ("a mean needs a rotation", {"k": x, "k_mean": torch.zeros(1, cache.dim, device=DEVICE)}),
            ("both have rotations", {"k": x, "v": x, "k_rotation": torch.zeros(cache.dim, cache.dim, dtype=BF16, device=DEVICE)}),
            ("k_norm_weight is on cpu", {"k": x, **norm, "k_norm_weight": norm["k_norm_weight"].cpu()}),
            ("aligned", {"k": x, "k_finished": unaligned(x.shape)}))
        for expected, rows in (
                ("rows neither of keys nor of values", {}), ("k is [2, ", {"k": x[:2]}), ("v is Float", {"v": x.float()}),
                ("positions and cos_sin must be given together", {"k": x, "positions": rope["positions"]}),
                ("positions and cos_sin must be given together", {"k": x, "cos_sin": rope["cos_sin"]}),
                ("of keys, and there are none", {"v": x, **norm}), ("norm_epsilon", {"k": x, "k_norm_weight": norm["k_norm_weight"]}),
                ("k_norm_weight has 8 channels", {"k": x, **norm, "k_norm_weight": norm["k_norm_weight"][:8]}),
                ("k_norm_weight is Half, not float32 or bfloat16", {"k": x, **norm, "k_norm_weight": norm["k_norm_weight"].half()}),
                ("positions has 2 tokens", {"k": x, **rope, "positions": rope["positions"][:2]}),
                ("k_turn and k_positions must be given together", {"k": x, "k_positions": rope["positions"].int()}),
                ("k_far is of keys that turn", {"k": x, "k_far": True}),
                ("k_turn has 3 bytes", {"k": x, "k_turn": torch.zeros(3, dtype=torch.uint8, device=DEVICE), "k_positions": rope["positions"].int()}),
                ("positions is Float", {"k": x, **rope, "positions": rope["positions"].float()}),
                ("cos_sin is Double", {"k": x, **rope, "cos_sin": rope["cos_sin"].double()}),
                ("cos_sin is Half, not float32 or bfloat16", {"k": x, **rope, "cos_sin": rope["cos_sin"].half()}),
                ("cos_sin is not contiguous", {"k": x, **rope, "cos_sin": rope["cos_sin"][:, :32]}),
                ("rotary_dim must be a multiple of 8", {"k": x, **rope, "cos_sin": rope["cos_sin"][:, :12].contiguous()}),
                ("rotary_dim must be a multiple of 8", {"k": x, **rope, "cos_sin": cos_sin_of(2 * cache.dim)}),
                ("interleaved pairs need cos_sin", {"k": x, "interleaved": True}), ("k_finished is [2, ", {"k": x, "k_finished": x[:2]}),
                *(on_cuda if ON_CUDA else ())):
            self.refused(expected, lambda: cache.pack(slots, **rows))
        for expected, sides in (("room neither for keys nor for values", {}), ("k is [2, ", {"k": x[:2]}), ("v is Float", {"v": x.float()})):
            self.refused(expected, lambda: cache.unpack(slots, **sides))
        k_bits, v_bits, *numbers = cache.format
        if ON_CUDA:
            self.refused("must not increase", lambda: ops.coded_layout(k_bits.flip(1).contiguous(), v_bits, *numbers))
            self.refused("sigmas must be positive", lambda: ops.coded_layout(k_bits, v_bits, *numbers[:2], -numbers[2], numbers[3]))


if __name__ == "__main__":
    unittest.main()
