# SPDX-License-Identifier: MIT
"""vLLM's attention backend for a set against attention over each request's own rows in float64: vllm_backend_test.py
[BackendTest.test_…]

vLLM is a fake with the classes of 0.32 that the backend uses; vllm_server_test.py runs a real one. On a GPU if
OSCAR_TEST_DEVICE=cuda, exit status 77 if there is none.
"""
import contextlib
import gc
import os
import sys
import types
import unittest
import weakref
from dataclasses import replace
from unittest import mock

try:
    import numpy as np
    import oscar_kv
    import torch
    import vllm_fakes
    from on_device import DEVICE
    from oscar_kv import chunk_attention, offloaded_windows
    from oscar_kv.offloaded_windows import OffloadedWindows, watch_transfers
    from vllm_one_layer import (
        BLOCK, DIM, HEADS, KV_HEADS, NAME, RECENT, SCALE, SINK, SLIDING, SPEC, Expected, Server, builder, coded_set, layers, matrices, random, rows_of,
        set_before_rope, spec_of, turned, vllm_backend)
except ImportError as missing:
    print(f"skipped: {missing}; run scripts/setup.sh --tests")
    sys.exit(77)


class BackendTest(unittest.TestCase):
    def serve(self, rotations):
        self.enterContext(mock.patch.multiple(vllm_backend, packed_set=lambda: rotations, _report=lambda *_: None))

    def be_rank(self, rank, ranks):
        vllm_fakes.RANK[0], vllm_fakes.RANKS[0] = rank, ranks
        self.addCleanup(vllm_fakes.RANK.__setitem__, 0, 0)
        self.addCleanup(vllm_fakes.RANKS.__setitem__, 0, 1)

    worst = 0.0

    def run_steps(self, server, expected, batches, seen=None, limit=0.01):
        seen = seen or dict.fromkeys(expected, 0)
        for batch in batches:
            new = {name: [x[seen[name]:seen[name] + count] for x in expected[name].rows] for name, count in batch.items()}
            found = server.step(new, seen)
            for name, count in batch.items():
                want = expected[name].step(seen[name], count)
                error = float((found[name].double() - want).norm() / want.norm())
                self.worst = max(self.worst, error)
                self.assertLess(error, limit, (name, seen[name], count))
                seen[name] += count

    def check(self, rotations, rank=0, path=None, limit=0.01, rule={}):
        """Three requests: one decodes while another's prompt comes in parts, and one is shorter than the windows."""
        self.be_rank(rank, rank + 1)
        self.serve(rotations)
        server = Server(rule=rule)
        if path is not None:
            self.assertEqual(server.layer.impl.packed.path, path)
        expected = {name: Expected(rotations, rows_of(120, seed), rank * KV_HEADS, rule=rule)
                    for name, seed in (("a", 10), ("b", 20), ("c", 30))}
        self.run_steps(server, expected, [{"a": 50}, {"a": 1}, {"a": 1, "b": 33, "c": 5}, {"b": 40, "a": 1}, {"c": 3, "b": 17, "a": 1}]
                       + [{"c": 1, "b": 1, "a": 1}] * 20, limit=limit)
        print("figure:", server.layer.impl.packed.path, "largest relative error", self.worst, flush=True)

    def test_requests(self):
        self.check(coded_set())
        self.check(coded_set(thin=(0,)))

    def test_prompts_by_flash_attention_of_the_server(self):
        """It gets a step's prompts, and of later chunks their own tokens and the pieces before them."""
        rotations, asked = coded_set(), []
        self.serve(rotations)
        server = Server()

        def flash(q, keys, values, scaling, lengths):
            asked.append((lengths.queries, lengths.keys, lengths.is_causal))
            return chunk_attention.attention(q, keys, values, scaling, lengths)

        server.layer.impl._attention = flash
        expected = {name: Expected(rotations, rows_of(100, seed)) for name, seed in (("a", 10), ("b", 20), ("c", 30))}
        self.run_steps(server, expected, [{"a": 50}, {"b": 30, "a": 40, "c": 20}, {"a": 1, "c": 11, "b": 12}])
        self.assertEqual(asked[:1], [([50], [50], True)])
        self.assertEqual(asked[1:4], [([30, 20], [30, 20], True), ([40], [40], True), ([40], [50], False)])
        self.assertEqual(asked[4:], [([1, 11, 12], [1, 11, 12], True), ([1, 11, 12], [90, 20, 30], False)])

    def uncentred(self, rotations):
        """A set whose keys have their mean, as `oscar fit --model` leaves it to such layers, and whose values do not."""
        layer = rotations.layers[3]
        rotations.layers[3] = oscar_kv.Layer(3, replace(layer.key, mean=torch.zeros(KV_HEADS, DIM)), replace(layer.value, mean=random(KV_HEADS, DIM, seed=3)))
        return rotations

    def test_sinks_and_soft_caps(self):
        """Sinks that are as large as the sum of all tokens, and one that hardly counts; scores have a spread of 1.6."""
        sinks = {"sinks": torch.tensor([6.0, 5.0, 4.0, 3.0, 2.0, -1.0], device=DEVICE).bfloat16()}
        cap, limit = {"logits_soft_cap": 2.0}, 0.015
        for rule in (sinks, cap, sinks | cap):
            self.check(self.uncentred(coded_set()), rule=rule, limit=limit)
        self.by_kernels()
        for rule in (sinks, cap, sinks | cap):
            self.check(self.uncentred(coded_set(sink=32)), path="kernels", rule=rule, limit=limit)

    def test_a_layer_that_reads_the_cache_of_another(self):
        """With the same queries it says the same, and changes nothing."""
        shared = vllm_fakes.FakeAttention("model.layers.9.self_attn.attn", vllm_backend.PackedBackend, SPEC)
        for path in ("torch: the cache is on cpu, the kernels on CUDA", "kernels"):
            shared.impl = vllm_backend.PackedImpl(HEADS, DIM, SCALE, KV_HEADS, kv_sharing_target_layer_name=NAME)
            rotations = coded_set(sink=16)
            self.serve(rotations)
            server = Server(others={shared.layer_name: shared})

            def step(rows, seen):
                call, outputs = server.prepared(rows, seen)
                call()
                again, held = torch.full_like(call.output, 7), [x.clone() for x in (server.cache, server.layer.impl._copies)]
                shared.impl.forward(shared, call.inputs[0], None, None, server.cache, server.metadata, again)
                self.assertTrue(torch.equal(again, call.output))
                self.assertTrue(all(map(torch.equal, held, (server.cache, server.layer.impl._copies))))
                return outputs

            server.step = step
            self.run_steps(server, {name: Expected(rotations, rows_of(120, seed)) for name, seed in (("a", 10), ("b", 20))},
                           [{"a": 50}, {"a": 1, "b": 33}, {"b": 40, "a": 1}] + [{"b": 1, "a": 1}] * 9)
            if DEVICE == "cpu":
                self.assertEqual(server.layer.impl.packed.path, path)
            self.by_kernels()

    def by_kernels(self):
        """On the CPU by the operators, too."""
        self.enterContext(mock.patch.object(vllm_backend, "ON_CPU", True))

    def test_decode_steps_by_kernels(self):
        """Pages of 16 tokens, a sink of 32, which is longer than one request."""
        self.by_kernels()
        for sink in (0, 16, 32):
            self.check(coded_set(sink=sink), path="kernels")
        centred = coded_set(sink=16)
        centred.layers[3] = replace(centred.layers[3], value=replace(centred.layers[3].value, mean=random(KV_HEADS, DIM, seed=3)))
        self.check(centred, path="kernels")
        self.check(coded_set(heads=2 * KV_HEADS, sink=16), rank=1, path="kernels")
        self.check(coded_set(heads=2 * KV_HEADS, sink=16, thin=(2, 3)), rank=1, path="kernels")

    def test_a_prefix_whose_copies_made_room_by_kernels(self):
        """Copies are made of packed rows."""
        self.by_kernels()
        self.check_prefix(coded_set(sink=16))

    def test_where_kernels_do_not_serve(self):
        self.by_kernels()
        self.check(coded_set(), path="torch: a sink of 20 tokens in blocks of 16")
        if DEVICE == "cpu":
            with mock.patch.object(vllm_backend, "ON_CPU", False):
                self.check(coded_set(sink=16), path="torch: the cache is on cpu, the kernels on CUDA")

    def test_keys_before_rope(self):
        """Each is turned by its place in its request, whatever others there are, and when its copy is made of packed rows."""
        self.check(set_before_rope())
        self.check_prefix(set_before_rope())
        self.by_kernels()
        for sink in (0, 16):
            self.check(replace(set_before_rope(), windows=(sink, RECENT)), path="kernels")
        self.check_prefix(replace(set_before_rope(), windows=(16, RECENT)))

    def test_steps_that_builders_share_have_positions_for_all_layers(self):
        """Also if the layers of the builder that makes one need none."""
        part, other = set_before_rope(), vllm_fakes.FakeAttention("model.layers.4.self_attn.attn", vllm_backend.PackedBackend, SPEC)
        part.layers[4] = replace(coded_set().layers[3], layer_id=4)
        other.impl = vllm_backend.PackedImpl(HEADS, DIM, SCALE, KV_HEADS)
        self.serve(part)
        config = vllm_fakes.config_of(layers(**{other.layer_name: other}), 40, 4, 64)
        self.assertTrue(vllm_backend.PackedMetadataBuilder(SPEC, [other.layer_name], config, torch.device(DEVICE)).turns)

    def test_a_rank_takes_its_own_heads(self):
        self.check(coded_set(heads=2 * KV_HEADS), rank=1)
        self.check(coded_set(heads=2 * KV_HEADS, thin=(2, 3)), rank=1)

    def test_a_prefix_that_another_request_left(self):
        rotations = coded_set()
        self.serve(rotations)
        rows = rows_of(110, 10)
        server = Server()
        self.run_steps(server, {"a": Expected(rotations, rows)}, [{"a": 64}, {"a": 1}])
        server.tables["b"] = server.tables["a"][:3]  # 48 tokens, and copies of those of the sink
        other = [torch.cat([x[:48], y[48:]]) for x, y in zip(rows, rows_of(110, 40))]
        expected = Expected(rotations, other, lost=range(32, 48))  # no window of "a" had this block
        self.run_steps(server, {"b": expected}, [{"b": 30}] + [{"b": 1}] * 12, {"b": 48})

    def test_a_prefix_whose_copies_made_room_is_read_packed(self):
        self.check_prefix(coded_set())

    def check_prefix(self, rotations):
        self.serve(rotations)
        server, rows = Server(blocks=90, requests=1, tokens=16), rows_of(64, 10)
        self.run_steps(server, {"a": Expected(rotations, rows)}, [{"a": 16}] * 3)
        for name in "bcd":
            self.run_steps(server, {name: Expected(rotations, rows_of(96, ord(name)))}, [{name: 16}] * 6)
        server.tables["e"] = server.tables["a"][:3]
        self.run_steps(server, {"e": Expected(rotations, rows, lost=range(48))}, [{"e": 1}] * 12, {"e": 48})

    def moved(self, source, destination, first=0):
        """A transfer of vLLM's, of blocks of one request from its `first` on."""
        both = [types.SimpleNamespace(block_ids=np.array(ids), group_sizes=[len(ids)], block_indices=[first]) for ids in (source, destination)]
        return types.SimpleNamespace(req_id="a", src_spec=both[0], dst_spec=both[1])

    def test_a_prefix_that_comes_back_from_the_host(self):
        """Its blocks held another request's copies; of its own it has those of the windows, and none where they were not kept."""
        for budget, lost, by_kernels in ((1 << 20, range(0), False), (1 << 20, range(16, 32), True), (100, range(48), False)):
            rotations, rows, chunks = coded_set(sink=16 if by_kernels else SINK), rows_of(110, 10), [7, 5, 6]
            self.serve(rotations)
            self.enterContext(mock.patch.object(vllm_backend, "ON_CPU", by_kernels))
            server = Server()
            kept = OffloadedWindows([(BLOCK, [server.builder])], *rotations.windows, budget)
            server.builder.offloaded = lambda kept=kept: kept
            self.run_steps(server, {"a": Expected(rotations, rows)}, [{"a": 48}])
            kept._save([self.moved(server.tables["a"][:3], chunks)])
            pages = server.cache[server.tables["a"][:3]].clone()
            self.run_steps(server, {"b": Expected(rotations, rows_of(50, 50))}, [{"b": 48}, {"b": 1}])
            taken = server.tables["c"] = server.tables["b"][:3]
            with self.assertLogs("vllm.oscar_kv", "WARNING") if budget == 100 else contextlib.nullcontext():
                kept._load([self.moved(chunks, taken)])
            server.cache[taken] = pages
            self.run_steps(server, {"c": Expected(rotations, rows, lost=lost)}, [{"c": 1}] * 12, {"c": 48})
            other = Server()  # of another engine of the process, whose blocks have the same numbers
            other.step({"a": [x[:48] for x in rows_of(50, 70)]}, {"a": 0})
            copies = other.layer.impl._copies.clone()
            kept.give(other.builder, torch.tensor(other.tables["a"], device=DEVICE) * BLOCK)
            self.assertTrue(torch.equal(copies, other.layer.impl._copies))

    def test_rows_that_are_kept_for_the_host(self):
        """Those of the sink and of the last tokens of a request, until a block is written anew; rows of others make room."""
        kept, rows, space = OffloadedWindows([(BLOCK, [])], SINK, RECENT, 1 << 20), {NAME: torch.zeros(8)}, types.SimpleNamespace

        def step(**changes):
            moves = space(**{"load_jobs": {}, "store_jobs": {}, "jobs_to_flush": None} | changes.pop("moves", {}))
            cached = space(req_ids=[], resumed_req_ids=set(), num_computed_tokens=[], new_block_ids=[])
            kept.begin(space(**{"kv_connector_metadata": moves, "scheduled_new_reqs": [], "scheduled_cached_reqs": cached, "finished_req_ids": set(),
                                "kv_cache_block_copies": None} | changes))

        def held(part, kind):
            return [number for number in range(20) if part.get((kind, number))]

        for block in range(10):
            kept.first.put(("block", block), rows)
        step(moves={"store_jobs": {1: self.moved(range(4), range(10, 14))}})
        self.assertEqual(held(kept.first, "chunk"), [])  # which is known when the step is over
        step(moves={"store_jobs": {2: self.moved([4, 5], [14, 15], first=4)}, "jobs_to_flush": {2}})
        self.assertEqual((held(kept.first, "chunk"), held(kept.last, "chunk")), ([10, 11], [14, 15]))
        step(moves={"load_jobs": {3: self.moved([10, 15], [8, 9])}})
        self.assertEqual((held(kept.first, "block"), held(kept.last, "block")), ([0, 1, 6, 7, 8], [2, 3, 4, 5, 9]))
        again = space(block_ids=([9],), num_computed_tokens=BLOCK - 1)  # but for its last token, a prompt of a loaded block
        step(scheduled_new_reqs=[space(block_ids=([0, 1, 2, 3],), num_computed_tokens=40), again], kv_cache_block_copies=[space(dst_block_id=8)],
             scheduled_cached_reqs=space(req_ids="bcd", resumed_req_ids={"c"}, num_computed_tokens=[80, 16, 99], new_block_ids=[([5],), ([6, 7],), None]))
        self.assertEqual((held(kept.first, "block"), held(kept.last, "block")), ([0, 1, 6], [4, 9]))
        kept.last.budget = 64
        kept.last.put(("chunk", 1), rows)
        self.assertEqual(held(kept.last, "chunk") + held(kept.last, "block"), [1, 9])
        step(scheduled_new_reqs=[again])  # of a block that was not loaded for it
        self.assertEqual(held(kept.last, "block"), [])
        with self.assertRaisesRegex(ValueError, "between SimpleNamespace and SimpleNamespace does not move each block to a chunk; .* CPUOffloadingSpec"):
            kept._load([self.moved([1, 2], [3])])
        with self.assertRaisesRegex(ValueError, "vLLM chose SimpleCPUOffloadConnector to move blocks; unset VLLM_USE_SIMPLE_KV_OFFLOAD"):
            watch_transfers(None, space(kv_transfer_config=space(kv_connector="SimpleCPUOffloadConnector")))

    def test_rows_that_are_kept_for_the_host_are_those_of_the_set_of_an_engine(self):
        """After others in its process, and none without a set."""
        space, folder, kept = types.SimpleNamespace, "vllm.distributed.kv_transfer.kv_connector.v1.offloading", types.SimpleNamespace(offloaded=lambda: None)
        worker = type("OffloadingConnectorWorker", (), {"register_kv_caches": lambda self, caches: None})
        vllm_fakes.module(f"{folder}.config", get_offloading_group_ids=lambda config: [])
        vllm_fakes.module(f"{folder}.worker", OffloadingConnectorWorker=worker)
        worker.vllm_config = space(compilation_config=space(static_forward_context={}), parallel_config=space(world_size=1),
                                   kv_transfer_config=space(kv_connector="OffloadingConnector"))
        worker.kv_cache_config, worker.spec = space(kv_cache_groups=[]), space(extra_config={"cpu_bytes_to_use": 8})
        for sink in (SINK, 32, None):
            before, kept.offloaded, engine = kept.offloaded, lambda: space(sink=None), worker()
            self.assertIsNone(before())  # they end with their engine
            with mock.patch.object(offloaded_windows, "served_set", lambda sink=sink: coded_set(sink=sink or 48)), \
                    mock.patch.dict(os.environ, {"OSCAR_KV_SET": "SET"} if sink else {}):
                if sink:
                    watch_transfers(kept, worker.vllm_config)
                engine.register_kv_caches({})
            self.assertEqual(kept.offloaded().sink, sink)

    def test_an_engine_that_ended_leaves_no_windows_behind(self):
        self.serve(coded_set())
        server = Server()
        server.step({"a": rows_of(50, 10)}, {"a": 0})
        impl = weakref.ref(server.layer.impl)
        del server
        gc.collect()
        self.assertIsNone(impl())

    def test_drafts_that_are_rejected_leave_nothing_behind(self):
        self.check_drafts(coded_set())

    def test_drafts_by_kernels(self):
        self.by_kernels()
        self.check_drafts(coded_set(sink=16), by_kernels=True)

    def check_drafts(self, rotations, by_kernels=False):
        """Steps of five tokens, of which the first two stay."""
        self.serve(rotations)
        server, rows = Server(), rows_of(110, 10)
        expected = Expected(rotations, rows)
        self.run_steps(server, {"a": expected}, [{"a": 50}])
        for seen in range(50, 100, 2):
            drafts = [torch.cat([x[seen:seen + 2], y[:3]]) for x, y in zip(rows, rows_of(3, seen))]
            found = server.step({"a": drafts}, {"a": seen})["a"][:2].double()
            want = expected.step(seen, 2)
            self.assertLess(float((found - want).norm() / want.norm()), 0.01, seen)
            self.assertEqual(server.metadata.prompts == [], by_kernels)  # those that torch reads

    def test_another_engine_of_a_process_serves_another_set(self):
        for part in (coded_set(), coded_set(sink=32)):
            with mock.patch.object(vllm_backend, "served_set", lambda part=part: part):
                self.assertEqual(vllm_backend.packed_set().windows, part.windows)

    def test_a_step_of_padding_alone(self):
        self.serve(coded_set())
        server = Server()
        common = vllm_fakes.step_of([0, 0, 0], [0, 0], [[0] * 4] * 2, [-1] * 3, [], [], DEVICE)
        q, k, v = rows_of(3, 0)
        server.layer.impl.forward(server.layer, q, k, v, server.cache, server.builder.build(0, common), torch.empty_like(q))
        self.assertEqual(int(server.cache.sum()), 0)

    def test_refuses_a_set_that_is_not_for_the_heads_of_all_ranks(self):
        for expected, rotations, ranks in (
                ("key matrices of 2 KV heads, but 2 ranks have 2 each", coded_set(), 2),  # more ranks than heads
                ("key matrices of 4 KV heads, but 1 ranks have 2 each", coded_set(heads=2 * KV_HEADS), 1)):
            self.serve(rotations)
            self.be_rank(0, ranks)
            with self.assertRaisesRegex(ValueError, expected):
                builder()

    def test_refuses_what_it_cannot_serve(self):
        self.serve(coded_set())
        with self.assertRaisesRegex(NotImplementedError, "does not know this model's sliding_window, sink_token_length, kv_cache_dtype"):
            vllm_backend.PackedImpl(HEADS, DIM, SCALE, KV_HEADS, sliding_window=128, sink_token_length=4, kv_cache_dtype="fp8")
        for rule in ({"logits_soft_cap": 1.0}, {"sinks": torch.ones(HEADS)}):
            with self.assertRaisesRegex(ValueError, "layer 3: key rows are stored without their mean, .* fit a set with oscar fit --model"):
                builder(layers(rule=rule))

    def test_a_layer_that_the_set_does_not_fit_ends_the_start(self):
        self.serve(coded_set())
        with self.assertRaisesRegex(ValueError, "no layer for model.layers.5.self_attn.attn; it has .3."):
            builder(layers("model.layers.5.self_attn.attn"))

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
        """vLLM gives the cache what such a run leaves, and its outputs are 0."""
        self.serve(coded_set())
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
        self.serve(coded_set())
        impl = Server().layer.impl
        taken = impl.copy_bytes(impl.most_copies)
        with mock.patch.object(vllm_backend, "current_platform", types.SimpleNamespace(device_type="cuda")), \
                mock.patch.object(vllm_backend, "_slots_of", lambda *_: types.SimpleNamespace(bytes=48)):
            for free, ends in ((2 * taken, False), (2 * taken - 1, True)):
                with mock.patch.object(torch.cuda, "mem_get_info", lambda free=free: (free, free)):
                    with self.assertRaisesRegex(ValueError, "windows of 4 requests .* give --max-num-seqs 1$") if ends else contextlib.nullcontext():
                        spec_of(layers())

    def test_the_cache_takes_what_rows_take(self):
        self.serve(coded_set())
        spec = spec_of(layers())
        strings = 2 + 3  # bytes of the strings of the heads: of 13 and 21 bits a channel of each block
        self.assertEqual((spec.num_head_slots, spec.state_content_bytes, spec.dtype), (1, 2 * (8 * strings + 2 * 2), torch.uint8))
        other = vllm_fakes.FakeAttention(NAME, vllm_fakes.FakeImpl, SPEC)  # another backend's layer keeps its own
        self.assertIsNone(spec_of({NAME: other}).state_content_bytes)

    def test_pages_beside_layers_with_sliding_windows_hold_as_many_tokens_as_fit(self):
        """Of five blocks that a page has room for, four: 80 tokens are no page of the kernels."""
        self.serve(coded_set(sink=16))
        sliding = vllm_fakes.FakeAttention("model.layers.4.self_attn.attn", vllm_fakes.FakeImpl, SLIDING)
        alone, beside = spec_of(layers()), spec_of(layers(**{sliding.layer_name: sliding}))
        self.assertEqual((beside.page_size_bytes, beside.block_size), (SPEC.page_size_bytes, 4 * BLOCK))
        self.assertEqual((alone.block_size, beside.state_content_bytes), (BLOCK, alone.state_content_bytes))
        drafting = vllm_fakes.FakeAttention("model.layers.4.self_attn.attn", vllm_fakes.FakeImpl, SPEC)
        self.assertEqual(spec_of(layers(**{drafting.layer_name: drafting})), alone)  # whose pages may have any size

    def test_blocks_of_a_hybrid(self):
        """What a token takes is known when vLLM makes blocks as large as states; it cuts them into pages, each of which windows know."""
        self.serve(coded_set(sink=16))
        self.enterContext(mock.patch.multiple(vllm_backend.PackedBackend, page=0, room=0))
        watched = self.enterContext(mock.patch.object(vllm_backend, "watch_scheduler"))
        state = types.SimpleNamespace(get_kv_cache_spec=lambda config: types.SimpleNamespace(page_size_bytes=96 * room + others))
        found, (room, others) = layers(**{"model.layers.2.linear_attn": state}), (spec_of(layers()).state_content_bytes, 0)
        config = vllm_fakes.config_of(found, 40, 4, 64)

        def finish():
            self.assertEqual(vllm_backend.PackedBackend.customize_spec(replace(SPEC, block_size=1)).page_size_bytes, room)
            config.cache_config.block_size, found[NAME].spec = 96, replace(SPEC, block_size=96)

        config.cache_config.block_size, config.cache_config.prefix_match_unit = 32, None
        config.model_config = types.SimpleNamespace(is_hybrid=True)
        vllm_backend.PackedBackend.share_blocks(config, finish)
        spec = found[NAME].get_kv_cache_spec(config)
        self.assertEqual((spec.page_size_bytes, vllm_backend.PackedBackend.customize_spec(spec)), (96 * room, spec))
        self.assertEqual((found[NAME].impl.block_size, vllm_backend.PackedBackend.get_supported_kernel_block_sizes()), (BLOCK, [BLOCK]))
        windows = vllm_backend.PackedMetadataBuilder(SPEC, list(found), config, torch.device(DEVICE)).windows
        table, begin = torch.arange(240, device=DEVICE, dtype=torch.int32)[None], torch.tensor([0], device=DEVICE)
        windows.begin(table, begin, begin + 96, torch.arange(96, device=DEVICE))
        last = torch.tensor([95], device=DEVICE)
        self.assertGreater(int(windows.copies(last)), 0)
        watched.call_args[0][0](types.SimpleNamespace(kv_cache_block_copies=[types.SimpleNamespace(dst_block_id=0)]))
        self.assertEqual(int(windows.copies(last)), -1)
        config.cache_config.block_size, others = 32, 1
        with self.assertRaisesRegex(ValueError, f"cannot be served: blocks of model.layers.2.linear_attn take {96 * room + 1} bytes, and packed"):
            vllm_backend.PackedBackend.share_blocks(config, finish)
        config.model_config.is_hybrid = False
        vllm_backend.PackedBackend.share_blocks(config, lambda: self.assertEqual(vllm_backend.PackedBackend.get_supported_kernel_block_sizes(), [1]))
        self.assertIs(vllm_backend.PackedBackend.customize_spec(spec), spec)

    def test_each_layer_is_prepared_for_blocks_of_its_own_size(self):
        """Layers may have other blocks than the one whose builder comes first."""
        self.by_kernels()
        self.serve(coded_set(sink=16))
        sliding = vllm_fakes.FakeAttention("model.layers.4.self_attn.attn", vllm_fakes.FakeImpl, SLIDING)
        found = layers(**{sliding.layer_name: sliding})
        self.assertGreater(spec_of(found).block_size, BLOCK)
        impl = found[NAME].impl
        self.assertEqual(impl.prepare(found[NAME], BLOCK, torch.device(DEVICE)).bytes, impl.room)


if __name__ == "__main__":
    unittest.main()
