# SPDX-License-Identifier: MIT
"""Attention of a prompt's chunk in pieces against all rows at once in float64: chunk_attention_test.py [ChunkTest.test_…]

On a GPU if OSCAR_TEST_DEVICE=cuda, exit status 77 if there is none.
"""
import sys
import unittest
from functools import partial
from unittest import mock

try:
    import torch
    import vllm_backend_test as backends
    from oscar_kv import chunk_attention, packed_layer, score_rule
    from plain_attention import plain_attention
    from vllm_backend_test import DEVICE, KV_HEADS, DIM, coded_set, random
except ImportError as missing:
    print(f"skipped: {missing}; run scripts/setup.sh --tests")
    sys.exit(77)

SCALE = 0.3
LIMIT = 3e-6 if DEVICE == "cpu" else 4e-3  # torch's flash attention of bfloat16 rounds weights and outputs


def expected(q, keys, values, is_causal, soft_cap=0.0):
    """q (tokens, heads, d), keys, values (any, KV heads, d); the last keys are the queries' own -> as chunk_attention.attention()."""
    visible = None if is_causal else torch.ones(len(q), len(keys), dtype=torch.bool, device=q.device)
    return plain_attention(*(x.transpose(0, 1) for x in (q, keys, values)), SCALE, visible, soft_cap)


class Rows:
    """Packed tokens that are rows as they are; what is asked for is remembered."""

    def __init__(self, most_tokens, heads, dim):
        self.most_values, self.asked = most_tokens * heads * dim + heads * dim - 1, []

    def unpack(self, cache, slots, keys, values, *_):
        self.asked.append(len(slots))
        for out, rows in zip((keys, values), cache):
            out.copy_(rows[slots.long()])


def error_of(found, want):
    return float((found.double() - want).norm() / want.norm())


class ChunkTest(unittest.TestCase):
    def rows(self, count, heads, dim, seed):
        return random(count, heads, dim, seed=seed).bfloat16().to(DEVICE)

    def check(self, count, history, windows, room, heads=6, kv_heads=2, dim=64, soft_cap=0.0):
        q = self.rows(count, heads, dim, 1)
        cache, kept, own = ([self.rows(n, kv_heads, dim, seed + side) for side in range(2)] for n, seed in ((50, 2), (windows, 4), (count, 6)))
        slots = torch.randperm(50, generator=torch.Generator().manual_seed(8))[:history].int().to(DEVICE)
        packed = Rows(room, kv_heads, dim)
        out, lse = chunk_attention.attend(q, torch.stack(own), torch.stack(kept), packed, cache, slots, SCALE,
                                          partial(chunk_attention.attention, soft_cap=soft_cap))
        rows = [torch.cat([packed_rows[slots.long()], copies, new]) for packed_rows, copies, new in zip(cache, kept, own)]
        want, sums = expected(q, *rows, True, soft_cap)
        self.assertEqual((out.dtype, out.shape, lse.dtype), (torch.float32, q.shape, torch.float32))
        self.assertLess(error_of(out.transpose(0, 1), want), LIMIT, (count, history, windows, room))
        self.assertLess(error_of(lse.T, sums), LIMIT)
        self.assertEqual(sum(packed.asked), history)
        self.assertLessEqual(max(packed.asked, default=0), room)

    def test_pieces_that_end_anywhere(self):
        for count, history, windows, room in ((9, 40, 5, 50), (9, 40, 5, 45), (9, 40, 5, 7), (9, 40, 5, 20), (9, 40, 5, 40), (1, 13, 3, 4),
                                              (9, 0, 5, 2), (9, 40, 0, 8), (30, 1, 1, 1), (9, 38, 5, 40)):
            self.check(count, history, windows, room)

    def test_another_attention_takes_the_place_of_torchs(self):
        """A server's own: it gets the chunk, causal, and each piece, and its sums are joined."""
        q, asked = self.rows(9, 6, 64, 1), []
        cache, kept, own = ([self.rows(n, 2, 64, seed + side) for side in range(2)] for n, seed in ((40, 2), (5, 4), (9, 6)))
        slots = torch.arange(40, dtype=torch.int32, device=DEVICE)

        def other(rows, keys, values, scaling, is_causal):
            asked.append((keys.shape[1], is_causal))
            out, lse = expected(*(x.transpose(0, 1) for x in (rows, keys, values)), is_causal)
            return out, lse.float()

        out, _ = chunk_attention.attend(q, torch.stack(own), torch.stack(kept), Rows(16, 2, 64), cache, slots, SCALE, other)
        want, _ = expected(q, *(torch.cat(parts) for parts in zip(cache, kept, own)), is_causal=True)
        self.assertLess(error_of(out.transpose(0, 1), want), LIMIT)
        self.assertEqual(asked, [(9, True), (16, False), (16, False), (13, False)])

    def test_shapes_of_heads(self):
        self.check(9, 40, 5, 16, heads=4, kv_heads=4, dim=128)
        self.check(9, 40, 5, 16, heads=8, kv_heads=1, dim=256)

    def test_capped_scores(self):
        """In pieces of keys, and of as few queries at a time as memory has room for."""
        for most in (1 << 23, 6 * 45 * 4, 1):
            with mock.patch.object(score_rule, "_MOST_SCORES", most):
                self.check(9, 40, 5, 16, soft_cap=0.7)
                self.check(9, 0, 0, 16, soft_cap=2.0, heads=8, kv_heads=1)

    def test_pieces_whose_scores_are_far_apart(self):
        """A piece whose weights are all 0 beside those of another adds nothing, in any order."""
        q, count = self.rows(3, 2, 64, 1), 20
        keys, values = (self.rows(count, 2, 64, seed) for seed in (2, 3))
        keys[7] = 400 * q[0]
        own = torch.stack([self.rows(3, 2, 64, seed) for seed in (4, 5)])
        windows, packed = torch.stack([keys[:0], values[:0]]), Rows(4, 2, 64)
        slots = torch.arange(count, dtype=torch.int32, device=DEVICE)
        out, _ = chunk_attention.attend(q, own, windows, packed, (keys, values), slots, SCALE)
        want, _ = expected(q, torch.cat([keys, own[0]]), torch.cat([values, own[1]]), is_causal=True)
        self.assertLess(error_of(out.transpose(0, 1), want), LIMIT)

    serve, be_rank, run_steps = (getattr(backends.BackendTest, name) for name in ("serve", "be_rank", "run_steps"))
    check_steps, by_kernels, worst = backends.BackendTest.check, backends.BackendTest.by_kernels, 0.0

    def test_a_server_reads_in_pieces(self):
        """Of 7 tokens."""
        with mock.patch.object(packed_layer.PackedSlots, "most_values", 7 * KV_HEADS * DIM):
            self.check_steps(coded_set())
            self.by_kernels()
            self.check_steps(coded_set(sink=32), path="kernels")
            self.check_steps(coded_set(sink=0), path="kernels")


if __name__ == "__main__":
    unittest.main()
