# SPDX-License-Identifier: MIT
"""The plugin of SGLang with SGLang's own hooks, attention backends, layers and contexts: sglang_test.py [SglangTest.test_…]. No server
runs: what only a GPU can do, the kernels of a backend, is left out of the one at the end of each chain. Exit status 77 without SGLang
(apart.py).
"""
import contextlib
import importlib.abc
import importlib.machinery
import os
import sys
import tempfile
import types
import unittest
from pathlib import Path

import apart

apart.on_the_path("sglang")


class AnyType(type):
    """A class that has whatever is asked of it."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return AnyType(name, (), {"__init__": lambda self, *args, **kwargs: None,
                                  "__get_pydantic_core_schema__": classmethod(lambda cls, *args: {"type": "any"})})


class Kernels(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Third-party packages that need a GPU to load, or a compiler of grammars: empty here. Nothing of SGLang's own."""

    def find_spec(self, name, path, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] in ("sgl_kernel", "xgrammar") else None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda name: getattr(AnyType(spec.name, (), {}), name)
        return module

    def exec_module(self, module):
        pass


sys.meta_path.append(Kernels())

import oscar_kv  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from oscar_kv import sglang_plugin  # noqa: E402
import server_test  # noqa: E402
from server_test import DIM, HEADS, KV_HEADS, LAYERS, SCALE, TOKENS  # noqa: E402
from sglang.srt import runtime_context  # noqa: E402
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend  # noqa: E402
from sglang.srt.layers.attention.hybrid_attn_backend import HybridAttnBackend  # noqa: E402
from sglang.srt.layers.attention.hybrid_linear_attn_backend import HybridLinearAttnBackend  # noqa: E402
from sglang.srt.layers.attention.tbo_backend import TboAttnBackend  # noqa: E402
from sglang.srt.layers.radix_attention import RadixAttention  # noqa: E402
from sglang.srt.model_executor.forward_batch_info import ForwardMode  # noqa: E402
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context  # noqa: E402
from sglang.srt.plugins.hook_registry import HookRegistry  # noqa: E402


class LastBackend(AttentionBackend):
    """Where kernels would run."""

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
        return q

    forward_decode = forward_extend


class LinearBackend(LastBackend):
    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True, mixed_qkv=None, **kwargs):
        return mixed_qkv

    forward_decode = forward_extend


def wrapper(kind, **members):
    """A wrapping backend around others, without the model that its constructor asks for."""
    made = object.__new__(kind)
    vars(made).update(members)
    return made


def by_phase(backend):
    return wrapper(HybridAttnBackend, prefill_backend=backend, decode_backend=LastBackend(), spec_attn_is_decode=True)


def with_linear(backend):
    return wrapper(HybridLinearAttnBackend, full_attn_backend=backend, linear_attn_backend=LinearBackend(),
                   full_attn_layers=list(range(LAYERS)))


def overlapped(backend):
    return wrapper(TboAttnBackend, primary=backend, children=[])


class SglangTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="oscar-sglang-")))
        transformers.LlamaConfig(hidden_size=HEADS * DIM, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
                                 num_key_value_heads=KV_HEADS).save_pretrained(cls.folder / "model")
        cls.dump = cls.folder / "rows"
        os.environ |= {"OSCAR_OBSERVE": str(cls.dump), "OSCAR_OBSERVE_TOKENS": str(TOKENS)}
        sglang_plugin.register()
        HookRegistry.apply_hooks()
        torch.manual_seed(0)
        cls.rows = [[torch.randn(TOKENS, heads, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS)] for _ in range(LAYERS)]

    def run_model(self, backend, rank=0, ranks=1):
        """Rows of a prompt in two chunks with a decode step between, and of another one, as they are kept."""
        sglang_plugin._tap.cache_clear()
        context, own = runtime_context.get_context(), slice(rank * KV_HEADS // ranks, (rank + 1) * KV_HEADS // ranks)
        context._server_args = types.SimpleNamespace(model_path=str(self.folder / "model"))
        with contextlib.ExitStack() as stack:
            stack.callback(setattr, context, "_server_args", None)
            stack.enter_context(runtime_context.get_parallel().override(attn_tp_rank=rank, attn_tp_size=ranks))
            stack.enter_context(forward_context(ForwardContext(attn_backend=backend)))
            for chunk, mode in ((slice(0, 70), ForwardMode.EXTEND), (slice(0, 9), ForwardMode.DECODE),
                                (slice(70, 120), ForwardMode.EXTEND), (slice(0, 9), ForwardMode.EXTEND)):
                batch = types.SimpleNamespace(forward_mode=mode, logical_forward_mode=mode, global_num_token_non_padded_cpu=None,
                                              extend_prefix_lens_cpu=[chunk.start], extend_seq_lens_cpu=[chunk.stop - chunk.start],
                                              input_ids=torch.arange(TOKENS)[chunk])
                heads = slice(own.start * HEADS // KV_HEADS, own.stop * HEADS // KV_HEADS)
                for i, (q, k, v) in enumerate(self.rows):
                    layer = RadixAttention(HEADS // ranks, DIM, SCALE, KV_HEADS // ranks, layer_id=i)
                    flat = q[chunk, heads].flatten(1)
                    out = layer(flat, k[chunk, own].flatten(1), v[chunk, own].flatten(1), batch)
                    self.assertIs(out, flat)
        with self.assertLogs("oscar_kv"):
            sglang_plugin._tap()._finish()
        path = self.dump / f"oscar_rows_rank{rank}.pt"
        kept = torch.load(path)["layers"]
        path.unlink()  # each rank begins before one has written
        return kept

    def assert_first_chunks(self, kept, rank=0, ranks=1):
        for layer, rows in enumerate(self.rows):
            for name, x in zip(("q_samples", "k", "v"), rows):
                own = x.chunk(ranks, 1)[rank]
                self.assertTrue(torch.equal(kept[layer][name], torch.cat([own[:70], own[:9]])))

    def test_every_chain_of_backends_observes_each_prompt_once(self):
        for chain in ((), (by_phase,), (with_linear,), (overlapped,), (by_phase, with_linear), (by_phase, overlapped),
                      (by_phase, with_linear, overlapped)):
            backend = LastBackend()
            for wrap in chain:
                backend = wrap(backend)
            with self.subTest([wrap.__name__ for wrap in chain]):
                self.assert_first_chunks(self.run_model(backend))

    def test_linear_layers_pass_unseen(self):
        backend, rows = with_linear(LastBackend()), torch.zeros(2, 8)
        batch = types.SimpleNamespace(forward_mode=ForwardMode.EXTEND, logical_forward_mode=ForwardMode.EXTEND)
        with self.assertNoLogs("oscar_kv"):
            out = backend.forward(layer=types.SimpleNamespace(layer_id=LAYERS), forward_batch=batch, mixed_qkv=rows, a=None, b=None)
        self.assertIs(out, rows)

    def test_two_ranks(self):
        for rank in (0, 1):
            self.assert_first_chunks(self.run_model(with_linear(LastBackend()), rank, 2), rank, 2)


if __name__ == "__main__":
    unittest.main()
