# SPDX-License-Identifier: MIT
"""What the tests of torch.ops.oscar.* share: the cases of cases.json, caches in pages, attention in float64.

On the CPU by kernels/reference; on a GPU by the kernels if OSCAR_TEST_DEVICE=cuda, whose bytes must be those of the CPU; exit status 77 if
there is none. Needs torch and numpy alone.
"""
import copy
import functools
import itertools
import json
import os
import sys
import unittest
from pathlib import Path

try:
    import numpy  # noqa: F401
    import torch
except ImportError as missing:
    print(f"skipped: {missing}; run scripts/setup.sh --tests")
    sys.exit(77)

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT / "tests/bench"))
from coded_library import CodedFormat, decode_rows  # noqa: E402

DEVICE = os.environ.get("OSCAR_TEST_DEVICE", "cpu")
ON_CUDA = DEVICE == "cuda"
if ON_CUDA and not torch.cuda.is_available():
    print("skipped: needs an NVIDIA GPU")
    sys.exit(77)
torch.ops.load_library(os.environ["OSCAR_TORCH_LIBRARY"])
ops = torch.ops.oscar
CASES = json.loads(Path(__file__).with_name("cases.json").read_text())
TOLERANCES = CASES["tolerances"]
BEFORE = 7.0  # what rows hold that are not to be written
BF16, F32, F16 = torch.bfloat16, torch.float32, torch.float16
LENGTHS = (500, 33, 1) if ON_CUDA else (40, 9, 1)


def expanded(entries):
    """Cases with one value for each member, in place of lists of values; a GPU has kernels for three head sizes."""
    for entry in entries:
        lists = [value if isinstance(value, list) else [value] for value in entry.values()]
        for values in itertools.product(*lists):
            if not ON_CUDA or dict(zip(entry, values)).get("dim", 64) in (64, 128, 256):
                yield dict(zip(entry, values))


def LARGE(lists):
    """Cases for GPUs alone: every shape that kernels tell apart."""
    return expanded(lists["large"]) if ON_CUDA else ()


def each(cases):
    """The method becomes a test for each of these cases, which are its arguments: they fail one by one."""
    def mark(method):
        method.cases = list(cases)
        return method
    return mark


class OperatorTest(unittest.TestCase):
    def __init_subclass__(cls):
        for name, method in list(vars(cls).items()):
            if hasattr(method, "cases"):
                delattr(cls, name)
                for case in method.cases:
                    setattr(cls, f"{name}: {', '.join(f'{key} {value}' for key, value in case.items())}", functools.partialmethod(method, **case))

    def setUp(self):
        torch.manual_seed(0)

    def refused(self, expected, call):
        with self.subTest(expected), self.assertRaises((RuntimeError, NotImplementedError)) as error:
            call()
        self.assertIn(expected, str(error.exception))

    def changed(self, cache, expected, name, value):
        """Attention is refused with another value of one of the cache's members."""
        before = getattr(cache, name)
        setattr(cache, name, value)
        self.refused(expected, cache.attend)
        setattr(cache, name, before)

    def same(self, found, expected, what=""):
        self.assertTrue(torch.equal(found, expected), f"{int((found != expected).sum())} of {found.numel()} values differ {what}")

    def near(self, found, expected, limit=TOLERANCES["decode"]):
        error, size = float((found - expected).norm()), float(expected.norm())
        self.assertLessEqual(error, limit * size)
        return error / (size or 1)

    def check_attention(self, cache, found, more=0):
        """Of each query token of each sequence, outputs and log-sum-exps are those of float64. more: relative error beside that of decoding."""
        limit, shape, worst = TOLERANCES["decode, log-sum-exp"], (len(cache.lengths), -1, *cache.q.shape[-2:]), 0
        out, sums = found[0].reshape(shape), found[1].reshape(shape[:3])
        most = more + TOLERANCES["decode"] * max(1, int(cache.lengths.max()) / 24000)**0.5  # more random rows cancel, and relative errors grow
        for token in range(out.shape[1]):
            unseen, limits = out.shape[1] - 1 - token, [most] * len(out)
            expected = cache.expected(unseen)
            if cache.turned:  # as near as keys that are rounded
                limits = [most + float((x - y).norm() / x.norm()) for x, y in zip(expected[0], cache.expected(unseen, rounded=True)[0])]
            for b in range(len(out)):
                worst = max(worst, self.near(out[b, token], expected[0][b], limits[b]))
            torch.testing.assert_close(sums[:, token].double(), expected[1], rtol=limit, atol=limit)
        print(f"measured: coded decode | bfloat16 | {cache.dim} | {int(cache.lengths.max())} | {worst:.3g} | {most:.3g}")

    def check_decode(self, cache, split_batch=0):
        found = cache.attend(split_batch=split_batch)
        self.check_attention(cache, found)
        self.same(cache.attend(split_batch=split_batch)[0], found[0], "from run to run")

    def check_neighbours(self, cache):
        """What the last sequence gets depends to the bit on the size of its batch, and on nobody else in it."""
        cache.fill()
        whole, alone = cache.attend()[0][-1], cache.last().attend(split_batch=len(cache.lengths))[0]
        self.same(alone[0], whole)

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
        self.same(out, expected)

    def assert_rest_is_untouched(self, found, written):
        self.assertEqual(float((found[~written].float() - BEFORE).abs().max()), 0, "a row that is not to be written")


