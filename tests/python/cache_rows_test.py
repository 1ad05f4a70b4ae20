# SPDX-License-Identifier: MIT
"""The rows of a PackedCache, packed and in windows, and attention to them, by kernels against torch: cache_rows_test.py [RowsTest.test_…]

On the CPU by the operators there; on a GPU by the kernels if OSCAR_TEST_DEVICE=cuda, exit status 77 if there is none.
"""
import dataclasses
import sys
import unittest

try:
    import numpy as np
    import oscar_kv
    import torch
    import transformers
    from on_device import DEVICE
    from oscar_kv import packed_cache, packed_layer
    from oscar_kv.cache_rows import DecodeClock, LayerRows
    from oscar_kv.score_rule import ScoreRule
    from plain_attention import plain_attention
    from sample_sets import GOLDEN, MODEL, sample_set
except ImportError as missing:
    print(f"skipped: {missing}; run scripts/setup.sh --tests")
    sys.exit(77)

SINK, RECENT = 4, 8


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def side(dim, seed, centred=False, levels=8):
    """Random matrices of two heads that are no rotations."""
    rotation = torch.linalg.qr(random(2, dim, dim, seed=seed).cpu())[0] * torch.linspace(0.5, 2, dim)
    read = torch.linalg.inv(rotation).transpose(-1, -2).contiguous()
    mean = random(2, dim, seed=seed + 1).cpu() if centred else None
    sigma = torch.linspace(0.5, 2, dim).expand(2, dim)
    return oscar_kv.Side(rotation, read, mean, torch.full((2, dim), levels, dtype=torch.int32), 6 * sigma / levels, sigma)


def rows_of(dim=64, rule=ScoreRule(), **options):
    """Of a layer of two heads, of which the keys are centred, or the values where scores have a rule."""
    layer = oscar_kv.Layer(3, side(dim, 0, centred=rule.is_plain, **options), side(dim, 7, centred=not rule.is_plain, **options))
    return LayerRows(oscar_kv.SetPart({3: layer}, (SINK, RECENT)), layer)


def distance(a, b):
    return float((a.float() - b.float()).norm() / b.float().norm())


def attended(calls, dim=64, mask=None, by_kernel=True, rule=ScoreRule(), **options):
    """30 tokens of two sequences in calls of so many: outputs by kernels, in torch over the same rows, and over native rows."""
    rows, clock = rows_of(dim, rule, **options), DecodeClock(SINK, RECENT)
    q, k, v = random(2, 6, 30, dim, seed=1), random(2, 2, 30, dim, seed=2), random(2, 2, 30, dim, seed=3)
    rows.begin(k, v, torch.device(DEVICE if by_kernel else "cpu"))
    outs, first = ([], [], []), 0
    for qs, ks, vs in zip(*(x.split(calls, 2) for x in (q, k, v))):
        if calls == 1 and by_kernel:
            step = rows.step_of(ks, vs, clock)
            everything = torch.ones(2, 1, 1, rows.length, dtype=torch.bool, device=DEVICE)
            by_kernels, in_torch, native = step, lambda q, part, *more: step(q, everything if part is None else part, *more), None
        else:
            rows.append(ks, vs)
            by_kernels = in_torch = rows.attention()
            native = rows.read()
            rows.evict()
        part = None if mask is None else mask[:, :, first:first + qs.shape[2], :rows.length]
        outs[0].append(by_kernels(qs, part, 0.2, rule))
        outs[1].append(in_torch(qs, part, 0.2, rule))
        if native is not None:
            causal = torch.ones(qs.shape[2], rows.length, device=DEVICE).tril(rows.length - qs.shape[2]).bool()
            seen = causal.expand(2, 1, *causal.shape) if part is None else part
            outs[2].append(torch.stack([plain_attention(*each, 0.2, mask[0], rule.soft_cap, rule.sinks)[0] for *each, mask in zip(qs, *native, seen)]))
        first += qs.shape[2]
    return [torch.cat(out, 2) if out else None for out in outs]


