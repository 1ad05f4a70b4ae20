# SPDX-License-Identifier: MIT
"""Attention of prompts in pieces against all rows at once in float64: chunk_attention_test.py [ChunkTest.test_…]

On a GPU if OSCAR_TEST_DEVICE=cuda, exit status 77 if there is none.
"""
import sys
import unittest
from functools import partial
from itertools import accumulate
from unittest import mock

try:
    import torch
    import vllm_backend_test as backends
    from oscar_kv import chunk_attention, packed_layer, score_rule
    from plain_attention import plain_attention
    from vllm_one_layer import DEVICE, KV_HEADS, DIM, coded_set, random, set_before_rope
except ImportError as missing:
    print(f"skipped: {missing}; run scripts/setup.sh --tests")
    sys.exit(77)

SCALE = 0.3
LIMIT = 3e-6 if DEVICE == "cpu" else 4e-3  # torch's flash attention of bfloat16 rounds weights and outputs


def expected(q, keys, values, is_causal, soft_cap=0.0):
    """Of one request: q (tokens, heads, d), keys, values (any, KV heads, d); the last keys are the queries' own -> as chunk_attention.attention(),
    in float64."""
    visible = None if is_causal else torch.ones(len(q), len(keys), dtype=torch.bool, device=q.device)
    return [x.transpose(0, 1) for x in plain_attention(*(x.transpose(0, 1) for x in (q, keys, values)), SCALE, visible, soft_cap)]


class Rows:
    """Packed tokens that are rows as they are; what is asked for is remembered."""

    def __init__(self, most_tokens, heads, dim):
        self.most_values, self.asked = most_tokens * heads * dim + heads * dim - 1, []

    def unpack(self, cache, slots, keys, values, *_):
        self.asked.append(len(slots))
        for out, rows in zip((keys, values), cache):
            out[slots >= 0] = rows[slots[slots >= 0].long()]


def error_of(found, want):
    return float((found.double() - want).norm() / want.norm())


