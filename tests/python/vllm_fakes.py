# SPDX-License-Identifier: MIT
"""The classes of vLLM 0.32 that oscar_kv/vllm_backend.py uses, where there is no vLLM: importing this installs them as modules."""
import enum
import sys
import types
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch

METADATA = TypeVar("METADATA")
RANK, RANKS = [0], [1]


class FakeMetadataBuilder(Generic[METADATA]):
    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        self.kv_cache_spec, self.layer_names, self.vllm_config, self.device = kv_cache_spec, layer_names, vllm_config, device


class FakeImpl(Generic[METADATA]):
    pass


@dataclass(frozen=True)
class Spec:
    block_size: int
    num_kv_heads: int
    head_size: int
    dtype: Any = torch.bfloat16
    num_head_slots: int | None = None
    state_content_bytes: int | None = None
    page_size_padded: int | None = None

    @property
    def page_size_bytes(self):
        return self.page_size_padded or self.block_size * (self.state_content_bytes or 4 * self.num_kv_heads * self.head_size)


class SlidingSpec(Spec):
    pass


class FakeAttention:
    def __init__(self, name, backend, spec):
        self.layer_name, self.attn_backend, self.spec = name, backend, spec

    def get_kv_cache_spec(self, vllm_config):
        return self.spec


def config_of(layers, blocks, requests, tokens, drafts=0):
    """What a metadata builder reads of vLLM's configuration."""
    space = types.SimpleNamespace
    return space(speculative_config=space(num_speculative_tokens=drafts), compilation_config=space(static_forward_context=layers),
                 cache_config=space(num_gpu_blocks=blocks),
                 scheduler_config=space(max_num_seqs=requests, max_num_batched_tokens=tokens))


def step_of(starts, lengths, tables, slots, requests, prompts, device):
    """What a metadata builder is told of a step. starts: where requests' tokens begin, and where the last one's end; lengths: tokens
    of each with the step's; tables: blocks of each; slots: of each token, with padding; requests: their places; prompts: which of them
    have a prompt that is not computed yet."""
    starts = torch.tensor(starts, dtype=torch.int32)
    return types.SimpleNamespace(
        query_start_loc_cpu=starts, query_start_loc=starts.to(device), num_actual_tokens=len(slots),
        seq_lens=torch.tensor(lengths, dtype=torch.int32, device=device), slot_mapping=torch.tensor(slots, device=device),
        block_table_tensor=torch.tensor(tables, dtype=torch.int32, device=device), req_idx=np.array(requests),
        is_prefilling=torch.tensor(prompts, dtype=torch.bool))


def module(name, **members):
    """A module of this name, and of the packages that it is in, or more members of it."""
    for i in range(len(parts := name.split("."))):
        sys.modules.setdefault(".".join(parts[:i + 1]), types.ModuleType(".".join(parts[:i + 1])))
    vars(sys.modules[name]).update(members)


def forget_modules(case):
    """Lets the modules that a test makes go with it."""
    before = set(sys.modules)
    case.addCleanup(lambda: [sys.modules.pop(name) for name in set(sys.modules) - before])


def install(device):
    """device: "cpu" or "cuda", what vLLM would run on."""
    model = types.SimpleNamespace(dtype=torch.bfloat16, max_model_len=512)
    module("vllm.config", get_current_vllm_config=lambda: types.SimpleNamespace(model_config=model))
    module("vllm.v1.attention.backend", AttentionBackend=type("AttentionBackend", (), {}), AttentionImpl=FakeImpl,
           AttentionCGSupport=enum.Enum("AttentionCGSupport", ["NEVER", "UNIFORM_SINGLE_TOKEN_DECODE", "UNIFORM_BATCH"], start=0),
           AttentionMetadata=type("AttentionMetadata", (), {}), AttentionMetadataBuilder=FakeMetadataBuilder, MultipleOf=lambda base: base,
           max_decode_query_len=lambda config: 1 + config.speculative_config.num_speculative_tokens)
    module("vllm.model_executor.layers.attention", Attention=FakeAttention)
    module("vllm.platforms", current_platform=types.SimpleNamespace(device_type=device))
    module("vllm.distributed", get_tensor_model_parallel_rank=lambda: RANK[0],
           get_tensor_model_parallel_world_size=lambda: RANKS[0])
