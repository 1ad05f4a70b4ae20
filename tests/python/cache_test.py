# SPDX-License-Identifier: MIT
"""oscar_kv.PackedCache in models of transformers, against `oscar verify --model`: cache_test.py [CacheTest.test_…]"""
import copy
import dataclasses
import sys
import tempfile
import unittest
from pathlib import Path

try:
    import numpy as np
    import oscar_kv
    import torch
    import transformers
    from sample_sets import GOLDEN, MODEL, PROJECT, sample_set
except ImportError as missing:
    print(f"skipped: {missing}; run scripts/setup.sh --tests")
    sys.exit(77)

sys.path.insert(0, str(PROJECT / "tests/unit/model/parity"))
import parity  # noqa: E402
sys.path.insert(0, str(PROJECT / "tests/support"))
import figures  # noqa: E402

torch.set_num_threads(1)
SINK, RECENT = 16, 64  # so that short texts have a history
# Of the quotient of two KLDs over some 1,000 tokens, which differ by the codes that are on an edge: the largest mean and
# four of the largest standard deviations of tests/support/figures.py.
BOUND = 0.12


def logits(model, ids, cache=None, calls=None):
    """Log-probabilities of all positions, the tokens fed in calls of so many."""
    with torch.no_grad():
        parts = [model(part, past_key_values=cache).logits for part in ids.split(calls or ids.shape[1], 1)]
    return torch.cat(parts, 1).log_softmax(-1)


def set_for(config, levels=256, windows=(4, 8), layers=None):
    """Random rotations, and codes of so many levels, for a model that nothing was fitted for."""
    count = config.num_hidden_layers if layers is None else layers
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    shape, random = (config.num_key_value_heads, dim), torch.Generator().manual_seed(0)

    def side():
        rotation = torch.linalg.qr(torch.randn(shape[0], dim, dim, generator=random))[0]
        formats = torch.full(shape, levels, dtype=torch.int32), torch.full(shape, 8.0 / levels), torch.ones(shape)
        return oscar_kv.Side(rotation, rotation, None, *formats)

    return oscar_kv.SetPart({i: oscar_kv.Layer(i, side(), side()) for i in range(count)}, windows)


class CacheTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="oscar-cache-")))

    def sample(self):
        return transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()

    def assert_kld_of_verify(self, folder, tokens=512, sequences=2, calls=None, path="auto"):
        """The KLD of the set by PackedCache is what the program finds, within BOUND."""
        ids = np.load(GOLDEN / "tokens_eval.npy")[:sequences, :tokens]
        np.save(self.folder / "tokens.npy", ids)
        report = oscar_kv.verify(folder, model=MODEL, tokens=self.folder / "tokens.npy", compare="none", record=False,
                                 default_limits=False, sink=SINK, recent=RECENT)
        expected, = (method["model"]["kld_mean"] for method in report["methods"] if method["kind"] == "this")
        part = dataclasses.replace(oscar_kv.read_set(folder), windows=(SINK, RECENT))
        model = self.sample()
        ids = torch.from_numpy(ids).long()
        exact = logits(model, ids)
        if calls is None or path == "kernel":
            model.set_attn_implementation(oscar_kv.PACKED_ATTENTION)
        found = logits(model, ids, oscar_kv.PackedCache(part, model.config, path=path), calls)
        kld = float((exact.exp() * (exact - found)).sum(-1)[:, :-1].mean())
        self.assertGreater(expected, 0.003)
        figures.check(self, self._testMethodName, kld / expected, 1, BOUND)

    def test_kld_of_keys_before_rope(self):
        folder = sample_set("coded", keys="before-rope", bits=1.25)
        self.assert_kld_of_verify(folder, tokens=384, sequences=1, calls=1)
        self.assert_kld_of_verify(folder)
        self.assert_kld_of_verify(folder, 320, sequences=1, calls=1, path="kernel")

    def test_kld_of_the_coded_cache(self):
        self.assert_kld_of_verify(sample_set("coded", keys="after-rope"))

    def test_kld_of_the_coded_cache_by_what_the_kernels_compute(self):
        self.assert_kld_of_verify(sample_set("coded", keys="after-rope"), 320, sequences=1, calls=1, path="kernel")

    def test_kld_with_any_attention_a_token_at_a_time(self):
        self.assert_kld_of_verify(sample_set("coded", keys="after-rope"), 320, 4, calls=1)

    def test_bytes(self):
        """Rows of 128 channels in as many bytes as the manifest says, instead of 256."""
        model, part = self.sample(), oscar_kv.read_set(sample_set("coded", keys="after-rope"))
        cache = oscar_kv.PackedCache(part, model.config)
        ids = torch.from_numpy(np.load(GOLDEN / "tokens_eval.npy")[:1, :2048]).long()
        self.assertEqual(cache.nbytes(), 0)
        logits(model, ids, cache)
        packed = sum(layer.rows._packed.bytes for layer in cache.layers)  # of a token
        self.assertAlmostEqual(8 * packed / (4 * 2 * 128), part.manifest["parts"]["coded"]["codec"]["bits"], delta=0.2)  # in whole bytes of pages
        window, history = 64 + 256, 2048 - 64 - 255
        self.assertEqual(cache.nbytes(), 4 * 2 * window * 256 + -(-history // 256) * 256 * packed)
        self.assertEqual(cache.get_seq_length(), 2048)

    def assert_generates_like_the_default_cache(self, name, **options):
        """With 256 levels the cache is nearly exact."""
        model = parity.build(name)
        model.generation_config.pad_token_id, model.generation_config.eos_token_id = 0, None
        ids = torch.randint(2, model.config.vocab_size, (2, 30), generator=torch.Generator().manual_seed(1))
        cache = oscar_kv.PackedCache(set_for(model.config), model.config)
        # Near ties make greedy choices differ: log-probabilities of a fixed text are compared instead of choices.
        exact = logits(model, ids, transformers.DynamicCache(config=model.config), 10)
        self.assertLess(float((logits(model, ids, cache, 10) - exact).abs().mean()), 0.06)
        cache = oscar_kv.PackedCache(set_for(model.config), model.config)
        out = model.generate(ids, max_new_tokens=12, do_sample=False, past_key_values=cache, **options)
        self.assertEqual((out.shape[1], cache.get_seq_length()), (42, 41))

    def test_several_heads_and_beams(self):
        self.assert_generates_like_the_default_cache("llama", num_beams=2)

    def test_sliding_layers_keep_their_own_cache(self):
        self.assert_generates_like_the_default_cache("gemma3")

    def check_scores(self, name, change):
        """In both ways, beside layers with sliding windows, with a cache and without, padded too; change: of each layer's attention, so that
        scores count for what they are."""
        self.assert_generates_like_the_default_cache(name)
        model = parity.build(name)
        ids = torch.randint(2, model.config.vocab_size, (2, 30), generator=torch.Generator().manual_seed(1))
        plain = logits(model, ids)
        for layer in model.model.layers:
            change(layer.self_attn)
        exact = logits(model, ids)
        self.assertGreater(float((exact - plain).abs().mean()), 0.2)
        for way in ("eager", oscar_kv.PACKED_ATTENTION):
            model.set_attn_implementation(way)
            for calls, path in ((1, "auto"), (10, "auto"), (30, "auto"), *([(1, "kernel")] if way == oscar_kv.PACKED_ATTENTION else [])):
                found = logits(model, ids, oscar_kv.PackedCache(set_for(model.config), model.config, path=path), calls)
                self.assertLess(float((found - exact).abs().mean()), 0.06, (way, calls, path))
        self.assertLess(float((logits(model, ids) - exact).abs().max()), 1e-4)
        with torch.no_grad():
            padded, mask = (torch.nn.functional.pad(x, (4, 0)) for x in (ids, torch.ones_like(ids)))
            found = model(padded, attention_mask=mask, past_key_values=oscar_kv.PackedCache(set_for(model.config), model.config)).logits
        self.assertLess(float((found.log_softmax(-1)[:, 4:] - exact).abs().mean()), 0.06)
        return model

    def test_attention_sinks(self):
        self.check_scores("gpt-oss", lambda attention: attention.sinks.data.add_(4))

    def test_soft_caps(self):
        self.check_scores("gemma2", lambda attention: setattr(attention, "attn_logit_softcapping", 0.5))

    def test_left_padding_in_both_ways(self):
        model, ids = self.sample(), torch.from_numpy(np.load(GOLDEN / "tokens_eval.npy")[:1, :40]).long()
        padded = torch.cat([torch.zeros(1, 10, dtype=torch.long), ids], 1)
        both = torch.cat([padded, torch.cat([ids, ids[:, :10]], 1)])
        mask = torch.ones_like(both)
        mask[0, :10] = 0
        for name in ("sdpa", oscar_kv.PACKED_ATTENTION):
            model.set_attn_implementation(name)
            cache = oscar_kv.PackedCache(set_for(model.config), model.config)
            with torch.no_grad():
                found = model(both, attention_mask=mask, past_key_values=cache).logits[0, 10:]
                alone = model(ids).logits[0]
            self.assertLess(float((found - alone).norm() / alone.norm()), 0.05, name)

    def test_a_reset_cache_starts_again(self):
        model, ids = self.sample(), torch.from_numpy(np.load(GOLDEN / "tokens_eval.npy")[:1, :60]).long()
        cache = oscar_kv.PackedCache(set_for(model.config, 4), model.config)
        first = logits(model, ids, cache, 20)
        cache.reset()
        self.assertEqual((cache.get_seq_length(), cache.nbytes()), (0, 0))
        self.assertTrue(torch.equal(logits(model, ids, cache, 20), first))

    def test_refuses_what_it_cannot_do(self):
        model = self.sample()
        with self.assertRaisesRegex(ValueError, "no layer 3; it has .0, 1, 2."):
            oscar_kv.PackedCache(set_for(model.config, layers=3), model.config)
        other = parity.build("llama")
        with self.assertRaisesRegex(ValueError, "is this a set for another model"):
            logits(other, torch.ones(1, 3, dtype=torch.long), oscar_kv.PackedCache(set_for(model.config)))
        cache = oscar_kv.PackedCache(set_for(model.config), model.config)
        logits(model, torch.ones(1, 3, dtype=torch.long), cache)
        with self.assertRaisesRegex(NotImplementedError, "cannot take tokens back.*; generate without assistant_model and prompt_lookup_num_tokens"):
            cache.crop(-1)
        self.assertFalse(cache.is_croppable)
        model.set_attn_implementation(oscar_kv.PACKED_ATTENTION)
        with self.assertRaisesRegex(ValueError, "attention_mask is torch.float32; oscar_packed takes .* of torch.bool, true where .*: pass `mask == 0`"):
            model(torch.ones(1, 3, dtype=torch.long), attention_mask=torch.zeros(1, 1, 3, 3),
                  past_key_values=oscar_kv.PackedCache(set_for(model.config), model.config))
        cache = copy.deepcopy(oscar_kv.PackedCache(set_for(model.config), model.config))
        model.set_attn_implementation("sdpa")
        for layer in (1, 0):  # in the first call and in every other
            with self.assertRaisesRegex(ValueError, f"layer {layer}: what came before was not read by oscar_packed"):
                logits(model, torch.ones(1, 3, dtype=torch.long), cache)


if __name__ == "__main__":
    unittest.main()