class ChunkTest(unittest.TestCase):
    def rows(self, count, heads, dim, seed):
        return random(count, heads, dim, seed=seed).bfloat16().to(DEVICE)

    def prompts(self, requests):
        """Requests of (new tokens, sink, packed tokens, recent tokens), whose packed tokens lie anywhere in a cache of 50, and those of windows
        anywhere in 30 copies."""
        place = torch.Generator().manual_seed(8)
        before = [sum(rest) for _, *rest in requests]
        is_near = torch.tensor([x for _, sink, packed, recent in requests for x in [True] * sink + [False] * packed + [True] * recent], dtype=torch.bool)
        slots = torch.where(is_near, -1, torch.randint(50, is_near.shape, generator=place)).int()
        near = is_near.nonzero()[:, 0]
        copies = torch.randint(30, near.shape, generator=place)
        counts = [count for count, *_ in requests]
        return chunk_attention.Prompts(slice(0, sum(counts)), counts, before, *(x.to(DEVICE) for x in (slots, torch.arange(len(slots)).int(), near, copies)))

    def check(self, requests, room, heads=6, kv_heads=2, dim=64, soft_cap=0.0, attention=None, prompts=None):
        """prompts: these requests', which others have read."""
        prompts = prompts or self.prompts(requests)
        q = self.rows(sum(prompts.counts), heads, dim, 1)
        cache, copies, own = ([self.rows(n, kv_heads, dim, seed + side) for side in range(2)] for n, seed in ((50, 2), (30, 4), (len(q), 6)))
        packed = Rows(room, kv_heads, dim)
        out, lse = chunk_attention.attend(prompts, q, torch.stack(own), torch.stack(copies), packed, cache, SCALE,
                                          attention or partial(chunk_attention.attention, soft_cap=soft_cap))
        self.assertEqual((out.dtype, out.shape, lse.dtype, lse.shape), (torch.float32, q.shape, torch.float32, q.shape[:2]))
        rows = []
        for side, (of_cache, of_copies) in enumerate(zip(cache, copies)):
            rows.append(of_cache[prompts.slots.clamp(min=0).long()])
            rows[side][prompts.near] = of_copies[prompts.copies]
        begin = seen = 0
        for count, before in zip(prompts.counts, prompts.before):
            own_part, past = slice(begin, begin + count), slice(seen, seen + before)
            want, sums = expected(q[own_part], *(torch.cat([x[past], y[own_part]]) for x, y in zip(rows, own)), True, soft_cap)
            self.assertLess(error_of(out[own_part], want), LIMIT, (requests, room))
            self.assertLess(error_of(lse[own_part], sums), LIMIT)
            begin, seen = begin + count, seen + before
        self.assertEqual(packed.asked, [min(room, seen - first) for first in range(0, seen, room)])

    def test_pieces_that_end_anywhere(self):
        for request, room in (((9, 3, 40, 2), 50), ((9, 3, 40, 2), 45), ((9, 3, 40, 2), 7), ((9, 0, 40, 5), 20), ((9, 0, 40, 5), 40),
                              ((1, 3, 13, 0), 4), ((9, 3, 0, 2), 2), ((9, 0, 40, 0), 8), ((30, 0, 1, 1), 1)):
            self.check([request], room)

    def test_requests_that_share_pieces(self):
        requests = [(9, 3, 20, 2), (1, 0, 0, 1), (4, 2, 0, 0), (12, 3, 33, 5)]
        prompts = self.prompts(requests)
        for room in (100, 37, 20, 9, 1):  # of layers with other heads
            self.check(requests, room, prompts=prompts)

    def test_prompts_that_nothing_is_cached_of(self):
        self.check([(9, 0, 0, 0), (1, 0, 0, 0), (20, 0, 0, 0)], 16)

    def test_another_attention_takes_the_place_of_torchs(self):
        """A server's own: it gets the requests' own tokens, causal, and each piece with those that see it, and its sums are joined."""
        asked = []

        def other(q, keys, values, scaling, lengths):
            asked.append((lengths.queries, lengths.keys, lengths.is_causal))
            self.assertEqual([x.tolist() for x in lengths.starts], [[0, *accumulate(x)] for x in (lengths.queries, lengths.keys)])
            self.assertEqual((len(q), len(keys), len(values)), (sum(lengths.queries), sum(lengths.keys), sum(lengths.keys)))
            return chunk_attention.attention(q, keys, values, scaling, lengths)

        self.check([(9, 3, 20, 2), (4, 2, 0, 0), (12, 3, 10, 5)], 16, attention=other)
        self.assertEqual(asked, [([9, 4, 12], [9, 4, 12], True), ([9], [16], False), ([9, 4, 12], [9, 2, 5], False), ([12], [13], False)])

    def test_shapes_of_heads(self):
        self.check([(9, 3, 40, 2), (3, 3, 1, 2)], 16, heads=4, kv_heads=4, dim=128)
        self.check([(9, 3, 40, 2), (3, 3, 1, 2)], 16, heads=8, kv_heads=1, dim=256)

    def test_capped_scores(self):
        """In pieces of keys, and of as few queries at a time as memory has room for."""
        for most in (1 << 23, 6 * 45 * 4, 1):
            with mock.patch.object(score_rule, "_MOST_SCORES", most):
                self.check([(9, 3, 40, 2), (3, 3, 1, 2)], 16, soft_cap=0.7)
                self.check([(9, 0, 0, 0)], 16, soft_cap=2.0, heads=8, kv_heads=1)

    def test_pieces_whose_scores_are_far_apart(self):
        """A piece whose weights are all 0 beside those of another adds nothing, in any order."""
        q, count = self.rows(3, 2, 64, 1), 20
        keys, values = (self.rows(count, 2, 64, seed) for seed in (2, 3))
        keys[7] = 400 * q[0]
        own = torch.stack([self.rows(3, 2, 64, seed) for seed in (4, 5)])
        slots, none = torch.arange(count, dtype=torch.int32, device=DEVICE), torch.empty(0, dtype=torch.long, device=DEVICE)
        prompts = chunk_attention.Prompts(slice(0, 3), [3], [count], slots, slots, none, none)
        out, _ = chunk_attention.attend(prompts, q, own, own[:, :0], Rows(4, 2, 64), (keys, values), SCALE)
        want, _ = expected(q, torch.cat([keys, own[0]]), torch.cat([values, own[1]]), is_causal=True)
        self.assertLess(error_of(out, want), LIMIT)

    serve, be_rank, run_steps = (getattr(backends.BackendTest, name) for name in ("serve", "be_rank", "run_steps"))
    check_steps, by_kernels, worst = backends.BackendTest.check, backends.BackendTest.by_kernels, 0.0

    def test_a_server_reads_in_pieces(self):
        """Of 7 tokens."""
        with mock.patch.object(packed_layer.PackedSlots, "most_values", 7 * KV_HEADS * DIM):
            self.check_steps(coded_set())
            self.check_steps(set_before_rope())
            self.by_kernels()
            self.check_steps(coded_set(sink=32), path="kernels")
            self.check_steps(coded_set(sink=0), path="kernels")


if __name__ == "__main__":
    unittest.main()
