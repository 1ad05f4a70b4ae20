# SPDX-License-Identifier: MIT
"""What a layer of vLLM's model is told of one step: where the step's tokens are written, and which tokens of which requests are read.
Kernels read the requests that have a few new tokens all at once; the others are prompts (chunk_attention.py). What is read is found once for
all layers.

Where all requests have equally many tokens, the tensors for kernels have the same addresses in every step, so that a CUDA graph
that was captured in one step can be replayed in the next. Non-goals: what a layer computes (vllm_backend.py).
"""
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from vllm.v1.attention.backend import AttentionMetadata

from .chunk_attention import Prompts
from .window_blocks import MOST_NEW, DecodeTables, WindowBlocks


@dataclass
class DecodeStep:
    """The requests that kernels read, each as `tokens` tokens, of which one with fewer new tokens has its own last.

    gather: int64 (requests * tokens), which token of the step each of them is; where a request has fewer, any token of its own
    stands for those before its first. None: they are the first tokens of the step, in order.
    real: int64, which entries of `gather` are tokens that the request has. places: int64, the tokens of the step that those are,
    where their outputs belong. Both are None where `gather` is."""

    requests: int
    tokens: int
    tables: DecodeTables
    first: Tensor  # int32 (requests), the position of each history's first token
    gather: Tensor | None = None
    real: Tensor | None = None
    places: Tensor | None = None

    def queries(self, query: Tensor) -> Tensor:
        """query (tokens of the step, heads, d) -> (requests * tokens, heads, d)."""
        return query[:self.requests * self.tokens] if self.gather is None else query[self.gather]


@dataclass
class PackedMetadata(AttentionMetadata):
    """What every layer gets with a step. A slot is a number of a token's place, counted through all blocks of the cache; a copy is
    one through all copies of blocks that hold tokens of the windows in bfloat16 (window_blocks.py)."""

    num_actual_tokens: int
    slots: Tensor  # int32, of each token; negative: it is not written
    copies: Tensor  # int32, of each token; negative: it gets no copy
    positions: Tensor | None  # int32, of each token in its text; None where no layer stores keys before RoPE
    prompts: list[Prompts]  # those that nothing is cached of, and those behind others
    decoded: DecodeStep | None  # those that kernels read


class SharedStep:
    """What a builder made of a step, for the builders of other layers that vLLM tells the same: each takes it once, and the maker's
    windows with it. A step is known by the tensor of its slots, which vLLM makes for each step and each table of blocks. restored: as
    WindowStep has them."""

    def __init__(self, maker: Any, kind: Any, slots: Tensor, metadata: PackedMetadata, restored: tuple[Tensor, Tensor, Tensor]):
        self.metadata, self.restored = metadata, restored
        self._kind, self._slots, self._windows, self._taken = kind, slots, maker.windows, WeakSet([maker])  # which end with their engine

    def take(self, builder: Any, kind: Any, slots: Tensor) -> bool:
        """Whether it is of this step, made by a builder of this kind, and new to this one."""
        if slots is not self._slots or kind != self._kind or builder in self._taken:
            return False
        self._taken.add(builder)
        builder.windows = self._windows
        return True


