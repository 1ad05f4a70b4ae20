# SPDX-License-Identifier: MIT
"""An Int2Cache on int2_pack and int2_decode against the same cache in torch: int2_kernel_test.py [KernelTest.test_…]

On the CPU by the operators' reference (oscar_kv/int2_cpu.py); on the GPU by the kernels if OSCAR_TEST_DEVICE=cuda, exit
status 77 if there is none.
"""
import dataclasses
import itertools
import os
import sys
import types
import unittest
from pathlib import Path
from unittest import mock

try:
    import numpy as np
    import oscar_kv
    import torch
    import transformers
    from oscar_kv import int2_attend, int2_kernel
    from oscar_kv.decode_clock import DecodeClock
    from oscar_kv.int2_rows import SideRows
    from oscar_kv.row_codec import Layout
except ImportError as missing:
    print(f"skipped: {missing}; run scripts/setup.sh --tests")
    sys.exit(77)

DEVICE = os.environ.get("OSCAR_TEST_DEVICE", "cpu")
PROJECT = Path(os.environ["OSCAR_PROJECT"])
SAMPLE, GOLDEN, ZOO = (PROJECT / x for x in ("tests/data/qwen3-2m", "tests/data/golden/qwen3-2m", "zoo/sample/qwen3-2m"))
sys.path.insert(0, str(PROJECT / "scripts/reference"))
import row_codecs  # noqa: E402

torch.set_num_threads(1)
SINK, RECENT = 4, 8


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def manifest(name="minmax", group_size=0, levels=(4, 4), scale_dtype="float32"):
    return {"codec": {"name": name, "levels": list(levels), "group_size": group_size, "scale_dtype": scale_dtype},
            "windows": {"sink": SINK, "recent": RECENT}}


def side(heads, dim, seed, centred=False, clip=0.95, head_clip_ratios=None):
    """Random matrices that are no rotations."""
    rotation = torch.linalg.qr(random(heads, dim, dim, seed=seed).cpu())[0] * torch.linspace(0.5, 2, dim)
    read = torch.linalg.inv(rotation).transpose(-1, -2).contiguous()
    mean = random(heads, dim, seed=seed + 1).cpu() if centred else None
    return oscar_kv.Side(rotation, read, mean, clip, head_clip_ratios, None)


def distance(a, b):
    return float((a.float() - b.float()).norm() / b.float().norm())


def attended(rows, calls, described, dim=64, mask=None, **options):
    """30 tokens of two sequences in calls of so many: outputs by the kernels (if `rows` are for them) and by torch, over the
    same packed rows; the keys."""
    key = rows(described, "key", 0, side(2, dim, 0, centred=True, **options), SINK, RECENT)
    value = rows(described, "value", 0, side(2, dim, 7, **options), SINK, RECENT)
    q, k, v = random(2, 6, 30, dim, seed=1), random(2, 2, 30, dim, seed=2), random(2, 2, 30, dim, seed=3)
    key.begin(k), value.begin(v)
    by_kernels, clock = rows is int2_kernel.KernelRows, DecodeClock(SINK, RECENT)
    ways = [int2_attend] + [int2_kernel] * by_kernels
    outs, first = [[] for _ in ways], 0
    for qs, ks, vs in zip(*(x.split(calls, 2) for x in (q, k, v))):
        if by_kernels and calls == 1:
            step = int2_kernel.step_of(key, value, ks, vs, clock)
            everything = torch.ones(2, 1, 1, key.length, dtype=torch.bool, device=DEVICE)
            attends = [lambda q, part, scaling: step(q, everything if part is None else part, scaling), step]
        else:
            key.append(ks), value.append(vs)
            attends = [way.attention_of(key, value) for way in ways]
            key.evict(), value.evict()
        part = None if mask is None else mask[:, :, first:first + qs.shape[2], :key.length]
        for out, attend in zip(outs, attends):
            out.append(attend(qs, part, 0.2))
        first += qs.shape[2]
    return *(torch.cat(out, 2) for out in outs), key


def log_probabilities(model, ids, cache, calls):
    with torch.no_grad():
        parts = [model(part, past_key_values=cache).logits for part in ids.split(calls, 1)]
    return torch.cat(parts, 1).float().log_softmax(-1)