def log_probabilities(model, ids, cache, calls):
    with torch.no_grad():
        parts = [model(part, past_key_values=cache).logits for part in ids.split(calls, 1)]
    return torch.cat(parts, 1).float().log_softmax(-1)


class RowsTest(unittest.TestCase):
    def rows(self, calls, levels):
        """40 tokens in calls of so many, and as they are read in the last one."""
        rows, native = rows_of(levels=levels), [random(1, 2, 40, 64, seed=seed) for seed in (5, 6)]
        rows.begin(*native, torch.device(DEVICE))
        for parts in zip(*(x.split(calls, 2) for x in native)):
            rows.append(*parts)
            read = rows.read()
            rows.evict()
        return native, read, rows

    def test_keys_of_a_text_that_becomes_long_turn_as_a_long_text_has_them(self):
        """With LongRoPE: each call's keys turned by the text that there was, and all that are packed are read by the text that there is."""
        near, frequency = 24, 10.0 ** -torch.arange(32)
        rotary = oscar_kv.sets.Rotary([[i, i + 32] for i in range(32)], frequency.tolist(), 2**-9, 256, (frequency / 2).tolist(), near)
        key = dataclasses.replace(side(64, 0, levels=256), rotation=torch.eye(64).expand(2, 64, 64), read_rotation=torch.eye(64).expand(2, 64, 64), rotary=rotary)
        layer = oscar_kv.Layer(3, key, side(64, 7, levels=256))
        rows, keys, values = LayerRows(oscar_kv.SetPart({3: layer}, (SINK, RECENT)), layer), random(1, 2, 40, 64, seed=5), random(1, 2, 40, 64, seed=6)

        def turned(first, count, length):
            angles = torch.arange(first, first + count, device=DEVICE)[:, None] * (frequency / (2 if length > near else 1)).to(DEVICE)
            x, y = keys[:, :, first:first + count].chunk(2, -1)
            return torch.cat([x * angles.cos() - y * angles.sin(), x * angles.sin() + y * angles.cos()], -1)

        rows.begin(keys[:, :, :0], values[:, :, :0], torch.device(DEVICE))
        for first, count in ((0, 20), *((i, 1) for i in range(20, 40))):
            rows.append(turned(first, count, first + count), values[:, :, first:first + count])
            read = rows.read()[0]
            rows.evict()
        history = slice(SINK, SINK + rows.packed - 1)
        self.assertLess(distance(read[:, :, history], turned(0, 40, 40)[:, :, history]), 0.08)

    def test_native_rows_come_back_in_order(self):
        native, read, rows = self.rows(7, 256)
        for found, expected in zip(read, native):
            self.assertLess(distance(found, expected), 0.03)
        self.assertEqual((rows.packed, rows.window(rows.packed).shape[2]), (40 - RECENT + 1 - SINK, SINK + RECENT - 1))

    def test_history_and_windows_are_where_they_belong(self):
        native, read, _ = self.rows(1, 2)
        for found, expected in zip(read, native):
            exact = ((found - expected).norm(dim=-1) / expected.norm(dim=-1)).amax((0, 1)) < 0.02
            self.assertEqual(exact.tolist(), [token < SINK or token > 39 - RECENT for token in range(40)])

    def test_attention_of_each_shape_and_call(self):
        for options in ({"dim": 128}, {"dim": 256}, {"dim": 64, "levels": 4}):
            one = None
            for calls in (1, 7, 30):
                by_kernels, in_torch, _ = attended(calls, **options)
                self.assertLess(distance(by_kernels, in_torch), 5e-3, (options, calls))
                one = by_kernels if one is None else one
                self.assertLess(distance(by_kernels, one), 0.01, (options, calls))  # however many come at once

    def test_sinks_and_soft_caps(self):
        sinks = torch.tensor([6.0, 5.0, 4.0, 3.0, 2.0, -1.0], device=DEVICE).bfloat16()
        for rule in (ScoreRule(sinks=sinks), ScoreRule(2.0), ScoreRule(2.0, sinks)):
            in_torch, _, native = attended(1, by_kernel=False, rule=rule)
            self.assertLess(distance(in_torch, native), 0.01, rule)
            for calls in (1, 7):
                self.assertLess(distance(attended(calls, rule=rule)[0], in_torch), 0.01, (rule, calls))
        rows, new = rows_of(), random(1, 2, 1, 64)
        for begun in ("append", "step_of"):
            rows.begin(new, new, torch.device(DEVICE))
            step = rows.step_of(new, new, DecodeClock(SINK, RECENT)) if begun == "step_of" else rows.append(new, new) or rows.attention()
            with self.assertRaisesRegex(ValueError, "layer 3: key rows are stored without their mean, which soft caps and sinks"):
                step(random(1, 6, 1, 64), None, 0.2, ScoreRule(sinks=sinks))
            rows.clear()

    def test_rows_that_kernels_do_not_take_are_packed_on_the_cpu(self):
        for calls in (1, 30):
            out, _, native = attended(calls, 96, by_kernel=False)
            if calls == 1:
                self.assertLess(distance(out, native), 0.01)

    def test_each_token_of_a_prompt_has_windows_of_its_own(self):
        out, _, native = attended(30, levels=2)
        self.assertGreater(distance(native, out), 0.05)  # a prompt at once sees itself exactly

    def test_padding_goes_to_torch(self):
        mask = torch.ones(2, 1, 30, 30, device=DEVICE).tril().bool()
        mask[1, :, :, :6] = False
        alone = attended(1)[0]
        for calls in (1, 30):
            by_kernels, in_torch, _ = attended(calls, mask=mask)
            self.assertLess(distance(by_kernels, in_torch), 5e-3)
            self.assertLess(distance(by_kernels[0], alone[0]), 0.01)
            self.assertGreater(float((by_kernels[1, :, 6:] - alone[1, :, 6:]).norm()), 1)

    def test_tokens_of_a_picture_see_each_other_both_ways(self):
        mask = torch.ones(2, 1, 30, 30, device=DEVICE).tril().bool()
        mask[:, :, 5:9, 5:9] = True
        out, _, native = (x[:, :, :SINK + RECENT] for x in attended(30, mask=mask))  # whose windows have all that they see
        self.assertLess(distance(out, native), 0.01)

    def test_refuses_rows_of_another_shape(self):
        for expected, heads, dim in (("layer 3: key rows of 32 channels do not fit matrices of 64 x 64", 2, 32),
                                     ("layer 3: key matrices of 2 KV heads, but 1 ranks have 4 each", 4, 64)):
            with self.assertRaisesRegex(ValueError, expected):
                rows_of().begin(*[random(1, heads, 0, dim)] * 2, torch.device(DEVICE))

    def model(self):
        model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval().to(DEVICE)
        model.set_attn_implementation(oscar_kv.PACKED_ATTENTION)
        return model

    def cache(self, model, **options):
        return oscar_kv.PackedCache(dataclasses.replace(oscar_kv.read_set(sample_set("coded", keys="after-rope")), windows=(16, 64)), model.config, **options)

    def test_a_model_says_the_same_by_kernel_and_torch(self):
        model = self.model()
        ids = torch.from_numpy(np.load(GOLDEN / "tokens_eval.npy")[:2, :160]).long().to(DEVICE)
        for calls in (160, 1):
            kernel, plain = (self.cache(model, path=path) for path in ("kernel", "torch"))
            tokens = ids if calls > 1 else ids[:1, :100]
            found, expected = (log_probabilities(model, tokens, cache, calls) for cache in (kernel, plain))
            exact = log_probabilities(model, tokens, transformers.DynamicCache(config=model.config), calls)
            self.assertEqual((kernel.path, plain.path), ("kernel", "torch: as asked for"))
            kld, cost = (float((p.exp() * (p - q)).sum(-1).mean()) for p, q in ((expected, found), (exact, expected)))
            self.assertLess(kld, 0.2 * cost, calls)
        # Queries for stored keys leave the range of float16.
        half = log_probabilities(model.half(), tokens, self.cache(model), 100)
        self.assertLess(float((expected.exp() * (expected - half)).sum(-1).mean()), 0.2 * cost)

    def test_padding_and_changed_sequences(self):
        """Pages are read in torch where there is a mask, and follow their sequences."""
        model = self.model()
        ids = torch.from_numpy(np.load(GOLDEN / "tokens_eval.npy")[:2, :120]).long().to(DEVICE)
        mask = torch.ones(2, 121, dtype=torch.long, device=DEVICE)
        mask[1, :10] = 0
        found = []
        for path in ("kernel", "torch"):
            cache = self.cache(model, path=path)
            with torch.no_grad():
                model(ids, past_key_values=cache, attention_mask=mask[:, :120])
                cache.reorder_cache(torch.tensor([1, 0], device=DEVICE))
                logits = model(ids[:, :1], past_key_values=cache, attention_mask=mask.flip(0)).logits[:, -1]
                cache.batch_repeat_interleave(2)
                logits = torch.cat([logits, model(ids[:, :1].repeat_interleave(2, 0), past_key_values=cache).logits[:, -1]])
                cache.batch_select_indices(torch.tensor([3, 0]))
                logits = torch.cat([logits, model(ids[:, :1].flip(0), past_key_values=cache).logits[:, -1]])
            found.append(logits.float().log_softmax(-1))
        self.assertEqual(found[0].shape[0], 8)
        self.assertLess(float((found[1].exp() * (found[1] - found[0])).sum(-1).mean()), 1e-3)

    def test_what_inference_mode_filled_is_used_outside_of_it(self):
        ids = torch.from_numpy(np.load(GOLDEN / "tokens_eval.npy")[:2, :350]).long().to(DEVICE)
        for attention, path in (("sdpa", "auto"), (oscar_kv.PACKED_ATTENTION, "torch"), (oscar_kv.PACKED_ATTENTION, "kernel")):
            model, found = self.model(), []
            model.set_attn_implementation(attention)
            for within in (False, True):
                cache = self.cache(model, path=path)
                with torch.inference_mode(within):
                    log_probabilities(model, ids[:, :340], cache, 340)
                    log_probabilities(model, ids[:, 340:342], cache, 1)
                self.assertFalse(any(x.is_inference() for layer in cache.layers for x in layer.rows.held()))
                found.append(log_probabilities(model, ids[:, 342:344], cache, 1))
                with torch.inference_mode(within):
                    cache.reorder_cache(torch.tensor([1, 0], device=DEVICE))
                found[-1] = torch.cat([found[-1], log_probabilities(model, ids[:, 344:346], cache, 1), model(ids[:, :1], past_key_values=cache).logits], 1)
            self.assertTrue(torch.equal(*found), path)

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
        self.assertEqual(cache.nbytes(), 0)
        self.assertTrue(torch.equal(log_probabilities(model, ids, cache, 3), first))

    def test_room_from_the_start_and_steps_between_calls(self):
        """Steps, a prompt in parts and steps again say what a cache of torch says; no tensor moves where there is room, but the clock's."""
        model = self.model()
        ids = torch.from_numpy(np.load(GOLDEN / "tokens_eval.npy")[:2, :400]).long().to(DEVICE)
        roomy, plain = self.cache(model, path="kernel", max_length=400), self.cache(model, path="torch")
        parts, places = [], set()
        for cache in (roomy, plain):
            out = [log_probabilities(model, ids[:, :5], cache, 1), log_probabilities(model, ids[:, 5:370], cache, 365)]
            for first in range(370, 400):
                out.append(log_probabilities(model, ids[:, first:first + 1], cache, 1))
                if cache is roomy:
                    places.add(tuple(x.data_ptr() for layer in cache.layers for x in layer.rows.held()))
            parts.append(torch.cat(out, 1))
            self.assertEqual(cache.get_seq_length(), 400)
        self.assertEqual((len(places), [clock.placed for clock in roomy._options.clocks.values()]), (1, [2]))
        found, expected = parts
        self.assertLess(float((expected.exp() * (expected - found)).sum(-1).mean()), 1e-3)

    if DEVICE == "cuda":  # graphs are CUDA's
        def test_a_graph_says_what_calls_of_the_model_say(self):
            model = self.model()
            ids = torch.from_numpy(np.load(GOLDEN / "tokens_eval.npy")[:2, :600]).long().to(DEVICE)
            for max_length in (700, 0):  # without room the cache grows by 256 tokens
                graphed, plain = (self.cache(model, path="kernel", max_length=max_length) for _ in range(2))
                for cache in (graphed, plain):
                    log_probabilities(model, ids[:, :40], cache, 40)
                step = oscar_kv.DecodeGraph(model, graphed)
                found = torch.cat([step(ids[:, i:i + 1]).clone() for i in range(40, 600)], 1).float().log_softmax(-1)
                expected = log_probabilities(model, ids[:, 40:600], plain, 1)
                self.assertLess(distance(found, expected), 1e-4, max_length)
                self.assertEqual(graphed.get_seq_length(), 600)
                for count in (7, 8):  # at once, and then one by itself
                    after = [log_probabilities(model, ids[:, :count], cache, 7) for cache in (graphed, plain)]
                    self.assertLess(distance(*after), 1e-4, max_length)
                    found = torch.cat([step(ids[:, i:i + 1]).clone() for i in range(7, 12)], 1).float().log_softmax(-1)
                    self.assertLess(distance(found, log_probabilities(model, ids[:, 7:12], plain, 1)), 1e-4, max_length)

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
        with self.assertRaisesRegex(ValueError, "DecodeGraph needs model.set_attn_implementation..oscar_packed"):
            oscar_kv.DecodeGraph(model, cache)

    def test_says_why_it_takes_torch(self):
        for expected, found in (("rows of 96 channels", packed_layer.why_no_kernels(96)),
                                ("34 query heads for 2", packed_layer.why_no_decode(34, 2))):
            self.assertIn(expected, found)
        model = self.model()
        model.set_attn_implementation("sdpa")
        with self.assertRaisesRegex(ValueError, "cannot serve this cache: the model's attention is not oscar_packed"):
            log_probabilities(model, torch.ones(1, 3, dtype=torch.long, device=DEVICE), self.cache(model, path="kernel"), 3)
        with self.assertRaisesRegex(ValueError, "path is 'fast'"):
            self.cache(model, path="fast")
        cache = self.cache(model)
        self.assertEqual(cache.path, "none yet")
        log_probabilities(model, torch.ones(1, 3, dtype=torch.long, device=DEVICE), cache, 3)
        self.assertEqual(cache.path, "torch: the model's attention is not oscar_packed")

    def test_rows_that_leave_their_gpu_are_told(self):
        gpu, cpu = torch.device("cuda"), torch.device("cpu")
        self.assertEqual([packed_cache.place_of_rows(gpu, None), packed_cache.place_of_rows(cpu, "rows are on cpu")], [gpu, cpu])
        with self.assertWarnsRegex(UserWarning, "on the CPU, which is slow: rows of 96 channels"):
            self.assertEqual(packed_cache.place_of_rows(gpu, packed_layer.why_no_kernels(96)), cpu)

    def test_takes_the_kernels_by_itself_on_a_gpu_only(self):
        model = self.model()
        cache = self.cache(model)
        log_probabilities(model, torch.ones(1, 3, dtype=torch.long, device=DEVICE), cache, 3)
        self.assertEqual(cache.path, "kernel" if DEVICE == "cuda" else "torch: rows are on cpu, the kernels on CUDA")


if __name__ == "__main__":
    unittest.main()