class StepBuffers:
    """Makes the DecodeStep of each step, in tensors that stay where they are. requests: how many run at once; sink: tokens before each
    history."""

    def __init__(self, requests: int, sink: int, device: torch.device):
        self.requests, self.first = requests, torch.full((requests,), sink, dtype=torch.int32, device=device)
        self._kept: dict[tuple[str, int], Tensor] = {}

    def hold(self, name: str, x: Tensor, most: int) -> Tensor:
        """A copy of x in the tensor that is kept for this name and width, `most` rows long; x itself if it has more rows."""
        return x if len(x) > most else self._room(name, x.shape, most, x).copy_(x)

    def _room(self, name: str, shape: tuple[int, ...], most: int, like: Tensor) -> Tensor:
        """The first rows of the tensor that is kept for this name and width."""
        key = (name, shape[1] if len(shape) > 1 else 1)
        if key not in self._kept:
            self._kept[key] = like.new_zeros(most, *shape[1:])
        return self._kept[key][:shape[0]]

    def rooms(self, windows: WindowBlocks, table: Tensor, tokens: int, all_tokens: int, most_tokens: int) -> tuple[Tensor, Tensor, DecodeTables]:
        """Where build(), and hold() of "slots" and "kept", would leave what they say of such a step, to be written: of the requests that table
        (requests, any) has, no more than run at once."""
        rows = len(table)
        shapes = (rows, windows.page_width(table)), (rows,), (rows, windows.seen_at_once(tokens)), (rows,)
        tables = (self._room(f"{name} of {tokens}", shape, self.requests, table) for name, shape in zip(DecodeTables._fields, shapes))
        slots, kept = (self._room(name, (all_tokens,), most_tokens, table) for name in ("slots", "kept"))
        return slots, kept, DecodeTables(*tables)

    def build(self, windows: WindowBlocks, starts: list[int], chosen: list[int], table: Tensor, before: Tensor, count: Tensor,
              all_tokens: int) -> DecodeStep | None:
        """None if kernels read no request. starts: where the tokens of each request begin in the step, and where the last one's end;
        chosen: the requests that kernels read, ascending; table, before, count: of all requests, as WindowBlocks.decode_tables() has
        them; all_tokens: tokens of the step, with those that fill it up."""
        if not chosen:
            return None
        counts = [starts[i + 1] - starts[i] for i in chosen]
        tokens, device = max(counts), table.device
        if uniform := uniform_of(starts, chosen, all_tokens):
            requests, _ = uniform
            tables = windows.decode_tables(table[:requests], before[:requests], count[:requests], tokens)
            held = (self.hold(f"{name} of {tokens}", x, self.requests) for name, x in zip(tables._fields, tables))
            return DecodeStep(requests, tokens, DecodeTables(*held), self.first[:requests])
        rows = torch.tensor(chosen, device=device)
        tables = windows.decode_tables(table[rows], before[rows], count[rows], tokens)
        last = [starts[i + 1] for i in chosen]  # a request's tokens are its row's last
        gather = [max(end - tokens + t, starts[i]) for i, end in zip(chosen, last) for t in range(tokens)]
        real = [row * tokens + tokens - n + t for row, n in enumerate(counts) for t in range(n)]
        indices = torch.tensor(gather, device=device), torch.tensor(real, device=device)
        return DecodeStep(len(chosen), tokens, tables, self.first[:len(chosen)], *indices, indices[0][indices[1]])


def uniform_of(starts: list[int], chosen: list[int], all_tokens: int) -> tuple[int, int] | None:
    """(requests, tokens of each) if the chosen requests come first and have equally many tokens; requests without tokens, behind the others,
    fill a graph's batch up."""
    counts = {starts[i + 1] - starts[i] for i in chosen}
    if chosen != list(range(len(chosen))) or len(counts) != 1:
        return None
    tokens, requests = counts.pop(), len(starts) - 1
    is_whole = starts[-1] == len(chosen) * tokens and requests * tokens <= all_tokens
    return requests if is_whole else len(chosen), tokens


def chosen_of(starts: list[int]) -> list[int]:
    """The requests that kernels read: those with 1 to MOST_NEW new tokens."""
    return [i for i, (begin, end) in enumerate(zip(starts, starts[1:])) if 0 < end - begin <= MOST_NEW]


def running(common: Any) -> tuple[frozenset[int], bool, bool]:
    """The places of a step's requests, if vLLM tells them; whether some may be new there: a place whose request ends is given to one
    whose prompt is not computed yet; and whether more than MOST_NEW new tokens of one may be taken back: drafts."""
    index, prompts, starts = common.req_idx, common.is_prefilling, common.query_start_loc_cpu.tolist()
    is_prompt = [True] * len(starts) if prompts is None else prompts.tolist()
    drafts = any(end - begin > MOST_NEW and not prompt for begin, end, prompt in zip(starts, starts[1:], is_prompt))
    return frozenset() if index is None else frozenset(index.tolist()), any(is_prompt), drafts