def normal(*shape, device=DEVICE):
    return torch.randn(shape, device=device).bfloat16()


def before(*shape):
    return torch.full(shape, BEFORE, dtype=BF16, device=DEVICE)


def targets(tokens, heads, dim):
    """bfloat16 (tokens, heads, d) of both layouts that attention takes, and a part of wider rows."""
    yield before(tokens, heads, dim)
    yield before(heads, tokens + 3, dim)[:, 2:-1].transpose(0, 1)
    yield before(tokens, heads + 1, 2 * dim)[:, 1:, dim:]


def some_of(slots):
    """In another order, some twice, some not to be read."""
    slots = slots[torch.randperm(len(slots), device=slots.device)].contiguous()
    slots[5::9] = slots[0]
    slots[3::11] = -1
    return slots


def unaligned(shape):
    return torch.empty(shape.numel() + 1, dtype=BF16, device=DEVICE)[1:].view(shape)


def attention(q, keys, values, soft_cap):
    """q (query heads, d), keys and values (KV heads, tokens, d) -> outputs (query heads, d) and log-sum-exps, in float64. soft_cap: 0: none."""
    scores = q.double().unflatten(0, (len(keys), -1)) @ keys.transpose(1, 2) * q.shape[-1]**-0.5
    scores = soft_cap * (scores / soft_cap).tanh() if soft_cap else scores
    return (scores.softmax(-1) @ values).flatten(0, 1), scores.logsumexp(-1).flatten()


def listed(numbers):
    return [int(number) for number in numbers.split()] if isinstance(numbers, str) else numbers


