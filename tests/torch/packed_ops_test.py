# SPDX-License-Identifier: MIT
"""torch.ops.oscar.int2_* and coded_* against their definitions: packed_ops_test.py [Int2Test|CodedTest[.test_…]]

On the CPU by kernels/reference; on a GPU by the kernels if OSCAR_TEST_DEVICE=cuda, whose bytes must be those of the CPU; exit status 77 if
there is none. Needs torch and numpy alone.
"""
import os
import sys
import unittest
from pathlib import Path

try:
    import numpy as np
    import torch
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
except ImportError as missing:
    print(f"skipped: {missing}; run scripts/setup.sh --tests")
    sys.exit(77)

PROJECT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(PROJECT / "tests/bench"), str(PROJECT / "scripts/reference")]
import row_codecs  # noqa: E402
from coded_library import CodedFormat, decode_rows  # noqa: E402

DEVICE = os.environ.get("OSCAR_TEST_DEVICE", "cpu")
ON_CUDA = DEVICE == "cuda"
torch.ops.load_library(os.environ["OSCAR_TORCH_LIBRARY"])
ops = torch.ops.oscar
PAGE, HEADS, KV_HEADS, DIM = 16, 8, 2, 128
BEFORE = 7.0  # what rows hold that are not to be written
EPSILON = 1e-6
BF16, F32, F16 = torch.bfloat16, torch.float32, torch.float16

# Bits of blocks: all widths, runs that are cut at bytes, an odd and an even number of bytes, one class only, nothing at all.
# A head's values have the plan of the next head: in each size some head has 8-byte pieces of both.
PLANS = {64: ([8, 7, 6, 5, 4, 3, 2, 1], [3] * 8, [2] * 8, [4, 4, 4, 4, 0, 0, 0, 0], [3, 3, 3, 1, 1, 0, 0, 0], [1] + [0] * 7, [0] * 8),
         128: ([8, 4, 4, 4, 2, 2, 2, 2, 2, 1, 1, 0, 0, 0, 0, 0], [2] * 16, [8, 7, 7, 6, 6, 6, 5, 5, 5, 4, 4, 4, 4, 4, 3, 2],
               [1] * 9 + [0] * 7, [3] * 11 + [0] * 5, [2] * 10 + [1] * 3 + [0] * 3),
         256: ([8, 6, 5, 4, 4, 4] + [2] * 12 + [1] * 10 + [0] * 4, [5, 3, 3] + [1] * 22 + [0] * 7, [2] * 32, [3] * 3 + [1] * 20 + [0] * 9)}


def normal(*shape, device=DEVICE):
    return torch.randn(shape, device=device).bfloat16()


def targets(tokens, heads, dim):
    """bfloat16 (tokens, heads, d) of both layouts that attention takes, and a part of wider rows."""
    yield torch.full((tokens, heads, dim), BEFORE, dtype=BF16, device=DEVICE)
    yield torch.full((heads, tokens + 3, dim), BEFORE, dtype=BF16, device=DEVICE)[:, 2:-1].transpose(0, 1)
    yield torch.full((tokens, heads + 1, 2 * dim), BEFORE, dtype=BF16, device=DEVICE)[:, 1:, dim:]


def some_of(slots):
    """In another order, some twice, some not to be read."""
    slots = slots[torch.randperm(len(slots), device=slots.device)].contiguous()
    slots[5::9] = slots[0]
    slots[3::11] = -1
    return slots


def attention(q, keys, values):
    """q (query heads, d), keys and values (KV heads, tokens, d) -> (query heads, d), in float64."""
    scores = q.double().unflatten(0, (len(keys), -1)) @ keys.transpose(1, 2) * q.shape[-1]**-0.5
    return (scores.softmax(-1) @ values).flatten(0, 1)


