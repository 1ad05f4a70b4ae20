# SPDX-License-Identifier: MIT
"""What one step of vLLM is to the layers; of requests of a few new tokens what kernels are told, which is the same for all layers.

Where all requests have equally many tokens, these tensors lie where they lay in the step before, so that a CUDA graph of a step
finds those of the next. Non-goals: what a layer computes (vllm_backend.py).
"""
from dataclasses import dataclass

import torch
from torch import Tensor
from vllm.v1.attention.backend import AttentionMetadata

from .window_blocks import MOST_NEW, DecodeTables, WindowBlocks


@dataclass
class DecodeStep:
    """gather: for each request its tokens in the step, int64 (requests * tokens), those that it lacks stand for any; None: they
    are the step's first, in order. real: which of these there are, and to be written to `places`."""

    requests: int
    tokens: int
    tables: DecodeTables
    gather: Tensor | None = None
    real: Tensor | None = None
    places: Tensor | None = None

    def queries(self, query: Tensor) -> Tensor:
        """query (tokens of the step, heads, d) -> (requests * tokens, heads, d)."""
        return query[:self.requests * self.tokens] if self.gather is None else query[self.gather]


@dataclass
class Request:
    begin: int  # its first token in the step, and its end
    end: int
    before: int  # tokens that the cache has of it
    history: Tensor  # slots of packed tokens between the windows
    windows: Tensor  # slots of copies of tokens in the windows


@dataclass
class PackedMetadata(AttentionMetadata):
    """One step. Slots count places in all blocks, those of copies in all copies of blocks (window_blocks.py)."""

    num_actual_tokens: int
    slots: Tensor  # int32, of each token; negative: it is not written
    copies: Tensor  # int64, of each token; those without copies have one behind all others
    requests: list[Request]  # those that torch reads
    decoded: DecodeStep | None  # those that kernels read


class StepBuffers:
    """requests: as many as run at once; by_sequence: kernels take several tokens of a request at once (DecodeTables as they are),
    else each is a request to them."""

    def __init__(self, requests: int, by_sequence: bool):
        self.requests, self.by_sequence = requests, by_sequence
        self._kept: dict[tuple[str, int], Tensor] = {}

    def hold(self, name: str, x: Tensor, most: int) -> Tensor:
        """x, at the place of those of this name and width before; x itself if it has more than `most` rows."""
        if len(x) > most:
            return x
        key = (name, x[0].numel() if len(x) else 1)
        if key not in self._kept:
            self._kept[key] = x.new_zeros(most, *x.shape[1:])
        return self._kept[key][:len(x)].copy_(x)

    def build(self, windows: WindowBlocks, starts: list[int], chosen: list[int], table: Tensor, before: Tensor, count: Tensor,
              all_tokens: int) -> DecodeStep | None:
        """starts: where the requests' tokens begin; chosen: the requests that kernels read; table, before, count: of all requests."""
        if not chosen:
            return None
        counts = [starts[i + 1] - starts[i] for i in chosen]
        tokens, device = max(counts), table.device
        uniform = chosen == list(range(len(chosen))) and min(counts) == tokens
        if uniform:  # requests without tokens, behind the others, fill a graph's batch up
            requests = len(starts) - 1
            if starts[-1] != len(chosen) * tokens or requests * tokens > all_tokens:
                requests = len(chosen)
            tables = self._of_tokens(windows.decode_tables(table[:requests], before[:requests], count[:requests], tokens), tokens)
            held = (self.hold(f"{name} of {tokens}", x, self.requests * len(x) // requests) for name, x in zip(tables._fields, tables))
            return DecodeStep(requests, tokens, DecodeTables(*held))
        rows = torch.tensor(chosen, device=device)
        tables = windows.decode_tables(table[rows], before[rows], count[rows], tokens)
        last = [starts[i + 1] for i in chosen]  # a request's tokens are its row's last
        gather = [max(end - tokens + t, starts[i]) for i, end in zip(chosen, last) for t in range(tokens)]
        real = [row * tokens + tokens - n + t for row, n in enumerate(counts) for t in range(n)]
        indices = torch.tensor(gather, device=device), torch.tensor(real, device=device)
        return DecodeStep(len(chosen), tokens, self._of_tokens(tables, tokens), *indices, indices[0][indices[1]])

    def _of_tokens(self, tables: DecodeTables, tokens: int) -> DecodeTables:
        return tables if self.by_sequence or tokens == 1 else tables.of_tokens(tokens)


def chosen_of(starts: list[int]) -> list[int]:
    """The requests that kernels read: those of a few new tokens."""
    return [i for i, (begin, end) in enumerate(zip(starts, starts[1:])) if 0 < end - begin <= MOST_NEW]