class KernelTest(unittest.TestCase):
    def setUp(self):
        why = int2_kernel.why_not(manifest(), *[random(1, 1, 1, 64)] * 2, 1, on_cpu=True)
        self.assertIsNone(why)

    def both(self, described, calls, **options):
        by_torch, by_kernel, key = attended(int2_kernel.KernelRows, calls, described, **options)
        self.assertLess(distance(by_kernel, by_torch), 5e-3, (described["codec"], calls))
        _, torch_key = attended(SideRows, calls, described, **options)
        self.assertEqual(key.codes.length, 30 - RECENT + 1 - SINK)
        # A value at the edge between two levels may fall to either side.
        layout, dim = Layout.of(4, key.ring.shape[3]), key.ring.shape[3]
        codes, expected = (layout.unpack(x.codes.rows(), dim) for x in (key, torch_key))
        self.assertGreater(float((codes == expected).float().mean()), 0.99, described["codec"])
        return by_kernel

    def test_attention_of_each_codec_and_call(self):
        for described in (manifest(), manifest("lsq", 32), manifest("minmax", 64, scale_dtype="float16"),
                          manifest("lsq", scale_dtype="bfloat16"), manifest("lloyd-max", 64)):
            for calls in (1, 30):
                self.both(described, calls, dim=128, clip=0.0 if described["codec"]["name"] == "lsq" else 0.9)

    def test_attention_of_wide_rows_and_clip_ratios_of_heads(self):
        self.both(manifest(), 1, dim=256, head_clip_ratios=torch.tensor([0.7, 0.0]))

    def test_calls_of_several_tokens_after_others(self):
        self.assertLess(distance(self.both(manifest(), 7), attended(SideRows, 1, manifest())[0]), 0.01)

    def test_padding_goes_to_torch(self):
        mask = torch.ones(2, 1, 30, 30, device=DEVICE).tril().bool()
        mask[1, :, :, :6] = False
        for calls in (1, 30):
            self.both(manifest(), calls, mask=mask)

    def test_many_sequences_are_cut_into_launches(self):
        before, int2_kernel._SEQUENCES = int2_kernel._SEQUENCES, 14
        self.addCleanup(setattr, int2_kernel, "_SEQUENCES", before)
        self.both(manifest(), 30)

    def test_packed_rows_equal_the_formulas_in_numpy(self):
        x = (random(50, 3, 128) * 3).bfloat16()
        slots = torch.randperm(64, generator=torch.Generator().manual_seed(0))[:50].int()
        slots[7] = -1
        for grid, clip in (("minmax", 0.92), ("minmax", 0.0), ("lsq", 0.0)):
            codes = torch.full((4, 16, 3, 32), 255, dtype=torch.uint8, device=DEVICE)
            params = torch.full((4, 16, 3, 2, 2), -7.0, device=DEVICE)
            torch.ops.oscar.int2_pack(x, slots.to(DEVICE), codes, params, grid=grid, clip_ratio=clip)
            codes, params = codes.flatten(0, 1).cpu(), params.flatten(0, 1).cpu()
            found = torch.cat([codes >> shift & 3 for shift in (0, 2, 4, 6)], -1).unflatten(-1, (2, 64))
            found = ((found - params[..., 1:]) * params[..., :1]).flatten(2)
            codec = row_codecs.Codec(grid, 4, 64, clip, "sort", "float32")
            expected = row_codecs.quantized(x.float().cpu().transpose(0, 1)[None].numpy(), codec)[0].swapaxes(0, 1)
            written = slots >= 0
            found, expected = found[slots[written].long()].numpy(), expected[written.numpy()]
            if grid == "minmax":
                np.testing.assert_allclose(found, expected, atol=2e-5)
            else:  # the kernel's sums are float32, and values at the edge between two levels may fall to either side
                real = x.float().cpu().numpy()[written.numpy()]
                self.assertLess(np.linalg.norm(found - real), 1.001 * np.linalg.norm(expected - real))
                self.assertGreater(np.mean(np.abs(found - expected) < 0.01 * np.abs(real).max()), 0.98)
            unwritten = sorted(set(range(64)) - set(slots.tolist()))
            self.assertTrue(bool((params[unwritten] == -7).all()) and len(unwritten) == 15)

    def model(self):
        model = transformers.AutoModelForCausalLM.from_pretrained(SAMPLE, dtype=torch.float32).eval().to(DEVICE)
        model.set_attn_implementation(oscar_kv.INT2_ATTENTION)
        return model

    def cache(self, model, name="latest", **options):
        rotations = oscar_kv.read_set(ZOO / name)
        windows = {"windows": {"sink": 16, "recent": 64}}
        return oscar_kv.Int2Cache(dataclasses.replace(rotations, manifest=rotations.manifest | windows), model.config,
                                  **options)

    def test_a_model_says_the_same_by_kernel_and_torch(self):
        model = self.model()
        ids = torch.from_numpy(np.load(GOLDEN / "tokens_eval.npy")[:2, :160]).long().to(DEVICE)
        for name, calls in (("latest", 160), ("lsq", 100), ("latest", 1), ("coded", 160), ("coded", 1)):
            kernel, plain = (self.cache(model, name, path=path) for path in ("kernel", "torch"))
            tokens = ids if calls > 1 else ids[:1, :100]
            found, expected = (log_probabilities(model, tokens, cache, calls) for cache in (kernel, plain))
            exact = log_probabilities(model, tokens, transformers.DynamicCache(config=model.config), calls)
            self.assertEqual((kernel.path, plain.path), ("kernel", "torch: as asked for"))
            kld, cost = (float((p.exp() * (p - q)).sum(-1).mean()) for p, q in ((expected, found), (exact, expected)))
            self.assertLess(kld, 0.2 * cost, (name, calls))

    def test_a_coded_cache_with_padding_and_changed_sequences(self):
        """Pages are read in torch where there is a mask, and follow their sequences."""
        model = self.model()
        ids = torch.from_numpy(np.load(GOLDEN / "tokens_eval.npy")[:2, :120]).long().to(DEVICE)
        mask = torch.ones(2, 121, dtype=torch.long, device=DEVICE)
        mask[1, :10] = 0
        found = []
        for path in ("kernel", "torch"):
            cache = self.cache(model, "coded", path=path)
            with torch.no_grad():
                model(ids, past_key_values=cache, attention_mask=mask[:, :120])
                cache.reorder_cache(torch.tensor([1, 0], device=DEVICE))
                logits = model(ids[:, :1], past_key_values=cache, attention_mask=mask.flip(0)).logits[:, -1]
                cache.batch_repeat_interleave(2)
                logits = torch.cat([logits, model(ids[:, :1].repeat_interleave(2, 0), past_key_values=cache).logits[:, -1]])
            found.append(logits.float().log_softmax(-1))
        self.assertEqual(found[0].shape[0], 6)
        self.assertLess(float((found[1].exp() * (found[1] - found[0])).sum(-1).mean()), 1e-3)

    def test_an_exact_prompt_sees_itself_as_it_is(self):
        model = self.model()
        ids = torch.from_numpy(np.load(GOLDEN / "tokens_eval.npy")[:1, :150]).long().to(DEVICE)
        cache = self.cache(model, path="kernel", exact_prompt=True)
        prompt = log_probabilities(model, ids, cache, 150)
        step = log_probabilities(model, ids[:, -1:], cache, 1)
        model.set_attn_implementation("sdpa")
        exact = transformers.DynamicCache(config=model.config)
        self.assertLess(distance(prompt, log_probabilities(model, ids, exact, 150)), 1e-5)
        error = distance(step, log_probabilities(model, ids[:, -1:], exact, 1))
        self.assertTrue(1e-3 < error < 0.2, error)

    def test_a_reset_cache_keeps_no_rows(self):
        model = self.model()
        cache = self.cache(model, path="kernel")
        ids = torch.ones(1, 3, dtype=torch.long, device=DEVICE)
        first = log_probabilities(model, ids, cache, 3)
        cache.reset()
        held = sum(len(side.pages) for layer in cache.layers for side in (layer.key, layer.value))
        self.assertEqual((cache.nbytes(), held), (0, 0))
        self.assertTrue(torch.equal(log_probabilities(model, ids, cache, 3), first))

    def test_room_from_the_start_and_steps_between_calls(self):
        """Steps, a prompt in parts and steps again say what a cache of torch says; no tensor moves where there is room."""
        model = self.model()
        ids = torch.from_numpy(np.load(GOLDEN / "tokens_eval.npy")[:2, :400]).long().to(DEVICE)
        for name in ("latest", "coded"):
            roomy, plain = self.cache(model, name, path="kernel", max_length=400), self.cache(model, name, path="torch")
            parts, places = [], set()
            for cache in (roomy, plain):
                out = [log_probabilities(model, ids[:, :5], cache, 1), log_probabilities(model, ids[:, 5:370], cache, 365)]
                for first in range(370, 400):
                    out.append(log_probabilities(model, ids[:, first:first + 1], cache, 1))
                    if cache is roomy:
                        places.add(tuple(place for layer in cache.layers for place in layer.places()))
                parts.append(torch.cat(out, 1))
                self.assertEqual(cache.get_seq_length(), 400)
            self.assertEqual(len(places), 1)
            found, expected = parts
            self.assertLess(float((expected.exp() * (expected - found)).sum(-1).mean()), 1e-3, name)

    if DEVICE == "cuda":  # graphs are CUDA's
        def test_a_graph_says_what_calls_of_the_model_say(self):
            model = self.model()
            ids = torch.from_numpy(np.load(GOLDEN / "tokens_eval.npy")[:2, :600]).long().to(DEVICE)
            for name, max_length in itertools.product(("latest", "lsq", "coded"), (700, 0)):  # without room the cache grows by 256 tokens
                graphed, plain = (self.cache(model, name, path="kernel", max_length=max_length) for _ in range(2))
                for cache in (graphed, plain):
                    log_probabilities(model, ids[:, :40], cache, 40)
                step = oscar_kv.DecodeGraph(model, graphed)
                found = torch.cat([step(ids[:, i:i + 1]).clone() for i in range(40, 600)], 1).float().log_softmax(-1)
                expected = log_probabilities(model, ids[:, 40:600], plain, 1)
                self.assertLess(distance(found, expected), 1e-4, (name, max_length))
                self.assertEqual(graphed.get_seq_length(), 600)
                after = [log_probabilities(model, ids[:, :7], cache, 7) for cache in (graphed, plain)]
                self.assertLess(distance(*after), 1e-4, (name, max_length))

    def test_a_graph_says_why_it_cannot_be(self):
        model = self.model()
        cache = self.cache(model)
        with self.assertRaisesRegex(ValueError, "the cache is empty; give it the prompt first"):
            oscar_kv.DecodeGraph(model, cache)
        log_probabilities(model, torch.ones(1, 3, dtype=torch.long, device=DEVICE), cache, 3)
        if DEVICE == "cpu":
            with self.assertRaisesRegex(ValueError, "layer 0 of this cache cannot be part of a CUDA graph: it is served by torch: rows are on cpu"):
                oscar_kv.DecodeGraph(model, cache)
        model.set_attn_implementation("sdpa")
        with self.assertRaisesRegex(ValueError, "DecodeGraph needs model.set_attn_implementation..oscar_int2"):
            oscar_kv.DecodeGraph(model, cache)

    def test_indices_are_kept_for_each_stream_but_not_for_graphs(self):
        get = int2_kernel._kept(4)(lambda count, device: torch.arange(count))
        state, device = {"stream": 1, "capturing": False}, torch.device("cuda")
        with mock.patch.multiple(torch.cuda, is_current_stream_capturing=lambda: state["capturing"],
                                 current_stream=lambda _: types.SimpleNamespace(cuda_stream=state["stream"])):
            first = get(3, device)
            self.assertIs(get(3, device), first)
            state["capturing"] = True
            captured = get(3, device)
            state["capturing"] = False
            self.assertIs(get(3, device), first)
            state["stream"] = 2
            other = get(3, device)
        self.assertEqual(len({id(x) for x in (first, captured, other)}), 3)

    def test_says_why_it_takes_torch(self):
        keys, cpu = random(1, 2, 1, 64), torch.zeros(1, 2, 1, 64)
        for expected, described, k, v, heads in (
                ("levels are [8, 4]", manifest(levels=(8, 4)), keys, keys, 2),
                ("64 and 32 channels", manifest(), keys, keys[..., :32], 2),
                ("groups of 16", manifest(group_size=16), keys, keys, 2),
                ("34 query heads for 2", manifest(), keys, keys, 34),
                ("no recent", manifest() | {"windows": {"sink": 4, "recent": 0}}, keys, keys, 2)):
            self.assertIn(expected, int2_kernel.why_not(described, k, v, heads, on_cpu=True))
        self.assertIn("rows are on cpu", int2_kernel.why_not(manifest(), cpu, cpu, 2, on_cpu=False))
        model = self.model()
        model.set_attn_implementation("sdpa")
        with self.assertRaisesRegex(ValueError, "cannot serve this cache: the model's attention is not oscar_int2"):
            log_probabilities(model, torch.ones(1, 3, dtype=torch.long, device=DEVICE), self.cache(model, path="kernel"), 3)
        with self.assertRaisesRegex(ValueError, "path is 'fast'"):
            self.cache(model, path="fast")
        cache = self.cache(model)
        self.assertEqual(cache.path, "none yet")
        log_probabilities(model, torch.ones(1, 3, dtype=torch.long, device=DEVICE), cache, 3)
        self.assertEqual(cache.path, "torch: the model's attention is not oscar_int2")

    def test_takes_the_kernels_by_itself_on_a_gpu_only(self):
        model = self.model()
        cache = self.cache(model)
        log_probabilities(model, torch.ones(1, 3, dtype=torch.long, device=DEVICE), cache, 3)
        self.assertEqual(cache.path, "kernel" if DEVICE == "cuda" else "torch: rows are on cpu, the kernels on CUDA")


if __name__ == "__main__":
    if DEVICE == "cuda" and not torch.cuda.is_available():
        print("skipped: needs an NVIDIA GPU")
        sys.exit(77)
    unittest.main()
