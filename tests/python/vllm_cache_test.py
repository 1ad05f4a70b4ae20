# SPDX-License-Identifier: MIT
"""What vLLM's cache of a layer takes with a set, and what is set aside beside it: vllm_cache_test.py [CacheTest.test_…]. vLLM is a fake."""
import contextlib
import sys
import types
import unittest
from unittest import mock

try:
    import torch
    import vllm_backend_test as backends
    from vllm_backend_test import (BLOCK, DIM, KV_HEADS, NAME, SPEC, Server, coded_set, layers, rows_of, set_of, spec_of, vllm_cache,
                                   vllm_fakes)
except ImportError as missing:
    print(f"skipped: {missing}; run scripts/setup.sh --tests")
    sys.exit(77)


class CacheTest(unittest.TestCase):
    serve, be_rank, by_kernels = backends.BackendTest.serve, backends.BackendTest.be_rank, backends.BackendTest.by_kernels

    def test_ranks_whose_heads_take_less_have_as_much_room(self):
        self.serve(coded_set(heads=2 * KV_HEADS, thin=(2, 3)))
        rooms, taken = [], []
        for rank in range(2):
            self.be_rank(rank, 2)
            server = Server()
            rooms.append((server.cache.shape, server.layer.impl.room))
            taken.append(server.layer.impl.packed.bytes)
        self.assertEqual(rooms[0], rooms[1])
        self.assertEqual(rooms[0][1], taken[0])
        self.assertLess(taken[1], taken[0])

    def test_a_profiling_run_sets_aside_what_windows_take(self):
        """vLLM gives the cache what such a run leaves."""
        self.serve(set_of())
        server = Server()
        impl = layers()[NAME].impl
        impl.most_copies = server.layer.impl.most_copies
        q, k, v = rows_of(3, 0)
        self.assertEqual(float(impl.forward(server.layer, q, k, v, server.cache, None, torch.ones_like(q)).abs().sum()), 0)
        self.assertEqual(impl._copies.shape, (2, server.builder.windows.entries * BLOCK, KV_HEADS, DIM))
        self.assertEqual(impl._copies.nbytes, impl.copy_bytes(impl.most_copies))
        kept = impl._copies
        impl.make_copies(BLOCK + 1, q.device)  # while vLLM measures what its graphs take
        self.assertIs(impl._copies, kept)

    def test_windows_that_leave_no_room_for_a_cache_end_the_start(self):
        self.serve(set_of())
        impl = Server().layer.impl
        taken = impl.copy_bytes(impl.most_copies)
        with mock.patch.object(vllm_cache, "current_platform", types.SimpleNamespace(device_type="cuda")), \
                mock.patch.object(vllm_cache, "slots_of", lambda *_: types.SimpleNamespace(bytes=48)):
            for free, ends in ((2 * taken, False), (2 * taken - 1, True)):
                with mock.patch.object(torch.cuda, "mem_get_info", lambda free=free: (free, free)):
                    with self.assertRaisesRegex(ValueError, "windows of 4 requests .* give --max-num-seqs 1$") if ends else contextlib.nullcontext():
                        spec_of(layers())

    def test_the_cache_takes_what_rows_take(self):
        self.serve(coded_set())
        spec = spec_of(layers())
        heads = [2 + 4 + 3 + 2 + 1 + 1, 2 + 7 + 5 + 2 + 2 + 2 + 1]
        self.assertEqual((spec.num_head_slots, spec.state_content_bytes, spec.dtype), (1, 2 * sum(heads), torch.uint8))
        self.serve(set_of())
        self.assertEqual(spec_of(layers()).state_content_bytes, 2 * KV_HEADS * (DIM // 4 + 8))
        other = vllm_fakes.FakeAttention(NAME, vllm_fakes.FakeImpl, SPEC)  # another backend's layer keeps its own
        self.assertIsNone(spec_of({NAME: other}).state_content_bytes)

    def test_pages_beside_layers_with_sliding_windows_hold_as_many_tokens_as_fit(self):
        self.serve(set_of())
        sliding = vllm_fakes.FakeAttention("model.layers.4.self_attn.attn", vllm_fakes.FakeImpl, SPEC)
        alone, beside = spec_of(layers()), spec_of(layers(**{sliding.layer_name: sliding}))
        self.assertEqual((beside.page_size_bytes, beside.block_size), (SPEC.page_size_bytes, 5 * BLOCK))  # of 96 bytes, not 512
        self.assertEqual((alone.block_size, beside.state_content_bytes), (BLOCK, alone.state_content_bytes))

    def test_pages_that_kernels_do_not_serve_are_rows(self):
        """Five blocks of a page that layers with sliding windows share: 80 tokens are no page of the kernels."""
        self.by_kernels()
        self.serve(coded_set(sink=16))
        sliding = vllm_fakes.FakeAttention("model.layers.4.self_attn.attn", vllm_fakes.FakeImpl, SPEC)
        alone, beside = spec_of(layers()), spec_of(layers(**{sliding.layer_name: sliding}))
        strings = 2 + 3  # bytes of the strings of the heads: of 13 and 21 bits a channel of each block
        self.assertEqual(alone.state_content_bytes, 2 * (8 * strings + 2 * 2))
        self.assertEqual((beside.block_size, beside.state_content_bytes), (5 * BLOCK, 2 * (13 + 21)))

    def test_each_layer_is_prepared_for_blocks_of_its_own_size(self):
        """Layers of a coded set may have other blocks than the one whose builder comes first."""
        self.by_kernels()
        self.serve(coded_set(sink=16))
        sliding = vllm_fakes.FakeAttention("model.layers.4.self_attn.attn", vllm_fakes.FakeImpl, SPEC)
        found = layers(**{sliding.layer_name: sliding})
        self.assertEqual(spec_of(found).block_size, 5 * BLOCK)
        impl = found[NAME].impl
        self.assertEqual(impl.prepare(found[NAME], BLOCK, torch.device(backends.DEVICE)).bytes, impl.room)


if __name__ == "__main__":
    unittest.main()
