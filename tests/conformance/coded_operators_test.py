# SPDX-License-Identifier: MIT
"""torch.ops.oscar.coded_* against their definitions: coded_operators_test.py [CodedTest]; operators.py says where"""
import math
import unittest

import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from operators import (BEFORE, BF16, CASES, DEVICE, F32, LARGE, ON_CUDA, TOLERANCES, CodedCache, OperatorTest, before, each, expanded, normal,
                       ops, some_of, targets, unaligned)

LISTS = CASES["operators"]
CACHES = list(expanded(LISTS["coded"]))


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


def turning_layer(cache, interleaved, turning, far):
    """A layer whose keys are packed as they were before RoPE: its table, and float64 functions (keys, positions) of rows and (rows, positions,
    how far these moved) of keys."""
    heads, dim, half = cache.heads, cache.dim, turning // 2
    first = torch.arange(half)
    pairs = torch.cat((torch.stack((2 * first, 2 * first + 1) if interleaved else (first, first + half), 1),
                       torch.arange(turning, dim).view(-1, 2)))
    frequency = torch.cat((1e6 ** -(first / half), torch.zeros(dim // 2 - half)))
    basis, inverse, mean = torch.zeros(heads, dim, dim), torch.zeros(heads, dim, dim), torch.randn(heads, dim) * 4
    for head in range(heads):
        coordinates = torch.randperm(dim).view(-1, 2)
        for channels, own in zip(pairs, coordinates):
            matrix = torch.linalg.qr(torch.randn(2, 2))[0] * torch.tensor([0.5, 1.5])
            basis[head, channels[:, None], own], inverse[head, own[:, None], channels] = matrix, matrix.inverse()
    turn = ops.coded_turn(pairs.int(), frequency, basis, inverse, mean=mean, far_frequency=frequency / 3 if far else None).to(DEVICE)
    angle, fast = frequency / 3 if far else frequency, frequency > 2**-9
    basis, inverse, mean, angle, fast, pairs = (x.to(DEVICE) for x in (basis.double(), inverse.double(), mean.double(), angle, fast, pairs))

    def turned(rows, positions, frequency):
        angles = (positions.float()[:, None] * frequency).double()[:, None]
        x, y, out = rows[..., pairs[:, 0]], rows[..., pairs[:, 1]], torch.empty_like(rows)
        out[..., pairs[:, 0]], out[..., pairs[:, 1]] = x * angles.cos() - y * angles.sin(), x * angles.sin() + y * angles.cos()
        return out

    def means(positions):
        return turned(mean.expand(len(positions), -1, -1), positions, torch.where(fast, angle, 0))

    def anchors(positions):
        return positions // 256 * 256 + 128

    def stored(keys, positions):
        rows = turned(keys.double(), anchors(positions), torch.where(fast, 0, -angle)) - means(positions)
        return torch.einsum("thi,hij->thj", rows, basis).bfloat16()

    def keys(rows, positions, moved=0):
        at = positions - moved
        rows = torch.einsum("thi,hij->thj", rows.double(), inverse) + means(at)
        return turned(turned(rows, anchors(at), torch.where(fast, 0, angle)), torch.full_like(at, moved), angle)

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
        found = cache.pack(slots, k=k, **turned)
        share = [int((found != other).sum()) / int((found != 0xA5).sum()) for other in (cache.pack(slots, k=stored(k, positions)), cache.pack(slots, k=k))]
        self.assertLess(share[0], 0.001, "a row of bfloat16 may round to either side")
        self.assertGreater(share[1], 0.1, "keys turn")
        self.same(cache.pack(slots, k=k, v=v, **turned), cache.pack(slots, cache.pack(slots, k=k, **turned), v=v), "values beside")
        cache.pages = cache.pack(slots, found, v=v)
        expected = keys(cache.rows_at(slots[written], 0).bfloat16(), positions[written])
        moved = keys(cache.rows_at(slots[written], 0).bfloat16(), positions[written] + 300, 300)
        for own, values in zip(*(targets(len(slots), cache.heads, dim) for _ in range(2))):
            cache.unpack(slots, k=own, **{**turned, "k_positions": positions + 300}, k_moved=300)
            self.near(own[written], moved, 2**-7)
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
    def test_attention_to_keys_before_rope(self, interleaved=False, turning=1.0, far=False, **shape):
        cache = CodedCache(DEVICE, **shape)
        cache.fill()
        turn, _, cache.keys = turning_layer(cache, interleaved, int(turning * cache.dim), far)
        positions = torch.randint(0, 131072, (len(cache.lengths),), dtype=torch.int32, device=DEVICE)
        positions[0] = 64  # a multiple of a step: most steps of the other sequences have tokens of two blocks of positions
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
            positions = torch.randint(0, 131072, (len(cache.lengths),), dtype=torch.int32, device=DEVICE)
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
        x, positions = normal(3, cache.heads, cache.dim), torch.arange(3, dtype=torch.int32, device=DEVICE)
        on_cuda = [("aligned", {"k": unaligned(x.shape)})] if ON_CUDA else []
        for expected, rows in (
                ("rows neither of keys nor of values", {}), ("k is [2, ", {"k": x[:2]}), ("v is Float", {"v": x.float()}),
                ("k_turn and k_positions must be given together", {"k": x, "k_positions": positions}), ("k_far is of keys that turn", {"k": x, "k_far": True}),
                ("k_turn has 3 bytes", {"k": x, "k_turn": torch.zeros(3, dtype=torch.uint8, device=DEVICE), "k_positions": positions}), *on_cuda):
            self.refused(expected, lambda: cache.pack(slots, **rows))
        for expected, sides in (("room neither for keys nor for values", {}), ("k is [2, ", {"k": x[:2]}), ("v is Float", {"v": x.float()}),
                                ("k_was_far and k_moved are of keys", {"k": x, "k_moved": 3}), ("k_was_far and k_moved are of keys", {"k": x, "k_was_far": True})):
            self.refused(expected, lambda: cache.unpack(slots, **sides))
        k_bits, v_bits, *numbers = cache.format
        if ON_CUDA:
            self.refused("must not increase", lambda: ops.coded_layout(k_bits.flip(1).contiguous(), v_bits, *numbers))
            self.refused("sigmas must be positive", lambda: ops.coded_layout(k_bits, v_bits, *numbers[:2], -numbers[2], numbers[3]))


if __name__ == "__main__":
    unittest.main()