class Sequences:
    """Of some lengths in shuffled pages, windows of their own tokens, and queries."""

    def __init__(self, device, dim, lengths, window, page, q_heads, kv_heads):
        self.device, self.dim, self.page, self.heads = device, dim, page, kv_heads
        pages = -(-max(lengths) // page)
        self.table = torch.randperm(len(lengths) * pages).int().reshape(len(lengths), pages).to(device)
        self.lengths = torch.tensor(lengths, dtype=torch.int32, device=device)
        self.window_lengths = torch.full_like(self.lengths, window)
        self.window_table = torch.arange(len(lengths), dtype=torch.int32, device=device).reshape(-1, 1)
        self.windows = [normal(len(lengths), 16, kv_heads, dim, device=device) for _ in range(2)]
        self.q = normal(len(lengths), q_heads, dim, device=device)

    def slots(self):
        """Those of all tokens of all sequences."""
        found = []
        for b, length in enumerate(self.lengths.tolist()):
            at = torch.arange(length, device=self.device)
            found.append((self.table[b][at // self.page] * self.page + at % self.page).int())
        return torch.cat(found)

    def tables(self):
        return self.table, self.lengths, *self.windows, self.window_table, self.window_lengths

    def expected(self, unseen=0):
        """Outputs in float64. unseen: tokens at the end of each window that the query does not see."""
        out, first, packed = [], 0, self.packed()
        for b, length in enumerate(self.lengths.tolist()):
            window = int(self.window_lengths[b]) - unseen
            k, v = (torch.cat([rows[first:first + length], window_rows[b, :window].double()]).transpose(0, 1)
                    for rows, window_rows in zip(packed, self.windows))
            out.append(attention(self.q[b] if self.q.dim() == 3 else self.q[b, -1 - unseen], k, v))
            first += length
        return torch.stack(out)


class Int2Cache(Sequences):
    def __init__(self, device, lengths=(500, 33, 1), window=9, groups=1, param_dtype=F32):
        super().__init__(device, DIM, lengths, window, PAGE, HEADS, KV_HEADS)
        shape = (self.table.numel(), PAGE, KV_HEADS)
        self.codes = [torch.zeros(*shape, DIM // 4, dtype=torch.uint8, device=device) for _ in range(2)]
        self.params = [torch.zeros(*shape, groups, 2, dtype=param_dtype, device=device) for _ in range(2)]

    def attend(self, **options):
        return ops.int2_decode(self.q, *self.codes, *self.params, *self.tables(), **options)

    def packed(self):
        return [unpacked(codes, params, self.slots()).double() for codes, params in zip(self.codes, self.params)]


def unpacked(codes, params, slots):
    """float32 rows of slots, by the formula."""
    at = slots.long() // codes.shape[1], slots.long() % codes.shape[1]
    numbers = torch.cat([codes[at] >> shift & 3 for shift in (0, 2, 4, 6)], -1).float().unflatten(-1, (params.shape[3], -1))
    scale, zero = params[at].float().unbind(-1)
    return ((numbers - zero[..., None]) * scale[..., None]).flatten(-2)


class CodedCache(Sequences):
    def __init__(self, device, dim=128, lengths=(500, 33, 1), window=9, page=16, groups=3):
        plans = PLANS[dim]
        super().__init__(device, dim, lengths, window, page, groups * len(plans), len(plans))
        bits = [torch.tensor([plans[(head + side) % len(plans)] for head in range(len(plans))], dtype=torch.uint8) for side in range(2)]
        spread = [0.5 + torch.rand(len(plans), dim) for _ in range(2)]
        steps = [6 / (1 << each.int()).repeat_interleave(8, 1) * own for each, own in zip(bits, spread)]
        self.format = [*bits, *steps, *spread]
        self.reader = CodedFormat.__new__(CodedFormat)  # as the header defines pages, without a library
        self.reader.bits, self.reader.steps = bits, steps
        token_bytes = sum(self.reader.head_bytes(head) for head in range(len(plans)))
        self.pages = torch.full((self.table.numel(), page, token_bytes), 0xA5, dtype=torch.uint8, device=device)
        layout, tables = ops.coded_layout(*self.format, for_gpu=device == "cuda")
        self.layout, self.places = layout.tolist(), tables.to("cpu" if device == "meta" else device)
        assert self.layout[5] == token_bytes

    def attend(self, **options):
        return ops.coded_decode(self.q, self.pages, self.layout, self.places, *self.tables(), **options)

    def pack(self, slots, pages=None, **rows):
        """The pages after rows were packed into pages full of 0xA5, or into these."""
        pages = torch.full_like(self.pages, 0xA5) if pages is None else pages
        ops.coded_pack(slots, pages, self.layout, self.places, **rows)
        return pages

    def rows_at(self, slots, side, pages=None):
        """float64 (tokens, heads, d), as the header defines pages."""
        pages, at = self.pages if pages is None else pages, (slots.long() // self.page, slots.long() % self.page)
        return torch.stack([decode_rows(self.reader, pages.flatten(1), head, self.page, side)[at] for head in range(self.heads)], 1)

    def packed(self):
        return [self.rows_at(self.slots(), side) for side in range(2)]

    def on_cpu(self):
        """The same cache there."""
        other = CodedCache.__new__(CodedCache)
        vars(other).update(vars(self), device="cpu", pages=self.pages.cpu())
        layout, other.places = ops.coded_layout(*self.format, for_gpu=False)
        other.layout = layout.tolist()
        return other


class OperatorTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)

    def refused(self, expected, call):
        with self.assertRaises((RuntimeError, NotImplementedError)) as error:
            call()
        self.assertIn(expected, str(error.exception))

    def changed(self, cache, expected, name, value):
        """Attention is refused with another value of one of the cache's members."""
        before = getattr(cache, name)
        setattr(cache, name, value)
        self.refused(expected, cache.attend)
        setattr(cache, name, before)

    def near(self, found, expected, limit=2e-3):
        self.assertLess(float((found - expected).norm() / expected.norm()), limit)

    def check_graph(self, step, expected):
        """A graph of step(workspace), which runs on any stream."""
        workspace, stream = torch.zeros(1 << 24, dtype=torch.uint8, device="cuda"), torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            step(workspace)
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                out = step(workspace)
            out.zero_()
            graph.replay()
            graph.replay()
            stream.synchronize()
        self.assertTrue(torch.equal(out, expected))

    def assert_rest_is_untouched(self, found, written):
        self.assertEqual(float((found[~written].float() - BEFORE).abs().max()), 0, "a row that is not to be written")


class Int2Test(OperatorTest):
    def test_shapes_without_data(self):
        cache = Int2Cache("meta", (40, 7), 5)
        out, lse = cache.attend()
        self.assertEqual((out.shape, lse.shape, out.dtype, lse.dtype), ((2, HEADS, DIM), (2, HEADS), F32, F32))
        ops.int2_pack(cache.q[:, :KV_HEADS], cache.lengths, cache.codes[0], cache.params[0])
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
        self.assertEqual((lse.shape[1], out.shape == cache.q.shape, out.dtype, lse.is_contiguous()), (HEADS, True, F32, True))

    def test_packed_rows_are_those_of_the_formulas(self):
        x, slots = 3 * normal(50, 3, DIM), torch.randperm(64, device=DEVICE)[:50].int()
        slots[7] = -1
        for grid, clip, groups, param_dtype in (("minmax", 0.92, 2, F32), ("minmax", 0.0, 1, F16), ("minmax", 1.0, 4, BF16), ("lloyd-max", 0.9, 1, F32)):
            if ON_CUDA and grid == "lloyd-max":
                continue
            codes = torch.full((4, 16, 3, 32), 255, dtype=torch.uint8, device=DEVICE)
            params = torch.full((4, 16, 3, groups, 2), -7.0, dtype=param_dtype, device=DEVICE)
            ops.int2_pack(x, slots, codes, params, grid=grid, clip_ratio=clip)
            codec = row_codecs.Codec(grid, 4, DIM // groups, clip, "sort", str(param_dtype).removeprefix("torch."))
            expected = row_codecs.quantized(x.float().cpu().transpose(0, 1)[None].numpy(), codec)[0].swapaxes(0, 1)
            written = slots >= 0
            found = unpacked(codes, params, slots[written]).cpu()
            np.testing.assert_allclose(found.numpy(), expected[written.cpu().numpy()], atol=2e-5, err_msg=grid)
            others = sorted(set(range(64)) - set(slots.tolist()))
            self.assertTrue(bool((params.flatten(0, 1)[others] == -7).all()) and len(others) == 15)

    def test_unpacked_rows_have_the_bits_of_the_formula(self):
        """Of pools as vLLM's blocks have them: the rows of a head lie behind each other."""
        for dim in (64, 128, 256) if ON_CUDA else (64, 96):
            for groups, (param_dtype, page) in zip((1, dim // 64 or 1, dim // 32), ((F32, 16), (F16, 1), (BF16, 80))):
                tokens, heads = 333 if ON_CUDA else 40, 3
                count = tokens // page + 2
                codes = torch.randint(0, 256, (count, heads, page, dim // 4), dtype=torch.uint8, device=DEVICE).transpose(1, 2)
                scales = torch.exp2(torch.randint(-20, 12, (count, heads, page, groups, 1), device=DEVICE).float()) * 1.1
                params = torch.cat([scales, 1.5 + 2 * torch.randn_like(scales)], -1).to(param_dtype).transpose(1, 2)
                slots = some_of(torch.randperm(count * page, device=DEVICE)[:tokens].int())
                read = slots >= 0
                for out in targets(tokens, heads, dim):
                    ops.int2_unpack(slots, codes, params, out)
                    self.assertTrue(torch.equal(out[read], unpacked(codes, params, slots[read]).bfloat16()), (dim, groups, param_dtype, page))
                    self.assert_rest_is_untouched(out, read)

    def test_attention_is_that_of_float64(self):
        for groups, param_dtype, clip in ((1, F32, 0.96), (2, F16, 0.0), (4, BF16, 0.0)):
            cache = Int2Cache(DEVICE, (500, 33, 1) if ON_CUDA else (60, 33, 0), 9, groups, param_dtype)
            rotation = torch.linalg.qr(torch.randn(KV_HEADS, DIM, DIM, device=DEVICE))[0].bfloat16().contiguous()
            for codes, params in zip(cache.codes, cache.params):
                rows = normal(int(cache.lengths.sum()), KV_HEADS, DIM)
                ops.int2_pack(rows, cache.slots(), codes, params, rotation=rotation, clip_ratio=clip)
                self.near(unpacked(codes, params, cache.slots()), (rows.float().transpose(0, 1) @ rotation.float()).transpose(0, 1), 0.6)
            out, _ = cache.attend()
            self.near(out, cache.expected())
            if ON_CUDA:
                self.check_graph(lambda workspace, cache=cache: cache.attend(workspace=workspace)[0], out)

    def test_heads_with_ranks_of_their_own(self):
        """They have the bytes of each packed alone by its ratio, rotated or not."""
        ratios, heads = [0.0, 0.5, 0.92, 1.0], 4
        x, slots = normal(70, heads, DIM), torch.randperm(80, device=DEVICE)[:70].int()
        ranks = torch.tensor([min(int(ratio * DIM), DIM - 1) if ratio > 0 else -1 for ratio in ratios], dtype=torch.int32, device=DEVICE)
        for rotation in (None, torch.linalg.qr(torch.randn(heads, DIM, DIM, device=DEVICE))[0].bfloat16().contiguous()):
            pools = [(torch.zeros(5, 16, heads, DIM // 4, dtype=torch.uint8, device=DEVICE), torch.zeros(5, 16, heads, 1, 2, device=DEVICE))
                     for _ in range(2)]
            ops.int2_pack(x, slots, *pools[0], rotation=rotation, clip_ranks=ranks)
            for head, ratio in enumerate(ratios):
                own = slice(head, head + 1)
                ops.int2_pack(x[:, own], slots, *(pool[:, :, own] for pool in pools[1]), clip_ratio=ratio,
                              rotation=None if rotation is None else rotation[own])
            for found, expected in zip(*pools):
                self.assertTrue(torch.equal(found, expected), int((found != expected).sum()))

    def test_refusals(self):
        cache = Int2Cache(DEVICE)
        self.changed(cache, "q is ", "q", cache.q.float())
        self.changed(cache, "q is not contiguous", "q", cache.q.transpose(0, 1).contiguous().transpose(0, 1))
        self.changed(cache, "v_codes has 16 bytes a row", "codes", [cache.codes[0], cache.codes[1][..., :16]])
        self.changed(cache, "pages and its lengths have 2", "table", cache.table[:2])
        self.changed(cache, "num_q_heads", "q", cache.q[:, :3].contiguous())
        x, slots = normal(3, KV_HEADS, DIM), torch.zeros(3, dtype=torch.int32, device=DEVICE)
        pools, out = (cache.codes[0], cache.params[0]), torch.empty(3, KV_HEADS, DIM, dtype=BF16, device=DEVICE)
        for expected, options in (("grid is \"best\"", {"grid": "best"}), ("clip_ratio must", {"clip_ratio": 2.0}),
                                  ("clip_ranks has 1 heads", {"clip_ranks": slots[:1]})):
            self.refused(expected, lambda options=options: ops.int2_pack(x, slots, *pools, **options))
        self.refused("slots has 2 entries", lambda: ops.int2_pack(x, slots[:2], *pools))
        for expected, given in (("out is [3, 2, 128], not [2, ", (slots[:2], *pools, out)), ("codes has 16 bytes a row", (slots, pools[0][..., :16], pools[1], out)),
                                ("params is Long", (slots, pools[0], pools[1].long(), out)), ("slots is Long", (slots.long(), *pools, out)),
                                ("differ in pages", (slots, pools[0], pools[1][:1], out))):
            self.refused(expected, lambda given=given: ops.int2_unpack(*given))
        if ON_CUDA:
            self.changed(cache, "is on cpu", "lengths", cache.lengths.cpu())
            self.refused("aligned", lambda: ops.int2_unpack(slots, *pools, torch.empty(out.numel() + 1, dtype=BF16, device=DEVICE)[1:].view(out.shape)))


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


class CodedTest(OperatorTest):
    def caches(self):
        for dim, page in ((64, 4), (128, 16), (128, 256), (256, 64)):
            yield CodedCache(DEVICE, dim, (500, 33, 1) if ON_CUDA else (40, 9, 1), page=page)

    def test_shapes_without_data(self):
        cache = CodedCache("meta", lengths=(40, 7))
        cache.places = torch.empty(len(cache.places), dtype=torch.uint8, device="meta")
        for q in (cache.q, cache.q[:, None].expand(-1, 3, -1, -1)):
            cache.q = q
            out, lse = cache.attend()
            self.assertEqual((out.shape, lse.shape, out.dtype, lse.dtype), (q.shape, q.shape[:-1], F32, F32))
        slots, k = torch.zeros(3, dtype=torch.int32, device="meta"), normal(3, cache.heads, 128, device="meta")
        cache.pack(slots, k=k)
        ops.coded_unpack(slots, cache.pages, cache.layout, cache.places, k=k, v=k)
        for name, said in (("coded_pack", "Tensor(a!) pages"), ("coded_unpack", "Tensor(b!)? v")):
            self.assertIn(said, str(getattr(ops, name).default._schema))

    def test_packed_rows(self):
        """Every code is the nearest level's, so that what is read is as near as the step; kernels have the bytes of the CPU."""
        for cache in self.caches():
            for kind in ("extreme", "small integers", "normal"):
                slots = cache.slots()
                slots[3::11] = -1
                slots = slots[torch.randperm(len(slots), device=DEVICE)].contiguous()
                k, v = (coded_rows(cache, len(slots), kind) for _ in range(2))
                found, written = cache.pack(slots, k=k, v=v), slots >= 0
                one = cache.pack(slots, cache.pack(slots, k=k), v=v)
                self.assertTrue(torch.equal(found, one), "keys and values one after another")
                if ON_CUDA:
                    expected = cache.on_cpu().pack(slots.cpu(), k=k.cpu(), v=v.cpu())
                    self.assertTrue(torch.equal(found.cpu(), expected), (cache.dim, kind, int((found.cpu() != expected).sum())))
                if kind != "normal":
                    continue
                for side, rows in enumerate((k, v)):
                    stored = (cache.reader.bits[side] == 8).repeat_interleave(8, 1).to(DEVICE)
                    own, read = rows[written].double()[:, stored], cache.rows_at(slots[written], side, found)[:, stored]
                    self.near(read, own, 0.15)

    def test_rotated_rows(self):
        """bf16((x - mean) R) with float32 sums: of the bytes of rows that torch rotated nearly all are the same, and errors are as large."""
        for cache in self.caches():
            slots, heads, dim = cache.slots(), cache.heads, cache.dim
            rotations = [torch.linalg.qr(torch.randn(count, dim, dim, device=DEVICE))[0].bfloat16().contiguous() for count in (heads, 1)]
            mean = 3 * torch.randn(heads, dim, device=DEVICE)
            k, v = (normal(len(slots), heads, dim).float() + mean).bfloat16(), normal(len(slots), heads, dim)
            found = cache.pack(slots, k=k, v=v, k_rotation=rotations[0], v_rotation=rotations[1][0], k_mean=mean)
            exact = [(rows.transpose(0, 1) @ rotation.double()).transpose(0, 1) for rows, rotation in zip((k.double() - mean, v.double()), rotations)]
            plain = cache.pack(slots, k=exact[0].bfloat16(), v=exact[1].bfloat16())
            for side, rows in enumerate(exact):
                mine, theirs = (cache.rows_at(slots, side, pages) for pages in (found, plain))
                self.assertGreater(float((mine == theirs).float().mean()), 0.96)
                self.assertLess(abs(float((mine - rows).norm() / (theirs - rows).norm()) - 1), 1e-3)

    def test_unpacked_rows_are_those_of_the_header(self):
        for cache in self.caches():
            halves = [sum(-(-int(bits.sum()) // 8) % 2 for bits in head) for head in zip(*cache.reader.bits)]
            self.assertTrue(2 in halves and 0 in halves, "heads with 8-byte pieces of both sides, and of none")
            kind = "extreme" if cache.page == 64 else "normal"
            cache.pages = cache.pack(cache.slots(), **{side: coded_rows(cache, len(cache.slots()), kind) for side in "kv"})
            slots = some_of(cache.slots())
            read = slots >= 0
            expected = [cache.rows_at(slots[read], side) for side in range(2)]
            for k, v in zip(*(targets(len(slots), cache.heads, cache.dim) for _ in range(2))):
                ops.coded_unpack(slots, cache.pages, cache.layout, cache.places, k=k, v=v)
                for found, exact in zip((k, v), expected):
                    wrong = (found[read].double() - exact).abs() - exact.abs() * 2**-8 * 1.001
                    self.assertLessEqual(float(wrong.max()), 0, (cache.dim, cache.page))
                    self.assert_rest_is_untouched(found, read)
                for name, whole in (("k", k), ("v", v)):  # one side alone
                    own = torch.full_like(whole, BEFORE)
                    ops.coded_unpack(slots, cache.pages, cache.layout, cache.places, **{name: own})
                    self.assertTrue(torch.equal(own, whole), name)
            if ON_CUDA:
                other, found = cache.on_cpu(), torch.full(k.shape, BEFORE, dtype=BF16)
                ops.coded_unpack(slots.cpu(), other.pages, other.layout, other.places, k=found)
                self.assertTrue(torch.equal(found, k.cpu()))

    def test_attention_is_that_of_float64(self):
        for cache in self.caches():
            rows = {side: normal(int(cache.lengths.sum()), cache.heads, cache.dim) for side in "kv"}
            cache.pages = cache.pack(cache.slots(), **rows)
            out, _ = cache.attend()
            self.near(out, cache.expected())
            if ON_CUDA:
                slots = cache.slots()

                def step(workspace, cache=cache, slots=slots, rows=rows):
                    cache.pack(slots, cache.pages, **rows)
                    return cache.attend(workspace=workspace)[0]

                self.check_graph(step, out)
            cache.q = normal(len(cache.lengths), 3, *cache.q.shape[1:])  # the newest tokens of the window, each of which sees those before it
            out, _ = cache.attend()
            for token in range(3):
                self.near(out[:, token], cache.expected(unseen=2 - token))

    def check_finished(self, cache, options, rotated, with_keys_alone):
        """Pages and finished keys have the bytes of keys that plain torch finished, packed without the option. Rows are small whole numbers
        times powers of two, whose squares add up exactly in any order."""
        slots = cache.slots()
        slots[3::11] = -1
        shape = len(slots), cache.heads + 1, 2 * cache.dim
        x = torch.randint(-127, 128, shape, device=DEVICE) * torch.exp2(torch.randint(-6, 7, (*shape[:2], 1), device=DEVICE).float())
        x[1::17] = 0
        x = x.bfloat16()[:, 1:, cache.dim:]  # a part of wider rows, as a server's projection has them
        others, v, what = {}, normal(len(slots), cache.heads, cache.dim), (cache.dim, rotated, list(options))
        if rotated:
            rotations = torch.linalg.qr(torch.randn(2, cache.heads, cache.dim, cache.dim, device=DEVICE))[0].bfloat16()
            others = {"k_rotation": rotations[0].contiguous(), "v_rotation": rotations[1].contiguous(),
                      "k_mean": torch.randn(cache.heads, cache.dim, device=DEVICE)}
        rows = finished_by_torch(x, **options)
        self.assertTrue(not options or not torch.equal(rows, x))
        expected, wide = cache.pack(slots, k=rows, v=v, **others), torch.full(shape, BEFORE, dtype=BF16, device=DEVICE)
        finished = wide[:, :-1, :cache.dim]
        found = cache.pack(slots, k=x, v=v, **options, **others, k_finished=finished)
        self.assertTrue(torch.equal(finished, rows), what)
        self.assertTrue(torch.equal(found, expected), what)
        finished.fill_(BEFORE)
        self.assertEqual(float((wide.float() - BEFORE).abs().max()), 0, (what, "more than the finished rows was written"))
        if with_keys_alone:  # without finished rows; then in place
            keys = {name: value for name, value in others.items() if name.startswith("k_")}
            expected = cache.pack(slots, k=rows, **keys)
            self.assertTrue(torch.equal(cache.pack(slots, k=x, **options, **keys), expected), what)
            self.assertTrue(torch.equal(cache.pack(slots, k=x, **options, **keys, k_finished=x), expected), what)
            self.assertTrue(torch.equal(x, rows), what)

    def options(self, cache, weight=None, rotary=0, interleaved=False, table=F32, positions=torch.int64):
        found, count = {}, len(cache.slots())
        if weight is not None:
            found |= {"k_norm_weight": (0.5 + torch.rand(cache.dim, device=DEVICE)).to(weight), "norm_epsilon": EPSILON}
        if rotary:
            found |= {"positions": torch.randint(0, 500, (count,), device=DEVICE).to(positions), "cos_sin": cos_sin_of(rotary, table),
                      "interleaved": interleaved}
        return found

    def test_keys_that_lack_their_norm_and_rope(self):
        for dim, page in ((64, 4), (128, 16), (256, 64)):
            cache = CodedCache(DEVICE, dim, (270, 33, 1) if ON_CUDA else (40, 9, 1), page=page)
            self.check_finished(cache, {}, False, False)  # finished rows alone: a copy
            for i, which in enumerate(((None, dim), (BF16,), (BF16, dim, False, BF16, torch.int32), (F32, dim - 24), (None, dim - 24, True, BF16),
                                       (F32, 16, True), (BF16, 16, False, F32, torch.int32), (BF16, dim, True, F32, torch.int32), (F32,))):
                for rotated in (False, True) if ON_CUDA else (i % 2 == 1,):
                    self.check_finished(cache, self.options(cache, *which), rotated, ON_CUDA or i < 2)
            for which in ((BF16, dim), (F32, dim // 2, False, BF16, torch.int32)):
                self.check_rows_of_any_size(cache, self.options(cache, *which))

    def check_rows_of_any_size(self, cache, options):
        """Near float64: a server rounds normed rows, their products with the weight, and turned pairs, to 8 bits; kernels have the bits of
        the CPU."""
        slots = cache.slots()
        x = (torch.randn(len(slots), cache.heads, cache.dim, device=DEVICE) *
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
        self.assertTrue(bool(((finished.double() - exact).abs() <= 3.02 * 2.0**-8 * sizes).all()))
        if ON_CUDA:
            expected, moved = torch.empty(x.shape, dtype=BF16), {name: x.cpu() if torch.is_tensor(x) else x for name, x in options.items()}
            cache.on_cpu().pack(slots.cpu(), k=x.cpu(), k_finished=expected, **moved)
            self.assertTrue(torch.equal(finished.cpu(), expected), int((finished.cpu() != expected).sum()))

    def test_refusals(self):
        cache = CodedCache(DEVICE, 256, (40, 9, 1), page=64)
        self.changed(cache, "q is ", "q", cache.q.float())
        self.changed(cache, "q has 128 channels", "q", cache.q[..., :128].contiguous())
        self.changed(cache, "layout has 2 numbers", "layout", [1, 2])
        self.changed(cache, "pages must be (pages, page_size", "pages", cache.pages[..., :16])
        self.changed(cache, "page_table and its lengths have 2", "table", cache.table[:2])
        self.changed(cache, "the layout is not theirs", "places", cache.places[:64])
        slots = torch.zeros(3, dtype=torch.int32, device=DEVICE)
        x, norm, rope = normal(3, cache.heads, cache.dim), self.options(cache, F32), self.options(cache, None, 64)
        rope["positions"] = rope["positions"][:3]
        on_cuda = (
            ("a mean needs a rotation", {"k": x, "k_mean": torch.zeros(1, cache.dim, device=DEVICE)}),
            ("both have rotations", {"k": x, "v": x, "k_rotation": torch.zeros(cache.dim, cache.dim, dtype=BF16, device=DEVICE)}),
            ("k_norm_weight is on cpu", {"k": x, **norm, "k_norm_weight": norm["k_norm_weight"].cpu()}),
            ("aligned", {"k": x, "k_finished": torch.empty(x.numel() + 1, dtype=BF16, device=DEVICE)[1:].view(x.shape)}))
        for expected, rows in (
                ("rows neither of keys nor of values", {}), ("k is [2, ", {"k": x[:2]}), ("v is Float", {"v": x.float()}),
                ("positions and cos_sin must be given together", {"k": x, "positions": rope["positions"]}),
                ("positions and cos_sin must be given together", {"k": x, "cos_sin": rope["cos_sin"]}),
                ("of keys, and there are none", {"v": x, **norm}), ("norm_epsilon", {"k": x, "k_norm_weight": norm["k_norm_weight"]}),
                ("k_norm_weight has 8 channels", {"k": x, **norm, "k_norm_weight": norm["k_norm_weight"][:8]}),
                ("must be float32 or bfloat16", {"k": x, **norm, "k_norm_weight": norm["k_norm_weight"].half()}),
                ("positions has 2 tokens", {"k": x, **rope, "positions": rope["positions"][:2]}),
                ("positions is Float", {"k": x, **rope, "positions": rope["positions"].float()}),
                ("cos_sin is Double", {"k": x, **rope, "cos_sin": rope["cos_sin"].double()}),
                ("must be float32 or bfloat16", {"k": x, **rope, "cos_sin": rope["cos_sin"].half()}),
                ("cos_sin is not contiguous", {"k": x, **rope, "cos_sin": rope["cos_sin"][:, :32]}),
                ("rotary_dim must be a multiple of 8", {"k": x, **rope, "cos_sin": rope["cos_sin"][:, :12].contiguous()}),
                ("rotary_dim must be a multiple of 8", {"k": x, **rope, "cos_sin": cos_sin_of(2 * cache.dim)}),
                ("interleaved pairs need cos_sin", {"k": x, "interleaved": True}), ("k_finished is [2, ", {"k": x, "k_finished": x[:2]}),
                *(on_cuda if ON_CUDA else ())):
            self.refused(expected, lambda rows=rows: cache.pack(slots, **rows))
        for expected, sides in (("room neither for keys nor for values", {}), ("k is [2, ", {"k": x[:2]}), ("v is Float", {"v": x.float()})):
            self.refused(expected, lambda sides=sides: ops.coded_unpack(slots, cache.pages, cache.layout, cache.places, **sides))
        k_bits, v_bits, *numbers = cache.format
        if ON_CUDA:
            self.refused("must not increase", lambda: ops.coded_layout(k_bits.flip(1).contiguous(), v_bits, *numbers))
            self.refused("sigmas must be positive", lambda: ops.coded_layout(k_bits, v_bits, *numbers[:2], -numbers[2], numbers[3]))


if __name__ == "__main__":
    if ON_CUDA and not torch.cuda.is_available():
        print("skipped: needs an NVIDIA GPU")
        sys.exit(77)
    unittest.main()
