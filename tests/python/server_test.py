# SPDX-License-Identifier: MIT
"""The plugins of vLLM and SGLang against fakes of the parts of both that they use, with the signatures of vLLM's
v1/attention/backends and SGLang's plugins/hook_registry: server_test.py [ServerTest.test_…]. No server runs here."""
import enum
import json
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import types
import unittest
import unittest.mock
from pathlib import Path

try:
    import numpy as np
    import oscar_kv
    import torch
    import transformers
    from oscar_kv import sglang_plugin, vllm_plugin
    from oscar_kv.server import Place, Span
    from vllm_fakes import forget_modules, module
except ImportError as missing:
    print(f"skipped: {missing}; run scripts/setup.sh --tests")
    sys.exit(77)

LAYERS, HEADS, KV_HEADS, DIM, TOKENS = 3, 4, 2, 32, 120
SCALE = 0.5 * DIM**-0.5  # of a model that scales scores by half


class FakeImpl:
    """As vLLM's FlashAttentionImpl."""

    def __init__(self, num_heads, head_size, scale, num_kv_heads, sliding_window=None):
        self.num_heads, self.head_size, self.scale, self.num_kv_heads = num_heads, head_size, scale, num_kv_heads
        self.sliding_window = (-1, -1) if sliding_window is None else (sliding_window - 1, 0)

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output=None, output_scale=None):
        return "attended", output


class FakeBuilder:
    """As vLLM's AttentionMetadataBuilder."""

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        return types.SimpleNamespace(num_actual_tokens=common_attn_metadata.num_actual_tokens)


class FakeBackend:
    @staticmethod
    def get_impl_cls():
        return FakeImpl

    @staticmethod
    def get_builder_cls():
        return FakeBuilder


class FakeWorker:
    def execute_model(self, scheduler_output):
        return scheduler_output


def step(*rows, done=()):
    """What vLLM's scheduler and model runner say of a step: rows of (request, tokens computed before, tokens of its prompt, tokens
    in the step), "new" in front of a request that begins or begins again."""
    new = [types.SimpleNamespace(req_id=name[3:], num_computed_tokens=start, prompt_token_ids=list(range(prompt)))
           for name, start, prompt, _ in rows if name.startswith("new")]
    old = [(name, start) for name, start, _, _ in rows if not name.startswith("new")]
    output = types.SimpleNamespace(
        finished_req_ids=set(done), scheduled_new_reqs=new,
        scheduled_cached_reqs=types.SimpleNamespace(req_ids=[name for name, _ in old], num_computed_tokens=[at for _, at in old]),
        num_scheduled_tokens={name.removeprefix("new"): count for name, _, _, count in rows})
    starts = torch.tensor([0, *(row[3] for row in rows)]).cumsum(0)
    common = types.SimpleNamespace(
        query_start_loc=starts, query_start_loc_cpu=starts, num_actual_tokens=int(starts[-1]),
        is_prefilling=torch.tensor([start < prompt for _, start, prompt, _ in rows]),
        seq_lens_cpu_upper_bound=torch.tensor([start + count for _, start, _, count in rows]))
    return output, common


class FakeHooks:
    hooks: dict = {}

    @classmethod
    def register(cls, target, hook, hook_type):
        cls.hooks[target] = hook, hook_type


class ServerTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="oscar-server-")))
        self.rank, self.ranks, self.overrides = 0, 1, {}
        transformers.LlamaConfig(hidden_size=HEADS * DIM, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
                                 num_key_value_heads=KV_HEADS).save_pretrained(self.folder / "model")
        forget_modules(self)
        self.install_fakes()
        self.dump = self.folder / "rows"
        os.environ |= {"OSCAR_OBSERVE": str(self.dump), "OSCAR_OBSERVE_TOKENS": str(TOKENS)}
        self.addCleanup(lambda: [os.environ.pop(name, None) for name in ("OSCAR_OBSERVE", "OSCAR_OBSERVE_TOKENS")])
        torch.manual_seed(0)
        self.rows = [[torch.randn(TOKENS, heads, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS)] for _ in range(LAYERS)]

    def install_worker(self):
        self.worker = type("WorkerWrapperBase", (FakeWorker,), {})
        module("vllm.v1.worker.worker_base", WorkerWrapperBase=self.worker)

    def install_fakes(self):
        def resolve(path):
            return getattr(sys.modules[path.rpartition(".")[0]], path.rpartition(".")[2])

        class Platform:
            @classmethod
            def get_attn_backend_cls(cls, path):
                return path

            @classmethod
            def check_and_update_config(cls, vllm_config):
                pass

            @classmethod
            def update_block_size_for_backend(cls, vllm_config):
                pass

        self.platform = Platform()
        module("vllm.platforms", current_platform=self.platform)
        self.enum = enum.Enum("AttentionBackendEnum", {"FLASH_ATTN": "fake_flash.Backend", "CUSTOM": None})
        config = types.SimpleNamespace(model_config=types.SimpleNamespace(model=str(self.folder / "model")))
        module("fake_flash", Backend=FakeBackend)
        self.install_worker()
        module("vllm.utils.import_utils", resolve_obj_by_qualname=resolve)
        module("vllm.config", get_current_vllm_config=lambda: config)
        module("vllm.distributed", get_tensor_model_parallel_rank=lambda: self.rank,
                    get_tensor_model_parallel_world_size=lambda: self.ranks)
        module("vllm.v1.attention.backends.registry", AttentionBackendEnum=self.enum,
                    register_backend=lambda backend, path: self.overrides.update({backend: path}))
        self.resolve = resolve
        module("sglang.srt.plugins.hook_registry", HookRegistry=FakeHooks,
                    HookType=enum.Enum("HookType", {"BEFORE": "before"}))
        module("sglang.srt.layers.attention.base_attn_backend", AttentionBackend=type("AttentionBackend", (), {"forward": 0}))
        args = types.SimpleNamespace(model_path=str(self.folder / "model"))
        module("sglang.srt.runtime_context", get_server_args=lambda: args,
                    get_parallel=lambda: types.SimpleNamespace(attn_tp_rank=self.rank, attn_tp_size=self.ranks))

    def own(self, x):
        """This rank's heads."""
        heads = x.shape[1] // self.ranks
        return x[:, self.rank * heads:(self.rank + 1) * heads]

    def run_vllm(self):
        """Layers see a profiling run, a chunk of a prompt beside a decoding request, a decode step, the rest of the prompt of which
        a preemption has lost 20 tokens, and a pass after the end."""
        for each in (vllm_plugin._tap, vllm_plugin._observed, vllm_plugin._steps):
            each.cache_clear()
        self.install_worker()
        vllm_plugin.register()
        self.assertEqual(list(self.overrides), [self.enum.FLASH_ATTN])
        backend = self.resolve(self.overrides[self.enum.FLASH_ATTN])
        impls = [backend.get_impl_cls()(HEADS // self.ranks, DIM, SCALE, KV_HEADS // self.ranks) for _ in range(LAYERS)]
        calls = [(slice(0, 50), None), (slice(0, 50), step(("newa", 0, 120, 50))), (slice(0, 1), step(("b", 9, 5, 1))),
                 (slice(30, 121), step(("newa", 30, 120, 90), ("b", 10, 5, 1))), (slice(0, 50), step(("newc", 0, 50, 50)))]
        for chunk, said in calls:
            metadata = said
            if said:
                self.assertIs(self.worker().execute_model(said[0]), said[0])
                metadata = backend.get_builder_cls()().build(0, common_attn_metadata=said[1])
            for i, (impl, rows) in enumerate(zip(impls, self.rows)):
                padded = [torch.cat([self.own(x)[chunk], torch.full_like(self.own(x)[:3], torch.nan)]) for x in rows]
                layer = types.SimpleNamespace(layer_name=f"model.layers.{i}.self_attn.attn")
                self.assertEqual(impl.forward(layer, *padded, None, metadata, output=7), ("attended", 7))

    def run_sglang(self):
        sglang_plugin._tap.cache_clear()
        sglang_plugin.register()
        (target, (hook, _)), = FakeHooks.hooks.items()
        self.assertEqual(target, "sglang.srt.layers.attention.base_attn_backend.AttentionBackend.forward")
        for chunk, extends in ((slice(0, 60), True), (slice(0, 9), False), (slice(60, 120), True), (slice(0, 9), True)):
            batch = types.SimpleNamespace(forward_mode=types.SimpleNamespace(is_extend=lambda: extends), extend_prefix_lens_cpu=[chunk.start],
                                          extend_seq_lens_cpu=[chunk.stop - chunk.start], input_ids=torch.arange(TOKENS)[chunk])
            for i, rows in enumerate(self.rows):
                for sliding in (-1, 512):  # a layer with a window is another one
                    layer = types.SimpleNamespace(layer_id=i, tp_q_head_num=HEADS // self.ranks, v_head_dim=DIM,
                                                  tp_k_head_num=KV_HEADS // self.ranks, qk_head_dim=DIM, scaling=SCALE,
                                                  tp_v_head_num=KV_HEADS // self.ranks, is_cross_attention=False,
                                                  sliding_window_size=sliding)
                    flat = [self.own(x)[chunk].flatten(1) for x in rows]
                    self.assertIs(hook("backend", *flat, layer, batch, save_kv_cache=True), None)

    def check_rows(self, run, plugin, *lengths):
        """Two ranks keep prompts from their first tokens on, of which the tests begin all at the first row."""
        folder, self.ranks = self.dump, 2
        for self.rank in (0, 1):
            with self.assertLogs("oscar_kv", logging.WARNING) as logged:
                run()
                plugin._tap()._finish()
            self.assertIn(f"rows of {sum(lengths)} tokens in {len(lengths)} sequences are in {folder}/oscar_rows_rank{self.rank}.pt; next: oscar "
                          f"fit --dump {folder} --out SET; none is longer than 480 tokens", logged.output[0])
            (folder / f"oscar_rows_rank{self.rank}.pt").rename(self.folder / f"{self.rank}")  # each begins before one has written
            content = torch.load(self.folder / f"{self.rank}")
            for layer, own in content["layers"].items():
                for name, rows in zip(("q_samples", "k", "v"), self.rows[layer]):
                    self.assertTrue(torch.equal(own[name], torch.cat([self.own(rows)[:length] for length in lengths])))
                self.assertEqual((own["positions"].tolist(), own["q_scaling"]), ([i for length in lengths for i in range(length)], SCALE))
            texts = oscar_kv.identity.describe_tokens([np.arange(length) for length in lengths])
            self.assertEqual(json.loads(content["manifest"])["calibration"], texts)
        for rank in ("0", "1"):
            (self.folder / rank).rename(folder / f"oscar_rows_rank{rank}.pt")
        self.assertEqual(oscar_kv.run("inspect", folder)["facts"]["kv_heads"], KV_HEADS)
        oscar_kv.fit(self.folder / "set", dump=folder, sink=8, recent=8, recipe="coded")
        self.assertEqual(len(oscar_kv.read_set(self.folder / "set", "vllm").layers), LAYERS)

    def test_vllm_rows(self):
        self.check_rows(self.run_vllm, vllm_plugin, 50, 50)

    def test_sglang_rows(self):
        self.check_rows(self.run_sglang, sglang_plugin, 60, 9)
        tried_out = types.SimpleNamespace(extend_prefix_lens_cpu=[0, 0], extend_seq_lens_cpu=[2, 3], input_ids=torch.tensor([0, 0, 5, 0, 1]))
        self.assertEqual([span.tokens for span in sglang_plugin._whole_prompts(tried_out)], [slice(2, 5)])

    def test_vllm_keeps_rows_of_prompts_that_begin(self):
        def texts(*rows, done=()):
            output, common = step(*rows, done=done)
            steps.begin(output)
            return [(span.tokens.start, span.text.tolist()) for span in steps.spans(common)]

        steps = vllm_plugin.Steps()
        self.assertEqual(steps.spans(step(("newa", 0, 70, 4))[1]), [])  # a server that tries its kernels out, before the first step
        first = list(range(4))
        # b has a beginning in the cache; c is a decode step by its second token.
        self.assertEqual(texts(("newa", 0, 70, 4), ("newb", 16, 20, 4), ("newc", 0, 4, 4)), [(0, first), (8, first)])
        self.assertEqual(texts(("a", 4, 70, 66), ("c", 4, 4, 1)), [])
        self.assertEqual(texts(("newa", 0, 70, 4), ("newd", 0, 2, 2)), [(4, [0, 1])])  # a begins again
        self.assertEqual(texts(("newa", 0, 30, 3), done={"a"}), [(0, [0, 1, 2])])  # another one of this name
        with self.assertRaisesRegex(ValueError, "does not tell prompts from decode steps"):
            steps.spans(types.SimpleNamespace(is_prefilling=None))

    def test_a_server_goes_on_when_rows_cannot_be_written(self):
        with self.assertLogs("oscar_kv", logging.ERROR) as logged:
            self.run_vllm()
            self.dump.rmdir()
            vllm_plugin._tap()._finish()
        self.assertIn("observing ended: [Errno 2]", logged.output[0])

    def test_vllm_names_a_layer_that_it_cannot_place(self):
        vllm_plugin._say_unknown.cache_clear()
        rows = torch.zeros(2, 1, DIM)
        with self.assertLogs("oscar_kv", logging.ERROR) as logged:
            for _ in range(2):
                vllm_plugin._observe(None, None, types.SimpleNamespace(layer_name="transformer.h.0.attn"), rows, rows, rows, None)
        self.assertEqual(len(logged.output), 1)
        self.assertIn("'transformer.h.0.attn' is not observed", logged.output[0])

    def test_vllm_names_metadata_of_another_backend(self):
        rows = torch.zeros(2, 1, DIM)
        layer = types.SimpleNamespace(layer_name="model.layers.0.attn")
        with self.assertRaisesRegex(ValueError, "SimpleNamespace was built by another attention backend"):
            vllm_plugin._observe(None, None, layer, rows, rows, rows, types.SimpleNamespace())

    def test_vllm_finds_the_class_by_the_path_that_it_writes(self):
        vllm_plugin._observed.cache_clear()
        vllm_plugin.register()
        backend = self.resolve(self.overrides[self.enum.FLASH_ATTN])
        path = f"{backend.__module__}.{backend.__qualname__}"
        self.assertIs(self.resolve(path), backend)
        self.assertEqual(self.platform.get_attn_backend_cls(path), path)

    def test_vllm_observes_one_model_into_one_dump(self):
        """Layers that draft are of the engine that makes them."""
        self.run_vllm()
        self.addCleanup(vllm_plugin._tap()._finish)
        config, make = sys.modules["vllm.config"].get_current_vllm_config(), lambda: vllm_plugin._observed("FLASH_ATTN").get_impl_cls()(HEADS, DIM, SCALE, KV_HEADS)
        first, config.additional_config = (config.model_config.model, str(self.dump)), {}
        for config.model_config.model, dump in ((first[0], "other"), ("other", first[1])):
            with unittest.mock.patch.dict(os.environ, {"OSCAR_OBSERVE": dump}):
                with self.assertRaisesRegex(ValueError, f"this process observes {first[0]} into {first[1]}; start another process to observe .*other"):
                    make()
        os.environ.pop("OSCAR_OBSERVE")
        make()
        os.environ["OSCAR_OBSERVE"], config.model_config.runner_type = first[1], "draft"
        make()

    def assert_ends(self, expected):
        with self.assertRaises(SystemExit) as ended:
            sglang_plugin.register()
        self.assertIn(expected, ended.exception.code)
        self.assertNotIn("\n", ended.exception.code)

    def test_sglang_ends_where_it_would_do_something_else(self):
        FakeHooks.hooks = {}
        os.environ["OSCAR_KV_SET"] = "x"
        self.addCleanup(lambda: os.environ.pop("OSCAR_KV_SET", None))
        self.assert_ends("SGLang would serve without the set; unset it, and use oscar serve-env")
        del os.environ["OSCAR_KV_SET"]
        module("sglang.srt.layers.attention.base_attn_backend", AttentionBackend=object)
        self.assert_ends("has no sglang.srt.layers.attention.base_attn_backend.AttentionBackend.forward")
        os.environ["OSCAR_OBSERVE"] = ""
        self.assert_ends("OSCAR_OBSERVE is set but empty")
        self.assertEqual(FakeHooks.hooks, {})

    def test_a_server_that_saw_no_prompt_says_so(self):
        tap = vllm_plugin.ServerTap(lambda: None)
        with unittest.mock.patch.dict(os.environ):
            del os.environ["OSCAR_OBSERVE"]  # of another engine of the process
            tap.guard(self.fail)
        with self.assertLogs("oscar_kv", logging.ERROR) as logged:
            tap._finish()
        self.assertIn(f"no prompt was observed from its first token on, so OSCAR_OBSERVE={self.dump} was not written", logged.output[0])

    def test_a_forked_process_that_a_signal_ends_writes_its_file(self):
        def serve(ready):
            signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
            tap = vllm_plugin.ServerTap(lambda: Place(str(self.folder / "model"), 0, 1))
            for i, rows in enumerate(self.rows):
                tap.observe(i, *rows, [Span(slice(0, TOKENS))], SCALE)
            ready.set()
            time.sleep(60)

        torch.set_num_threads(1)  # a fork has no other threads
        fork = multiprocessing.get_context("fork")
        ready = fork.Event()
        server = fork.Process(target=serve, args=(ready,))
        server.start()
        self.assertTrue(ready.wait(60))
        server.terminate()
        server.join(60)
        self.assertEqual(torch.load(self.dump / "oscar_rows_rank0.pt")["tokens"], TOKENS)

    def test_servers_go_on_when_observing_cannot(self):
        self.ranks = 4  # of which two share a head
        self.rows = [[q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)] for q, k, v in self.rows]
        global KV_HEADS
        KV_HEADS = 4
        with self.assertLogs("oscar_kv", logging.ERROR) as logged:
            self.run_vllm()
        KV_HEADS = 2
        self.assertIn("4 ranks with 1 KV heads each, but the model has 2", logged.output[0])
        self.assertEqual(len(logged.output), 1)

    def test_nothing_happens_unasked(self):
        del os.environ["OSCAR_OBSERVE"]
        FakeHooks.hooks = {}
        vllm_plugin.register(), sglang_plugin.register()
        self.assertEqual((self.overrides, FakeHooks.hooks), ({}, {}))


if __name__ == "__main__":
    unittest.main()