class CodedCache:
    """A coded cache of sequences of some lengths in shuffled pages, windows of their own tokens, and queries. lengths, windows: of each, also as
    text; tokens: query tokens of each, the newest of its window; peak: how far from uniform attention is. plan: bits of the blocks of every head's keys, and of its values unless value_plan tells them; most: random bits up to that. Without
    either heads have the plans of cases.json, values that of the next head: in each size some head has 8-byte pieces of both."""

    def __init__(self, device, dim=128, page=16, lengths=LENGTHS, windows=9, kv_heads=2, per_head=3, most=None, plan=None, value_plan=None,
                 window_page=16, tokens=None, peak=1, soft_cap=0.0):
        def random():
            return " ".join(map(str, sorted(torch.randint(most + 1, (dim // 8,)).tolist(), reverse=True)))

        keys = None
        if most or plan is not None:
            plans = [[random() if each is None else each for _ in range(kv_heads)] for each in (plan, plan if value_plan is None else value_plan)]
        else:
            keys = CASES["coded_plans"][str(dim)]
            plans, kv_heads = [keys, [*keys[1:], keys[0]]], len(keys)
        self.device, self.dim, self.page, self.heads, lengths = device, dim, page, kv_heads, listed(lengths)
        self.soft_cap = soft_cap
        self.turned, self.keys = {}, None  # of keys before RoPE: what attend() needs, and (rows, positions) -> keys in float64
        windows = [windows] * len(lengths) if isinstance(windows, int) else listed(windows)

        def table(size, tokens):
            pages = max(1, -(-max(tokens) // size))
            found = torch.randperm(len(tokens) * pages).int().reshape(len(tokens), pages)
            for row, count in zip(found, tokens):
                row[-(-count // size):] = 1 << 30  # what a sequence does not use must not be looked at
            return found.to(device)

        self.table, self.window_table = table(page, lengths), table(window_page, windows)
        self.lengths, self.window_lengths = (torch.tensor(each, dtype=torch.int32, device=device) for each in (lengths, windows))
        self.windows = [normal(self.window_table.numel(), window_page, kv_heads, dim, device=device) for _ in range(2)]
        self.q = peak * normal(len(lengths), *([tokens] if tokens else []), per_head * kv_heads, dim, device=device)
        bits = [torch.tensor([listed(each) + [0] * (dim // 8 - len(listed(each))) for each in side], dtype=torch.uint8) for side in plans]
        spread = [0.5 + torch.rand(kv_heads, dim) for _ in range(2)]
        # Of the plans of cases.json all channels are about as large; else as fits make them: a channel of more bits has larger values.
        sizes = [each.int().repeat_interleave(8, 1) if isinstance(keys, list) else each.int().amax(1, keepdim=True) for each in bits]
        steps = [6 / (1 << size) * own for size, own in zip(sizes, spread)]
        self.format = [*bits, *steps, *spread]
        self.reader = CodedFormat.__new__(CodedFormat)  # as the header defines pages, without a library
        self.reader.bits, self.reader.steps = bits, steps
        token_bytes = sum(self.reader.head_bytes(head) for head in range(kv_heads))
        self.pages = torch.full((self.table.numel(), page, token_bytes), 0xA5, dtype=torch.uint8, device=device)
        layout, tables = ops.coded_layout(*self.format, for_gpu=device == "cuda")
        self.layout, self.places = layout.tolist(), tables.to("cpu" if device == "meta" else device)
        assert self.layout[5] == token_bytes

    def last(self):
        """The last sequence alone."""
        other = copy.copy(self)
        for name in ("table", "lengths", "window_table", "window_lengths", "q"):
            setattr(other, name, getattr(self, name)[-1:].contiguous())
        return other

    def slots(self):
        """Those of all tokens of all sequences."""
        found = []
        for b, length in enumerate(self.lengths.tolist()):
            at = torch.arange(length, device=self.device)
            found.append((self.table[b][at // self.page] * self.page + at % self.page).int())
        return torch.cat(found)

    def tables(self):
        return self.table, self.lengths, *self.windows, self.window_table, self.window_lengths

    def expected(self, unseen=0, rounded=False):
        """Outputs and log-sum-exps in float64. unseen: tokens at the end of each window that the query does not see; rounded: of keys that
        are turned and rounded to bfloat16."""
        out, first, packed = [], 0, self.packed()
        if self.turned:
            positions = torch.cat([at + torch.arange(int(count)) for at, count in zip(self.turned["k_positions"].cpu(), self.lengths)])
            packed[0] = self.keys(packed[0], positions.to(self.device))
            packed[0] = packed[0].bfloat16().double() if rounded else packed[0]
        for b, length in enumerate(self.lengths.tolist()):
            window = max(0, int(self.window_lengths[b]) - unseen)
            own = self.window_table[b][:-(-window // self.windows[0].shape[1])].long()
            k, v = (torch.cat([rows[first:first + length], window_rows[own].flatten(0, 1)[:window].double()]).transpose(0, 1)
                    for rows, window_rows in zip(packed, self.windows))
            out.append(attention(self.q[b] if self.q.dim() == 3 else self.q[b, -1 - unseen], k, v, self.soft_cap))
            first += length
        return [torch.stack(each) for each in zip(*out)]

    def fill(self, least=112):
        """Scales are near 1, or from 2^((least - 128) / 16) on."""
        self.pages.random_(256)
        end = 0
        for head in range(self.heads):
            end += self.page * self.reader.head_bytes(head)
            self.pages.flatten(1)[:, end - 4 * self.page:end].random_(least, 140)

    def attend(self, **options):
        return ops.coded_decode(self.q, self.pages, self.layout, self.places, *self.tables(), soft_cap=self.soft_cap, **self.turned, **options)

    def pack(self, slots, pages=None, **rows):
        """The pages after rows were packed into pages full of 0xA5, or into these."""
        pages = torch.full_like(self.pages, 0xA5) if pages is None else pages
        ops.coded_pack(slots, pages, self.layout, self.places, **rows)
        return pages

    def unpack(self, slots, **rows):
        ops.coded_unpack(slots, self.pages, self.layout, self.places, **rows)

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
