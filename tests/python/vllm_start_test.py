# SPDX-License-Identifier: MIT
"""Starts of vLLM that must end, against fakes of its platform, configuration and registry: vllm_start_test.py [StartTest.test_…].
vllm_server_test.py does it with a real one."""
import enum
import os
import sys
import tempfile
import types
import unittest
from collections import namedtuple
from pathlib import Path
from unittest import mock

try:
    import torch
    import transformers
    from oscar_kv import vllm_plugin
except ImportError as missing:
    print(f"skipped: {missing}; run scripts/setup.sh --tests")
    sys.exit(77)

PROJECT = Path(os.environ["OSCAR_PROJECT"])
SAMPLE, SET = PROJECT / "tests/data/qwen3-2m", PROJECT / "zoo/sample/qwen3-2m/latest"
CPU = "vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend"
Selector = namedtuple("AttentionSelectorConfig", "head_size dtype kv_cache_dtype block_size")


class StartTest(unittest.TestCase):
    def setUp(self):
        before = dict(sys.modules)
        self.addCleanup(lambda: [sys.modules.pop(name) for name in set(sys.modules) - set(before)])
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("OSCAR_INT2", "OSCAR_OBS"))}
        patch = mock.patch.dict(os.environ, environment, clear=True)
        patch.start()
        self.addCleanup(patch.stop)
        self.paths, taken = {}, self

        class Platform:
            takes_custom = True

            @classmethod
            def check_and_update_config(cls, vllm_config):
                vllm_config.updated = True

            @classmethod
            def get_attn_backend_cls(cls, selected_backend, attn_selector_config, num_heads=None):
                return taken.paths.get(selected_backend.name, CPU) if cls.takes_custom else CPU

        self.platform, names = Platform, enum.Enum("AttentionBackendEnum", {"FLASH_ATTN": "x", "CPU_ATTN": CPU, "CUSTOM": None})
        self.names = names
        self.module("vllm", __version__="0.99")
        self.module("vllm.platforms", current_platform=Platform())
        self.module("vllm.v1.attention.selector", AttentionSelectorConfig=Selector)
        self.module("vllm.v1.attention.backend", AttentionBackend=type("AttentionBackend", (), {"get_kv_cache_shape": 0}))
        self.module("vllm.v1.attention.backends.registry", AttentionBackendEnum=names,
                    register_backend=lambda backend, path: self.paths.update({backend.name: path}))

    def module(self, name, **members):
        for i in range(len(parts := name.split("."))):
            sys.modules.setdefault(".".join(parts[:i + 1]), types.ModuleType(".".join(parts[:i + 1])))
        vars(sys.modules[name]).update(members)

    def config(self, **changes):
        given = {"backend": self.names.CUSTOM, "kinds": {}, "cache": "auto", "dtype": torch.bfloat16, "prefix": False,
                 "chunked": False, "speculative": None, "ranks": 1, "longest": 2048, "path": SAMPLE} | changes
        space = types.SimpleNamespace
        hf_config = transformers.AutoConfig.from_pretrained(given["path"])
        model = space(hf_config=hf_config, dtype=given["dtype"], max_model_len=given["longest"], get_head_size=lambda: 128,
                      get_total_num_kv_heads=lambda: 1)
        return space(model_config=model, speculative_config=given["speculative"],
                     attention_config=space(backend=given["backend"], backend_per_kind=given["kinds"]),
                     cache_config=space(cache_dtype=given["cache"], enable_prefix_caching=given["prefix"]),
                     scheduler_config=space(enable_chunked_prefill=given["chunked"]),
                     parallel_config=space(tensor_parallel_size=given["ranks"]))

    def configure(self, **changes):
        """What a start does; the line that ends it, or "served"."""
        try:
            vllm_plugin.register()
            config = self.config(**changes)
            self.platform.check_and_update_config(config)
            self.assertTrue(config.updated)
            return "served"
        except SystemExit as end:
            self.assertNotIn("\n", end.code)
            self.assertTrue(end.code.startswith("oscar_kv: error: "))
            return end.code

    def test_a_platform_that_takes_another_backend(self):
        os.environ["OSCAR_INT2_SET"] = str(SET)
        self.assertEqual(self.configure(), "served")
        self.assertEqual(self.paths, {"CUSTOM": "oscar_kv.vllm_backend.Int2Backend"})
        self.platform.takes_custom = False
        self.assertIn(f"would serve without the set, by {CPU}; serve on CUDA", self.configure())
        with self.assertRaisesRegex(ValueError, "would serve without the set"):  # a layer asks
            self.platform.get_attn_backend_cls(self.names.CUSTOM, None)

    def test_a_configuration_that_cannot_serve_the_set(self):
        os.environ["OSCAR_INT2_SET"] = str(SET)
        for expected, changes in (
                ("the attention backend is vLLM's own choice; give --attention-backend CUSTOM", {"backend": None}),
                ("the attention backend is FLASH_ATTN; give", {"backend": self.names.FLASH_ATTN}),
                ("leave backend_per_kind out", {"kinds": {"full_attention": self.names.FLASH_ATTN}}),
                ("--kv-cache-dtype auto", {"cache": "fp8"}), ("--dtype bfloat16", {"dtype": torch.float16}),
                ("--no-enable-prefix-caching", {"prefix": True}), ("--no-enable-chunked-prefill", {"chunked": True}),
                ("speculative decoding is on", {"speculative": 1}), ("use fewer ranks", {"ranks": 2}),
                ("keep 320 tokens as they are, and a sequence has no more than 300", {"longest": 300}),
                ("the set is for another model", {"path": self.other_model()})):
            with self.subTest(expected):
                self.assertIn(expected, self.configure(**changes))

    def other_model(self):
        folder = tempfile.TemporaryDirectory(prefix="oscar-start-")
        self.addCleanup(folder.cleanup)
        transformers.AutoConfig.from_pretrained(SAMPLE).save_pretrained(folder.name)
        return folder.name

    def test_a_version_with_another_layout_of_caches(self):
        os.environ["OSCAR_INT2_SET"] = str(SET)
        self.module("vllm.v1.attention.backend", AttentionBackend=type("AttentionBackend", (), {}))
        self.assertIn("vLLM 0.99 lays out caches by itself", self.configure())

    def test_variables_that_mean_nothing(self):
        for expected, variables in (
                ("OSCAR_INT2_SET is set but empty", {"OSCAR_INT2_SET": ""}),
                ("/nowhere: there is no such file or folder", {"OSCAR_INT2_SET": "/nowhere"}),
                ("OSCAR_OBSERVE is set but empty", {"OSCAR_OBSERVE": " "}),
                ("name a file *.safetensors", {"OSCAR_OBSERVE": "/tmp/x.npz"}),
                ("/nowhere is no folder that this user may write to", {"OSCAR_OBSERVE": "/nowhere/x.safetensors"}),
                ("OSCAR_OBSERVE_TOKENS=many: give a whole number of at least 1",
                 {"OSCAR_OBSERVE": "/tmp/x.safetensors", "OSCAR_OBSERVE_TOKENS": "many"}),
                ("OSCAR_OBSERVE_TOKENS=0: give", {"OSCAR_OBSERVE": "/tmp/x.safetensors", "OSCAR_OBSERVE_TOKENS": "0"}),
                ("OSCAR_OBSERVE_RESERVOIR is set but empty",
                 {"OSCAR_OBSERVE": "/tmp/x.safetensors", "OSCAR_OBSERVE_RESERVOIR": ""}),
                ("are both set", {"OSCAR_OBSERVE": "/tmp/x.safetensors", "OSCAR_INT2_SET": str(SET)})):
            with self.subTest(expected), mock.patch.dict(os.environ, variables):
                self.assertIn(expected, self.configure())

    def test_a_library_that_does_not_load(self):
        from oscar_kv import places

        broken = PROJECT / "README.md"
        for variables in ({"OSCAR_INT2_SET": str(SET)}, {"OSCAR_OBSERVE": "/tmp/x.safetensors"}):
            places.load_library.cache_clear()
            with mock.patch.dict(os.environ, variables | {"OSCAR_TORCH_LIBRARY": str(broken)}):
                self.assertIn(f"{broken} does not load into torch {torch.__version__}", self.configure())
        places.load_library.cache_clear()

    def test_a_backend_that_cannot_be_observed(self):
        with mock.patch.dict(os.environ, {"OSCAR_OBSERVE": "/tmp/x.safetensors"}):
            self.assertEqual(self.configure(backend=None), "served")
            self.assertEqual(self.platform.get_attn_backend_cls(self.names.CPU_ATTN, None), "oscar_kv.vllm_plugin.Observed_CPU_ATTN")
            with self.assertRaisesRegex(ValueError, f"cannot observe the attention backend {CPU}; give .* FLASH_ATTN, CPU_ATTN"):
                self.platform.get_attn_backend_cls(self.names.CUSTOM, None)

    def test_nothing_is_watched_unasked(self):
        self.assertEqual((self.configure(backend=None, prefix=True), self.paths), ("served", {}))
        self.assertFalse(hasattr(self.platform, "oscar_watches"))


if __name__ == "__main__":
    unittest.main()
