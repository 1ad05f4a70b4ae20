# SPDX-License-Identifier: MIT
"""Starts of vLLM that must end, against fakes of its platform, configuration and registry: vllm_start_test.py [StartTest.test_…].
vllm_server_test.py does it with a real one."""
import contextlib
import enum
import functools
import json
import os
import re
import shutil
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
    from oscar_kv import program, vllm_plugin, vllm_start
    from sample_sets import MODEL, PROJECT, sample_set
    from vllm_fakes import forget_modules, module
except ImportError as missing:
    print(f"skipped: {missing}; run scripts/setup.sh --tests")
    sys.exit(77)

CPU = "vllm.v1.attention.backends.cpu_attn.CPUAttentionBackend"
SPECIAL = ("use_mm_prefix", "use_non_causal", "use_rswa", "use_batch_invariant")
Selector = namedtuple("AttentionSelectorConfig", ("use_mla", "use_sparse", "attn_type", "has_sliding_window", *SPECIAL), defaults=(False, False, "decoder", False, *[False] * 4))


class StartTest(unittest.TestCase):
    def setUp(self):
        forget_modules(self)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("OSCAR_KV", "OSCAR_OBS"))}
        self.enterContext(mock.patch.dict(os.environ, environment | {"OSCAR_KV_SET": str(sample_set("coded"))}, clear=True))
        self.paths, taken = {}, self

        class Platform:
            device_type = "cpu"

            @classmethod
            def check_and_update_config(cls, vllm_config):
                vllm_config.updated = True

            @classmethod
            def get_attn_backend_cls(cls, selected_backend, attn_selector_config, num_heads=None):
                return taken.paths.get(selected_backend.name, CPU) if cls.device_type == "cuda" else CPU

            @classmethod
            def update_block_size_for_backend(cls, vllm_config):
                vllm_config.finished = True

        class Scheduler:
            def __init__(self, connector, groups, drops):
                space, self.block_size, self.use_eagle_block_drop = types.SimpleNamespace, 32, drops
                self.connector, self.kv_cache_config = connector, space(kv_cache_groups=[None] * groups)
                coordinator = space(find_longest_cache_hit=lambda hashes, most: ([], max(min(640, most) // 32 - drops, 0) * 32, 0))
                self.kv_cache_manager = space(coordinator=coordinator)

        self.platform, names = Platform, enum.Enum("AttentionBackendEnum", {"FLASH_ATTN": "x", "CPU_ATTN": CPU, "CUSTOM": None})
        self.names = names
        module("vllm", __version__="0.99", envs=types.SimpleNamespace())
        self.counted, space, gauges = set(), types.SimpleNamespace, []

        def gauge(name, text, labels):
            self.assertNotIn(name, gauges)  # which its registry refuses
            gauges.append(name)
            return space(clear=self.counted.clear, labels=lambda *given: space(set=lambda value: self.counted.add((name, *given, value))))

        module("prometheus_client", Gauge=gauge)
        vllm_start._gauge.cache_clear()
        module("vllm.platforms", current_platform=Platform())
        self.model = space(is_multimodal_model=True)
        module("vllm.config", cache=space(), get_current_vllm_config=lambda: space(model_config=self.model))  # of 0.32
        calls = iter(range(9))
        module("vllm.v1.attention.selector", _cached_get_attn_backend=functools.cache(lambda backend: next(calls)))
        module("vllm.v1.core.sched.scheduler", Scheduler=Scheduler)
        module("vllm.v1.kv_offload.factory", OffloadingSpecFactory=space(_registry={"CPUOffloadingSpec": 0, "TieringOffloadingSpec": 0}))
        module("vllm.compilation", backends=types.SimpleNamespace(model_tag="backbone"))
        module("vllm.v1.kv_cache_interface", KVQuantMode=enum.Enum("KVQuantMode", ["NONE", "CUSTOM"]))
        module("vllm.v1.attention.backend", AttentionBackend=type("AttentionBackend", (), {"customize_spec": 0}))
        module("vllm.v1.attention.backends.registry", AttentionBackendEnum=names,
                    register_backend=lambda backend, path: self.paths.update({backend.name: path}))

    def config(self, **changes):
        given = {"backend": self.names.CUSTOM, "kinds": {}, "cache": "auto", "dtype": torch.bfloat16, "block": None,
                 "speculative": None, "transfer": None, "ranks": 1, "of_context": 1, "of_prompt": 1, "offloaded": None, "moved_by": "native", "fast": False, "longest": 2048, "path": MODEL, "by": "mp",
                 "more": {}, "hybrid": False, "uses_mrope": False, "runner_type": "generate", "parts": 1, "microbatches": False,
                 "latent": None, "chosen": None, "scheduler": sys.modules["vllm.v1.core.sched.scheduler"].Scheduler, "prefixes": True} | changes
        space = types.SimpleNamespace
        hf_config, attention = transformers.AutoConfig.from_pretrained(given["path"]), space(backend=given["backend"], backend_per_kind=given["kinds"])
        hf_config.kv_lora_rank = given["latent"]
        model = space(hf_config=hf_config, dtype=given["dtype"], max_model_len=given["longest"], is_hybrid=given["hybrid"], uses_mrope=given["uses_mrope"], runner_type=given["runner_type"],
                      get_head_size=lambda: 128, get_total_num_kv_heads=lambda: 1)
        return space(model_config=model, additional_config=given["more"], speculative_config=given["speculative"], kv_transfer_config=given["transfer"],
                     attention_config=attention, scheduler_config=space(get_scheduler_cls=lambda: given["scheduler"]),
                     try_verify_and_update_config=lambda: setattr(attention, "backend", given["chosen"]),
                     cache_config=space(enable_prefix_caching=given["prefixes"], cache_dtype=given["cache"], kv_offloading_size=given["offloaded"], kv_offloading_backend=given["moved_by"], kv_sharing_fast_prefill=given["fast"], block_size=given["block"] or 128,
                                        user_specified_block_size=given["block"] is not None),
                     parallel_config=space(tensor_parallel_size=given["ranks"], distributed_executor_backend=given["by"], pipeline_parallel_size=given["parts"], use_ubatching=given["microbatches"], decode_context_parallel_size=given["of_context"],
                                           prefill_context_parallel_size=given["of_prompt"]))

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

    def choose(self, backend=None, **selector):
        return self.platform.get_attn_backend_cls(backend, Selector(**selector), num_heads=1)

    def test_layers_that_read_the_whole_text_get_our_backend_on_any_platform(self):
        for device in ("cpu", "cuda"):
            self.platform.device_type = device
            self.assertEqual(self.configure(), "served")
            self.assertEqual(self.counted, {("oscar_kv_layers", str(sample_set("coded")), program.manifest_hash(sample_set("coded")), 4)})
            self.assertEqual(self.choose(), "oscar_kv.vllm_backend.PackedBackend")
            self.assertEqual(self.choose(self.names.CPU_ATTN, has_sliding_window=True), CPU)
            self.assertEqual(self.choose(self.names.CPU_ATTN, attn_type="encoder"), CPU)
            for ours in ({"runner_type": "draft"}, {"more": {"oscar_kv": "packed cache"}}):  # for layers that draft, which stay as they are
                self.assertEqual(self.configure(**ours, dtype=torch.float16, backend=self.names.FLASH_ATTN), "served")
            with mock.patch.object(sys.modules["vllm.compilation"].backends, "model_tag", "eagle_head"):
                self.assertEqual(self.choose(self.names.CPU_ATTN), CPU)
            with self.assertRaisesRegex(ValueError, "attention is latent or sparse; .* or unset OSCAR_KV_SET"):
                self.choose(use_mla=True)
            for name, expected in zip(SPECIAL, ("picture .*; give --language-model-only", "not causal", "window behind its prompt", "step; unset VLLM_BATCH_INVARIANT")):
                self.assertEqual(self.choose(self.names.CPU_ATTN, attn_type="encoder", **{name: True}), CPU)
                with self.assertRaisesRegex(ValueError, f"cannot be served: .*{expected}"):
                    self.choose(**{name: True})
            with mock.patch.object(self.model, "is_multimodal_model", False):
                self.assertEqual(self.choose(use_mm_prefix=True), vllm_start.SERVING)

    def test_the_cache_has_a_name_from_the_next_version_on_and_compiled_graphs_one_of_their_own(self):
        self.assertIn("the cache is fp8; give --kv-cache-dtype auto", self.configure(cache="fp8"))
        known, names = {}, ["auto"]

        def register(name):
            names.append(name)
            return lambda kind: known.update({name: kind()})

        module("vllm.config", cache=types.SimpleNamespace(KV_CACHE_DTYPES=names, register_kv_cache_dtype=register))
        for _ in range(2):
            vllm_plugin.register()
        self.assertEqual((names, known["oscar"].torch_dtype(), known["oscar"].quant_mode().name), (["auto", "oscar"], torch.uint8, "CUSTOM"))
        given = {"other": 1}
        config = self.config(cache="oscar", more=given)
        self.platform.check_and_update_config(config)
        self.assertEqual((config.cache_config.cache_dtype, config.additional_config, given), ("auto", {"other": 1, "oscar_kv": "packed cache"}, {"other": 1}))

    def test_blocks_on_cpus_are_small_unless_somebody_said_otherwise_and_a_window_that_no_sequence_outgrows_is_none(self):
        vllm_plugin.register()
        for given, device, window, *expected in ((None, "cpu", 4096, 32, None), (64, "cpu", 2048, 64, None), (None, "cuda", 2047, 128, 2047), (None, "cuda", None, 128, None)):
            config, self.platform.device_type = self.config(block=given), device
            config.cache_config.sliding_window = window
            self.platform.check_and_update_config(config)
            self.assertEqual([config.cache_config.block_size, config.cache_config.sliding_window], expected)

    def test_a_configuration_that_cannot_serve_the_set(self):
        other = self.enterContext(tempfile.TemporaryDirectory(prefix="oscar-start-"))
        transformers.AutoConfig.from_pretrained(MODEL, rms_norm_eps=1e-5).save_pretrained(other)
        for expected, changes in (
                ("the attention backend is FLASH_ATTN; leave", {"backend": self.names.FLASH_ATTN}),
                ("vLLM itself chooses the attention backend CPU_ATTN for", {"backend": self.names.FLASH_ATTN, "chosen": self.names.CPU_ATTN}),
                ("the model's attention is latent, for which", {"latent": 512}), ("leave --scheduler-cls out, or", {"scheduler": object}),
                ("leave backend_per_kind out", {"kinds": {"full_attention": self.names.FLASH_ATTN}}),
                ("--kv-cache-dtype auto", {"cache": "fp8"}), ("--dtype bfloat16", {"dtype": torch.float16}),
                ("speculative decoding by medusa is not known to work", {"speculative": types.SimpleNamespace(method="medusa")}),
                ("blocks of layers that draft are not as large", {"speculative": types.SimpleNamespace(method="mtp"), "hybrid": True}), ("use fewer ranks", {"ranks": 2}),
                ("leave --prefill-context-parallel-size out", {"of_prompt": 2}), ("leave --decode-context-parallel-size out", {"of_context": 2}),
                ("leave --kv-sharing-fast-prefill out", {"fast": True}),
                ("leave --enable-dbo and --ubatch-size out", {"microbatches": True}), ("leave --pipeline-parallel-size out", {"hybrid": True, "parts": 2}),
                ("additional_config is no dictionary", {"more": object()}), ("keep 320 tokens as they are, and a sequence has no more than 300", {"longest": 300}),
                ("the set is for another model", {"path": other})):
            with self.subTest(expected):
                self.assertIn(expected, self.configure(**changes))
        for newer in (True, False):
            with mock.patch.object(sys.modules["vllm"], "envs", types.SimpleNamespace(VLLM_USE_RAY_V2_EXECUTOR_BACKEND=newer)):
                self.assertIn("served" if newer else "unset VLLM_USE_RAY_V2_EXECUTOR_BACKEND", self.configure(by="ray"))
        self.assertEqual(self.configure(by="ray"), "served")  # of 0.33, which has one executor
        self.assertEqual(self.configure(scheduler=object, prefixes=False), "served")
        self.assertEqual(self.configure(backend=None, speculative=types.SimpleNamespace(method="ngram"), hybrid=True), "served")
        self.assertEqual(self.configure(speculative=types.SimpleNamespace(method="eagle")), "served")
        selector = sys.modules["vllm.v1.attention.selector"]
        self.assertEqual([selector._cached_get_attn_backend(1) for _ in range(2)], [0, 1])  # each time anew

    def test_prefixes_end_before_what_the_next_token_sees_exactly(self):
        """Of 32-token blocks of a prefix of 640 tokens, those up to the last 255, unless a connector brings blocks, or there are several kinds; the same
        beside EAGLE, for which vLLM drops a block of what it finds."""
        vllm_plugin.register()
        vllm_plugin.register()
        for expected, longest, *given in ((384, 700, None, 1, 0), (352, 639, None, 1, 0), (0, 200, None, 1, 0), (640, 700, object(), 1, 0), (640, 700, None, 2, 0),
                                          (384, 700, None, 1, 1), (352, 639, None, 1, 1), (0, 200, None, 1, 1), (608, 700, object(), 1, 1)):
            coordinator = sys.modules["vllm.v1.core.sched.scheduler"].Scheduler(*given).kv_cache_manager.coordinator
            self.assertEqual(coordinator.find_longest_cache_hit(None, longest), ([], expected, 0))

    def test_blocks_that_move(self):

        def by(name, **more):
            return types.SimpleNamespace(kv_connector=name, kv_connector_extra_config=more)

        for expected, changes in (
                ("NixlConnector moves pages without the exact tokens that lie beside them; give --kv-offloading-size", {"transfer": by("NixlConnector")}),
                ("MultiConnector moves pages without", {"transfer": by("MultiConnector", connectors=[])}),
                ("LMCacheConnectorV1 takes pages for rows of heads; give", {"transfer": by("LMCacheConnectorV1")}),
                ("LMCacheMPConnector takes pages for rows of heads; give", {"offloaded": 2.0, "moved_by": "lmcache"}),
                ("TieringOffloadingSpec keeps blocks by names that do not tell sets apart; leave", {"transfer": by(vllm_start.MOVES, spec_name="TieringOffloadingSpec")}),
                ("TieringOffloadingSpec keeps blocks by names", {"transfer": by(vllm_start.MOVES, spec_name="TieringOffloadingSpec", spec_module_path="own")}),
                ("leave sync_load_budget_bytes out of kv_connector_extra_config", {"offloaded": 2.0, "transfer": by(None, sync_load_budget_bytes="1")}),
                ("leave block_size and blocks_per_chunk out", {"transfer": by(vllm_start.MOVES, blocks_per_chunk=2)}),
                ("leave block_size and blocks_per_chunk out", {"transfer": by(vllm_start.MOVES, block_size=64)}),
                ("says no cpu_bytes_to_use; give", {"transfer": by(vllm_start.MOVES)}),
                ("states of linear attention or Mamba are not moved; leave", {"offloaded": 2.0, "hybrid": True})):
            with self.subTest(expected):
                self.assertIn(expected, self.configure(**changes))
        for changes in ({"offloaded": 2.0}, {"transfer": by(vllm_start.MOVES, cpu_bytes_to_use=9, spec_name="Own", spec_module_path="own", blocks_per_chunk=1, sync_load_budget_bytes=0)}):
            self.assertEqual(self.configure(**changes), "served")

    def test_another_engine_of_a_process_serves_another_set(self):
        """By forks, too, which begin with what the process before them has read."""
        other = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="oscar-start-"))) / "set"
        self.assertEqual(self.configure(), "served")
        first = vllm_start.served_set()
        shutil.copytree(sample_set("coded"), other)
        os.environ["OSCAR_KV_SET"] = str(other)
        self.assertEqual(self.configure(), "served")
        self.assertFalse(vllm_start.served_set() is first)
        second, manifest = vllm_start.served_set(), other / "manifest.json"
        manifest.write_text(manifest.read_text() + "\n")  # of a set that takes the other's place
        self.assertEqual(self.configure(), "served")
        self.assertFalse(vllm_start.served_set() is second)
        self.assertEqual(self.counted, {("oscar_kv_layers", str(other), program.manifest_hash(other), 4)})

    def test_an_engine_beside_one_that_must_be_told_of_its_steps(self):
        """Whether it is to have a set or none; vLLM forgets the layers of an engine that ends."""
        module("vllm.v1.worker.worker_base", WorkerWrapperBase=type("WorkerWrapperBase", (), {"execute_model": lambda self, output: output}))
        worker, steps = sys.modules["vllm.v1.worker.worker_base"].WorkerWrapperBase(), []
        first, layer = type("CompilationConfig", (), {"static_forward_context": {"layer": 0}})(), {"model.layers.3.self_attn.attn": CPU}
        vllm_plugin.register()
        vllm_start.watch_scheduler(steps.append, types.SimpleNamespace(compilation_config=first))
        self.assertEqual(self.configure(runner_type="draft"), "served")
        for path in (os.environ.pop("OSCAR_KV_SET"), None):
            with mock.patch.dict(os.environ, {"OSCAR_KV_SET": path} if path else {}):
                self.assertIn("an engine of this process still serves a set", self.configure())
                with self.assertRaisesRegex(ValueError, "an engine of this process still serves a set"):
                    self.made(**layer)
        worker.execute_model("told")
        first.static_forward_context.clear()
        self.assertEqual(self.configure(), "served")
        self.made(**layer)
        worker.execute_model("not told")
        self.assertEqual(steps, ["told"])
        first.static_forward_context["layer"], first.itself = 0, first
        vllm_start.watch_scheduler(steps.append, types.SimpleNamespace(compilation_config=first))
        del first  # of an engine that nobody ended
        self.assertEqual(self.configure(), "served")

    def test_an_engine_after_one_with_a_set_is_left_alone(self):
        """Also one after an observed one: hooks stay in a process."""
        module("vllm.v1.worker.worker_base", WorkerWrapperBase=type("WorkerWrapperBase", (), {"execute_model": lambda self, output: output}))
        worker, steps = sys.modules["vllm.v1.worker.worker_base"].WorkerWrapperBase(), []
        for variable, platform in (("OSCAR_KV_SET", self.platform), ("OSCAR_OBSERVE", type("Platform", (self.platform,), {}))):
            self.platform = platform
            with self.observed() if variable == "OSCAR_OBSERVE" else contextlib.nullcontext():
                module("vllm.platforms", current_platform=platform())
                vllm_plugin.register()
                vllm_start.watch_scheduler(steps.append)
                worker.execute_model(variable)
            os.environ.pop("OSCAR_KV_SET", None)
            config = self.config()
            config.shutdown_timeout = 0
            platform.check_and_update_config(config)
            self.assertEqual((config.shutdown_timeout, config.additional_config, self.choose(self.names.CUSTOM)), (0, {}, CPU))
            coordinator = sys.modules["vllm.v1.core.sched.scheduler"].Scheduler(None, 1, 0).kv_cache_manager.coordinator
            self.assertEqual(coordinator.find_longest_cache_hit(None, 700), ([], 640, 0))
            self.made(**{"model.layers.3.self_attn.attn": CPU})
            worker.execute_model("left alone")
            with mock.patch.dict(os.environ, {"OSCAR_OBSERVE" if variable == "OSCAR_KV_SET" else "OSCAR_KV_SET": "a"}):
                with self.assertRaisesRegex(SystemExit, f"the first engine of this process had {variable}"):
                    platform.check_and_update_config(config)
        self.assertEqual(steps, ["OSCAR_KV_SET", "OSCAR_OBSERVE"])

    def test_a_rejected_set_ends_the_start(self):
        folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="oscar-start-"))) / "set"
        shutil.copytree(sample_set("coded"), folder)
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["verification"] = {"verdict": "rejected", "readers": {"vllm": {"part": manifest["readers"]["vllm"], "verdict": "rejected"}}}
        (folder / "manifest.json").write_text(json.dumps(manifest))
        os.environ["OSCAR_KV_SET"] = str(folder)
        self.assertIn("cannot be served: ", self.configure())
        self.assertIn("oscar verify rejected the part", self.configure())
        os.environ["OSCAR_KV_ALLOW_REJECTED"] = "1"
        with self.assertLogs("oscar_kv", "WARNING"):
            self.assertEqual(self.configure(), "served")

    def test_sets_of_rotations_and_of_keys_before_rope_where_these_turn_by_places_of_images(self):
        os.environ["OSCAR_KV_SET"] = str(sample_set("oscar"))
        self.assertIn("the set has no coded part, which is what vllm reads: fit one by oscar fit --model … --for vllm,transformers", self.configure())
        os.environ["OSCAR_KV_SET"] = str(sample_set("coded", keys="before-rope", bits=1.25))
        self.assertEqual(self.configure(), "served")
        self.assertIn("its keys are stored before RoPE, and the model's keys turn by the places of images", self.configure(uses_mrope=True))

    def made(self, reads={}, hybrid=False, **backends):
        """What a process of a server does once its layers are made: {name: path of the class of its backend}. Returns whether a backend of ours made blocks."""
        layers, shared = {"model.layers.0.mixer": types.SimpleNamespace()}, []  # no attention
        share = staticmethod(lambda config, finish: (shared.append(config), finish()))
        for name, path in backends.items():
            module, _, kind = path.rpartition(".")
            layers[name] = types.SimpleNamespace(impl=0, kv_sharing_target_layer_name=reads.get(name), attn_backend=type(kind, (), {"__module__": module, "share_blocks": share}))
        config = types.SimpleNamespace(model_config=types.SimpleNamespace(is_hybrid=hybrid), compilation_config=types.SimpleNamespace(static_forward_context=layers))
        self.platform.update_block_size_for_backend(config)
        self.assertTrue(config.finished)
        return shared == [config]

    def test_a_layer_that_another_backend_has(self):
        """Whatever the configuration said, such as all layers with sliding windows."""
        vllm_plugin.register()
        ours = {f"model.layers.{i}.self_attn.attn": vllm_start.SERVING for i in range(4)}
        self.assertTrue(self.made(**ours, **{"model.layers.4.self_attn.attn": CPU}))  # which the set does not cover
        self.assertTrue(self.made(hybrid=True, **ours))
        self.assertFalse(self.made(hybrid=True, **{"model.layers.4.self_attn.attn": CPU}))
        self.made(**ours, **{f"{name}layers.3.self_attn.attn": CPU for name in ("draft_model.model.", "mtp.", "model.mtp.", "model.eagle_")})
        with self.assertRaisesRegex(ValueError, "served: draft_model.layers.3.attn would take packed rows for plain"):
            self.made(**ours, **{"draft_model.layers.3.attn": vllm_start.SERVING})
        with self.assertRaisesRegex(ValueError, "served: model.layers.9.attn would take packed rows for plain"):
            self.made(reads={"model.layers.9.attn": "model.layers.3.self_attn.attn"}, **ours, **{"model.layers.9.attn": CPU})
        for name in ("model.layers.3.self_attn.attn", "3.attn"):
            with self.assertRaisesRegex(ValueError, f"cannot be served: another attention backend has {name}, whose"):
                self.made(**ours | {name: CPU})

    def test_a_version_that_asks_no_backend_for_the_size_of_its_cache(self):
        module("vllm.v1.attention.backend", AttentionBackend=type("AttentionBackend", (), {}))
        self.assertIn("vLLM 0.99 does not let a backend say how large its cache is; use vLLM 0.32", self.configure())

    def test_variables_that_mean_nothing(self):
        taken = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="oscar-start-")))
        del os.environ["OSCAR_KV_SET"]
        (taken / "oscar_rows_rank3.pt").touch()
        for expected, variables in (
                ("OSCAR_KV_SET is set but empty", {"OSCAR_KV_SET": ""}),
                ("/nowhere: there is no such file or folder", {"OSCAR_KV_SET": "/nowhere"}),
                ("OSCAR_OBSERVE is set but empty", {"OSCAR_OBSERVE": " "}),
                ("/nowhere/x: the folder cannot be made: No such file or directory", {"OSCAR_OBSERVE": "/nowhere/x"}),
                ("oscar_rows_rank3.pt is there already, and is not overwritten", {"OSCAR_OBSERVE": str(taken)}),
                ("OSCAR_OBSERVE_TOKENS=many: give a whole number of at least 1", {"OSCAR_OBSERVE": "/x", "OSCAR_OBSERVE_TOKENS": "many"}),
                ("OSCAR_OBSERVE_TOKENS=0: give", {"OSCAR_OBSERVE": "/x", "OSCAR_OBSERVE_TOKENS": "0"}),
                ("OSCAR_OBSERVE_TOKENS is set but empty", {"OSCAR_OBSERVE": "/x", "OSCAR_OBSERVE_TOKENS": ""}),
                ("are both set", {"OSCAR_OBSERVE": "/x", "OSCAR_KV_SET": str(sample_set("coded"))})):
            with self.subTest(expected), mock.patch.dict(os.environ, variables):
                self.assertIn(expected, self.configure())

    def test_a_library_that_does_not_load(self):
        broken = PROJECT / "README.md"
        program.load_library.cache_clear()
        with mock.patch.dict(os.environ, {"OSCAR_TORCH_LIBRARY": str(broken)}), \
                self.assertRaisesRegex(OSError, f"{broken} does not load into torch {re.escape(torch.__version__)}"):
            program.load_library()
        program.load_library.cache_clear()

    def test_actors_of_ray_get_our_variables(self):
        """Beside those that somebody named."""
        ours = {"OSCAR_KV_SET": os.environ["OSCAR_KV_SET"], "OSCAR_KV_ALLOW_REJECTED": "1"}
        for told, expected in ((None, "OSCAR_KV_ALLOW_REJECTED,OSCAR_KV_SET"), ("THEIRS, OSCAR_KV_SET", "OSCAR_KV_ALLOW_REJECTED,OSCAR_KV_SET,THEIRS")):
            with mock.patch.dict(os.environ, ours | ({"VLLM_RAY_EXTRA_ENV_VARS_TO_COPY": told} if told else {}), clear=True):
                vllm_plugin.register()
                self.assertEqual(os.environ["VLLM_RAY_EXTRA_ENV_VARS_TO_COPY"], expected)

    def observed(self):
        """Variables with which servers are observed."""
        os.environ.pop("OSCAR_KV_SET", None)
        return mock.patch.dict(os.environ, {"OSCAR_OBSERVE": self.enterContext(tempfile.TemporaryDirectory(prefix="oscar-start-"))})

    def test_a_backend_that_cannot_be_observed(self):
        with self.observed():
            self.assertEqual(self.configure(backend=None), "served")
            self.platform.device_type = "cuda"
            self.assertEqual(self.choose(self.names.CPU_ATTN), "oscar_kv.vllm_plugin.Observed_CPU_ATTN")
            with self.assertRaisesRegex(ValueError, f"cannot observe the attention backend {CPU}; give .* FLASH_ATTN, CPU_ATTN"):
                self.choose(self.names.CUSTOM)

    def test_an_observed_server_is_given_time_to_write_its_file(self):
        for given, expected in ((0, 30), (7, 7)):
            with self.observed():
                vllm_plugin.register()
                config = self.config()
                config.shutdown_timeout = given
                self.platform.check_and_update_config(config)
                self.assertEqual((config.shutdown_timeout, os.environ["VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS"]), (expected, "30"))

    def test_nothing_is_watched_unasked(self):
        del os.environ["OSCAR_KV_SET"]
        self.assertEqual((self.configure(backend=None, speculative=1), self.paths), ("served", {}))
        self.assertFalse(hasattr(self.platform, "oscar_watches"))


if __name__ == "__main__":
    unittest.main()
