# SPDX-License-Identifier: MIT
"""Passages of oscar_kv, packed at one place and read at another: passages_test.py [PassageTest.test_…]
On a GPU by the kernels if OSCAR_TEST_DEVICE=cuda, exit status 77 if there is none."""
import sys
import unittest
from unittest import mock

try:
    import numpy as np
    import oscar_kv
    import torch
    import transformers
    from on_device import DEVICE
    from sample_sets import GOLDEN, MODEL, sample_set
except ImportError as missing:
    print(f"skipped: {missing}; run scripts/setup.sh --tests")
    sys.exit(77)

torch.set_num_threads(1)
IDS = torch.from_numpy(np.load(GOLDEN / "tokens_eval.npy")[:2, :600]).long().to(DEVICE)


def rotated(keys, by, theta, dim):
    """Keys (1, heads, tokens, d) at positions further by so many, in float64: halves of a head turn together."""
    angles = by * theta ** (-torch.arange(0, dim, 2, dtype=torch.float64, device=DEVICE) / dim)
    x, y = keys.double().chunk(2, -1)
    return torch.cat([x * angles.cos() - y * angles.sin(), x * angles.sin() + y * angles.cos()], -1)


class PassageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval().to(DEVICE)
        cls.config, cls.set = cls.model.config, sample_set("coded", keys="before-rope", bits=1.25)

    def computed(self, ids):
        cache = transformers.DynamicCache()
        with torch.no_grad():
            self.model(ids, past_key_values=cache)
        return cache

    def test_rows_at_another_place_are_those_of_the_first_turned_there(self):
        source = self.computed(IDS[:1, :400])
        passage = oscar_kv.Passage(self.set, self.config, source, 100, 300)
        at_home, moved = self.computed(IDS[1:, :100]), self.computed(IDS[1:, :437])
        for cache in (at_home, moved):
            passage.append_to(cache)
        theta = self.config.rope_parameters["rope_theta"]
        for here, there, exact in zip(at_home.layers, moved.layers, source.layers):
            self.assertEqual(there.keys.shape[2], 637)
            torch.testing.assert_close(there.values[:, :, 437:], here.values[:, :, 100:], rtol=0, atol=0)
            turned = rotated(here.keys[:, :, 100:], 337, theta, self.config.head_dim)
            self.assertLess(float((there.keys[:, :, 437:] - turned).norm() / turned.norm()), 2**-8)  # both are bfloat16
            error = here.keys[:, :, 100:] - exact.keys[:, :, 100:300]
            self.assertLess(float(error.norm() / exact.keys[:, :, 100:300].norm()), 0.62)  # 1.25 bits a value, and it is the same text
        self.assertEqual(passage.length, 200)
        self.assertLess(sum(page.nbytes for page in passage.pages), 200 * len(source.layers) * 2 * 128 * 2 / 11)

    def test_a_packed_cache_takes_a_passage(self):
        passage = oscar_kv.Passage(self.set, self.config, self.computed(IDS[:1, :400]))
        caches = transformers.DynamicCache(), oscar_kv.PackedCache(self.set, self.config)
        with torch.no_grad():
            for cache in caches:
                self.model(IDS[1:, :64], past_key_values=cache)
                passage.append_to(cache)
            exact, packed = (self.model(IDS[1:, 64:100], past_key_values=cache).logits.log_softmax(-1) for cache in caches)
        self.assertEqual([cache.get_seq_length() for cache in caches], [500, 500])
        self.assertLess(float((exact.exp() * (exact - packed)).sum(-1).mean()), 0.05)

    def test_keys_that_no_attention_saw_are_not_expected_by_the_next_call(self):
        """Those of a passage, and of a call that failed; keys that a model changes are."""
        passage = oscar_kv.Passage(self.set, self.config, self.computed(IDS[:1, :40]))
        exact = self.computed(IDS[1:, :20])
        self.addCleanup(self.model.set_attn_implementation, self.config._attn_implementation)
        self.model.set_attn_implementation(oscar_kv.PACKED_ATTENTION)
        with mock.patch.object(oscar_kv.packed_cache.LayerRows, "evict", side_effect=KeyError), self.assertRaises(KeyError):
            self.model(IDS[1:, :20], past_key_values=oscar_kv.PackedCache(self.set, self.config))
        torch.testing.assert_close(self.computed(IDS[1:, :20]).layers[3].keys, exact.layers[3].keys)
        update = oscar_kv.PackedCache.update
        with mock.patch.object(oscar_kv.PackedCache, "update", lambda *given, **more: [x + 0 for x in update(*given, **more)]), \
                self.assertRaisesRegex(ValueError, "this model changes keys between its cache and attention"):
            self.model(IDS[1:, :20], past_key_values=oscar_kv.PackedCache(self.set, self.config))
        passage.append_to(oscar_kv.PackedCache(self.set, self.config))
        torch.testing.assert_close(self.computed(IDS[1:, :20]).layers[3].keys, exact.layers[3].keys)

    def test_what_cannot_move_is_refused(self):
        source = self.computed(IDS[:, :40])
        for words, arguments in (("has several sequences", (self.set, self.config, source)),
                                 ("tokens 3 to 50 of a cache of 40", (self.set, self.config, source, 3, 50)),
                                 ("layer 0 after RoPE, .* without --keys after-rope", (sample_set("coded", keys="after-rope"), self.config, self.computed(IDS[:1, :9]))),
                                 ("a model of 4 layers, and this one has 3", (self.set, transformers.Qwen3Config(num_hidden_layers=3), source))):
            with self.assertRaisesRegex(ValueError, words):
                oscar_kv.Passage(*arguments)


if __name__ == "__main__":
    unittest.main()
