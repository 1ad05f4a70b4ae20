# SPDX-License-Identifier: MIT
"""vLLM's attention backend for a set against the torch path of Int2Cache: vllm_backend_test.py [BackendTest.test_…]

vLLM is a fake with the classes of its v1/attention/backend.py (0.17 to 0.26) that the backend uses: no server runs here. On
the CPU by the reference of both operators; by the kernels if OSCAR_TEST_DEVICE=cuda, exit status 77 if there is no GPU.
"""
import os
import sys
import types
import unittest
from dataclasses import replace
from typing import Generic, TypeVar
from unittest import mock

try:
    import oscar_kv
    import torch
    from oscar_kv import int2_attend, int2_side
    from oscar_kv.int2_kernel import KernelRows
except ImportError as missing:
    print(f"skipped: {missing}; run scripts/setup.sh --tests")
    sys.exit(77)

DEVICE = os.environ.get("OSCAR_TEST_DEVICE", "cpu")
torch.set_num_threads(1)
BLOCK, SINK, RECENT, HEADS, KV_HEADS, DIM = 16, 16, 8, 6, 2, 64
SCALE = 0.2
METADATA = TypeVar("METADATA")
RANK, RANKS = [0], [1]


class FakeMetadataBuilder(Generic[METADATA]):
    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        self.kv_cache_spec, self.layer_names, self.vllm_config, self.device = kv_cache_spec, layer_names, vllm_config, device


class FakeImpl(Generic[METADATA]):
    pass


oscar_kv.load_library()
if DEVICE == "cpu":
    from oscar_kv import int2_cpu  # noqa: F401  (registers the operators)


def install_fakes():
    def module(name, **members):
        for i in range(len(parts := name.split("."))):
            sys.modules.setdefault(".".join(parts[:i + 1]), types.ModuleType(".".join(parts[:i + 1])))
        vars(sys.modules[name]).update(members)

    module("vllm.v1.attention.backend", AttentionBackend=type("AttentionBackend", (), {}), AttentionImpl=FakeImpl,
           AttentionMetadata=type("AttentionMetadata", (), {}), AttentionMetadataBuilder=FakeMetadataBuilder)
    module("vllm.distributed", get_tensor_model_parallel_rank=lambda: RANK[0],
           get_tensor_model_parallel_world_size=lambda: RANKS[0])


install_fakes()
from oscar_kv import vllm_backend  # noqa: E402


def random(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def set_of(heads=KV_HEADS, name="minmax", group_size=0, scale_dtype="float32", levels=(4, 4), clips=None):
    def side(seed):
        rotation = torch.linalg.qr(random(heads, DIM, DIM, seed=seed))[0] * torch.linspace(0.5, 2, DIM)
        read = torch.linalg.inv(rotation).transpose(-1, -2).contiguous()
        return oscar_kv.Side(rotation, read, random(heads, DIM, seed=seed + 1), 0.9, clips, None)

    manifest = {"codec": {"name": name, "levels": list(levels), "group_size": group_size, "scale_dtype": scale_dtype},
                "windows": {"sink": SINK, "recent": RECENT}}
    return oscar_kv.RotationSet(manifest, {3: oscar_kv.Layer(3, side(0), replace(side(7), mean=None))})


def layers(number=3, **others):
    """As vLLM's static_forward_context: attention layers, and what else runs once a step."""
    name = f"model.layers.{number}.self_attn.attn"
    impl = vllm_backend.Int2Impl(HEADS, DIM, SCALE, KV_HEADS)
    return {name: types.SimpleNamespace(layer_name=name, impl=impl), "model.layers.3.router": object()} | others


def builder(block_size=BLOCK, dtype=torch.bfloat16, **changes):
    config = {"prefix": False, "chunked": False, "speculative": None, "layers": layers()} | changes
    spec = types.SimpleNamespace(block_size=block_size, dtype=dtype, num_kv_heads=KV_HEADS, head_size=DIM)
    ours = [name for name, layer in config["layers"].items() if isinstance(getattr(layer, "impl", None), vllm_backend.Int2Impl)]
    return vllm_backend.Int2Backend.get_builder_cls()(spec, ours, types.SimpleNamespace(
        compilation_config=types.SimpleNamespace(static_forward_context=config["layers"]), cache_config=types.SimpleNamespace(enable_prefix_caching=config["prefix"]),
        scheduler_config=types.SimpleNamespace(enable_chunked_prefill=config["chunked"]),
        speculative_config=config["speculative"]), torch.device(DEVICE))


class Server:
    """What vLLM's runner does for one layer: blocks for requests, batches of decoding ones and whole prompts."""

    def __init__(self, blocks=40):
        shape = vllm_backend.Int2Backend.get_kv_cache_shape(blocks, BLOCK, KV_HEADS, DIM)
        self.cache = torch.zeros(shape, dtype=torch.bfloat16, device=DEVICE)
        self.free = torch.randperm(blocks, generator=torch.Generator().manual_seed(0)).tolist()
        self.tables, self.builder = {}, builder()
        self.impl = vllm_backend.Int2Backend.get_impl_cls()(HEADS, DIM, SCALE, KV_HEADS)

    def step(self, rows, seen):
        """rows: {request: (q, k, v) of new tokens}, seen: {request: tokens before}; in vLLM's order."""
        slots, lengths, starts = [], [], [0]
        for name, (q, _, _) in rows.items():
            table, length = self.tables.setdefault(name, []), seen[name] + len(q)
            while len(table) * BLOCK < length:
                table.append(self.free.pop())
            slots += [table[t // BLOCK] * BLOCK + t % BLOCK for t in range(seen[name], length)]
            lengths.append(length)
            starts.append(starts[-1] + len(q))
        width = max(len(self.tables[name]) for name in rows) + 2  # of the longest that a server allows
        tables = torch.tensor([self.tables[name] + [0] * (width - len(self.tables[name])) for name in rows], dtype=torch.int32)
        common = types.SimpleNamespace(
            query_start_loc_cpu=torch.tensor(starts, dtype=torch.int32), num_actual_tokens=starts[-1],
            seq_lens=torch.tensor(lengths, dtype=torch.int32, device=DEVICE), max_seq_len=max(lengths),
            block_table_tensor=tables.to(DEVICE), slot_mapping=torch.tensor(slots, device=DEVICE))
        q, k, v = (torch.cat([each[i] for each in rows.values()] + [torch.full_like(each_nan, torch.nan)])
                   for i, each_nan in enumerate(next(iter(rows.values()))))  # padding behind
        layer = types.SimpleNamespace(layer_name="model.layers.3.self_attn.attn")
        output = torch.full_like(q, 7)
        self.impl.forward(layer, q, k, v, self.cache, self.builder.build(0, common), output)
        return {name: output[a:b] for name, a, b in zip(rows, starts, starts[1:])}


class Expected:
    """A request by itself: packed by the kernels, read by torch."""

    def __init__(self, rotations, first_head):
        layer = rotations.layers[3]
        self.sides = [KernelRows(rotations.manifest, name, 3, int2_side.of_heads(side, first_head, KV_HEADS), SINK, RECENT)
                      for name, side in (("key", layer.key), ("value", layer.value))]

    def step(self, *rows):
        q, *kv = (x.transpose(0, 1)[None] for x in rows)
        is_prompt = self.sides[0].length == 0
        for side, x in zip(self.sides, kv):
            if is_prompt:
                side.begin(x)
            side.append(x)
        attend = int2_attend.attention_of(*self.sides)
        for side in self.sides:
            side.evict()
        out = attend(q, None, SCALE) if not is_prompt else torch.nn.functional.scaled_dot_product_attention(
            q, *kv, is_causal=True, scale=SCALE, enable_gqa=True)
        return out[0].transpose(0, 1)


class BackendTest(unittest.TestCase):
    def serve(self, rotations):
        patch = mock.patch.object(vllm_backend, "_served_set", lambda: rotations)
        patch.start()
        self.addCleanup(patch.stop)

    def be_rank(self, rank, ranks):
        RANK[0], RANKS[0] = rank, ranks
        self.addCleanup(RANK.__setitem__, 0, 0)
        self.addCleanup(RANKS.__setitem__, 0, 1)

    def check(self, rotations, rank=0):
        """Three requests: one decodes while the others' prompts come, one of them shorter than its windows."""
        self.be_rank(rank, rank + 1)
        self.serve(rotations)
        server, expected = Server(), {name: Expected(rotations, rank * KV_HEADS) for name in "abc"}
        rows = {name: [random(90, heads, DIM, seed=seed + i).bfloat16().to(DEVICE) for i, heads in enumerate((HEADS, KV_HEADS, KV_HEADS))]
                for seed, name in ((10, "a"), (20, "b"), (30, "c"))}
        seen = dict.fromkeys("abc", 0)
        batches = [{"a": 50}, {"a": 1}, {"a": 1, "b": 33, "c": 5}] + [{"c": 1, "b": 1, "a": 1}] * 25
        for batch in batches:
            new = {name: [x[seen[name]:seen[name] + count] for x in rows[name]] for name, count in batch.items()}
            found = server.step(new, seen)
            for name, count in batch.items():
                want = expected[name].step(*new[name]).float()
                error = float((found[name].float() - want).norm() / want.norm())
                self.assertLess(error, 0.01 if count == 1 else 5e-3, (name, seen[name]))
                seen[name] += count

    def test_requests_of_each_codec(self):
        self.check(set_of())
        self.check(set_of(name="lsq", group_size=32, scale_dtype="bfloat16"))
        self.check(set_of(clips=torch.tensor([0.8, 0.0])))
        self.check(set_of(name="lloyd-max"))

    def test_a_rank_takes_its_own_heads(self):
        self.check(set_of(heads=2 * KV_HEADS), rank=1)

    def test_refuses_a_set_that_is_not_for_the_heads_of_all_ranks(self):
        x = torch.zeros(1, KV_HEADS, DIM, device=DEVICE)
        layer = types.SimpleNamespace(layer_name="model.layers.3.x")
        ratios = torch.full((KV_HEADS + 1,), 0.9)
        for expected, rotations, ranks in (
                ("key matrices of 2 KV heads, but 2 ranks have 2 each", set_of(), 2),  # more ranks than heads
                ("key matrices of 4 KV heads, but 1 ranks have 2 each", set_of(heads=2 * KV_HEADS), 1),
                ("key clip ratios of 3 KV heads, but 1 ranks have 2 each", set_of(clips=ratios), 1)):
            self.serve(rotations)
            self.be_rank(0, ranks)
            with self.assertRaisesRegex(ValueError, expected):
                vllm_backend.Int2Impl(HEADS, DIM, SCALE, KV_HEADS)._sides_of(layer, x, x)

    def test_refuses_a_prompt_with_tokens_before_it(self):
        self.serve(set_of())
        q, k, v = (random(30, heads, DIM, seed=heads).bfloat16().to(DEVICE) for heads in (HEADS, KV_HEADS, KV_HEADS))
        with self.assertRaisesRegex(ValueError, "a prompt of 30 tokens has 20 before it"):
            Server().step({"a": (q, k, v)}, {"a": 20})

    def test_windows_and_packed_rows_share_slots(self):
        self.serve(set_of())
        server = Server()
        q, k, v = (random(60, heads, DIM, seed=i).bfloat16().to(DEVICE) for i, heads in enumerate((HEADS, KV_HEADS, KV_HEADS)))
        server.step({"a": (q, k, v)}, {"a": 0})
        side = server.impl._sides[0]
        slots = torch.tensor([server.tables["a"][t // BLOCK] * BLOCK + t % BLOCK for t in range(60)],
                             device=DEVICE)
        held = server.cache.flatten(0, 1)[slots][..., :DIM]
        same = (held == side.stored(k.transpose(0, 1)).transpose(0, 1)).flatten(1).all(1)
        self.assertEqual(same.tolist(), [t < SINK or t >= 60 - RECENT for t in range(60)])

    def test_a_profiling_run_writes_nothing(self):
        self.serve(set_of())
        output = torch.ones(3, HEADS, DIM)
        impl = vllm_backend.Int2Impl(HEADS, DIM, SCALE, KV_HEADS)
        self.assertEqual(float(impl.forward(None, output, None, None, None, None, output).abs().sum()), 0)

    def test_refuses_what_it_cannot_serve(self):
        self.serve(set_of())
        for expected, changes in (("--no-enable-prefix-caching", {"prefix": True}), ("--no-enable-chunked-prefill", {"chunked": True}),
                                  ("speculative decoding", {"speculative": 1}), ("--dtype bfloat16", {"dtype": torch.float16}),
                                  ("blocks of 64 tokens, for a sink of 16", {"block_size": 64})):
            with self.assertRaisesRegex(ValueError, expected):
                builder(**changes)
        with self.assertRaisesRegex(NotImplementedError, "does not know this model's sliding_window, sinks"):
            vllm_backend.Int2Impl(HEADS, DIM, SCALE, KV_HEADS, sliding_window=128, sinks=torch.ones(HEADS))
        common = types.SimpleNamespace(query_start_loc_cpu=torch.tensor([0, 5, 6]), slot_mapping=None, seq_lens=torch.ones(2, 1))
        with self.assertRaisesRegex(ValueError, "stands behind a prompt"):
            builder().build(0, common)
        x = torch.zeros(1, KV_HEADS, DIM, device=DEVICE)
        for expected, rotations, layer in (("no layer for model.layers.5.x; it has .3.", set_of(), 5),
                                           ("levels are .5, 3.", set_of(levels=(5, 3)), 3)):
            self.serve(rotations)
            with self.assertRaisesRegex(ValueError, expected):
                vllm_backend.Int2Impl(HEADS, DIM, SCALE, KV_HEADS)._sides_of(
                    types.SimpleNamespace(layer_name=f"model.layers.{layer}.x"), x, x)

    def test_a_layer_that_the_set_does_not_fit_ends_the_start(self):
        self.serve(set_of())
        for expected, found in (("no layer for model.layers.5.self_attn.attn; it has .3.", layers(5)),
                                ("another attention backend has model.layers.4.attn, which would be served without the set",
                                 layers(**{"model.layers.4.attn": types.SimpleNamespace(impl=FakeImpl())}))):
            with self.assertRaisesRegex(ValueError, expected):
                builder(layers=found)
        self.serve(set_of(heads=2 * KV_HEADS))
        with self.assertRaisesRegex(ValueError, "key matrices of 4 KV heads, but 1 ranks have 2 each"):
            builder()


if __name__ == "__main__":
    if DEVICE == "cuda" and not torch.cuda.is_available():
        print("skipped: needs an NVIDIA GPU")
        sys.exit(77)
    unittest.main()
