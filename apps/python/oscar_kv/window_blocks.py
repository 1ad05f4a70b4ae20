# SPDX-License-Identifier: MIT
"""Which tokens of a paged cache are also kept in bfloat16: those of the blocks that windows read. For servers whose paged cache
holds packed rows only (vllm_backend.py).

A request reads its first `sink` tokens and its last `recent` ones as they were computed. Copies belong to blocks, not to requests:
so requests that share a prefix share its copies, a request that is preempted or moved finds its own again, and a block that is given to
another request is simply written anew. There are as many entries, of one block each, as all requests at once can read; the one that
was longest not read makes room. A block that comes back without a copy, by a prefix cache whose copy has made room, is restored from
its packed rows. Needs torch only; runs on the device, which it waits for once a step.
"""
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass
class WindowStep:
    """Slots count places: those of tokens in all blocks, those of copies in all entries.

    kept: for each token of the step, the slot of its copy, -1: none. restored: (slots, slots of copies) of older tokens, whose
    copies are made of packed rows before anything is read."""

    kept: Tensor
    restored: tuple[Tensor, Tensor]


class DecodeTables(NamedTuple):
    """What one token of each request sees, int32: pages and lengths of its history, whose first page is the first behind the sink;
    slots of copies and lengths of its windows, itself the last."""

    pages: Tensor  # (requests, pages of the longest)
    lengths: Tensor
    copies: Tensor  # (requests, sink + recent), pages of one token
    copy_lengths: Tensor


class WindowBlocks:
    """requests: as many as run at once; tokens: as many as one step computes."""

    def __init__(self, blocks: int, block_size: int, sink: int, recent: int, requests: int, tokens: int, device: torch.device):
        self.block_size, self.sink, self.recent = block_size, sink, recent
        self.entries = min(blocks, self.most_entries(block_size, sink, recent, requests, tokens))
        self._entry_of = torch.full((blocks,), -1, dtype=torch.long, device=device)
        self._block_of = torch.full((self.entries,), -1, dtype=torch.long, device=device)
        self._read_in = torch.zeros(self.entries, dtype=torch.long, device=device)  # the step
        self._step = 0

    @staticmethod
    def most_entries(block_size: int, sink: int, recent: int, requests: int, tokens: int) -> int:
        """Entries that suffice for any step."""
        of_request = -(-sink // block_size) + (recent - 1) // block_size + 3
        return requests * of_request + -(-tokens // block_size)

    def places(self, table: Tensor, first: Tensor, count: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The tokens [first, first + count) of each request (each int64 (requests)), whose blocks `table` (requests, any) lists:
        their requests, tokens and slots, one after another, int64."""
        request = torch.repeat_interleave(torch.arange(len(first), device=table.device), count)
        begin = torch.repeat_interleave(count.cumsum(0) - count, count)
        token = torch.arange(len(request), device=table.device) - begin + first[request]
        block = table[request, token // self.block_size].long()
        return request, token, block * self.block_size + token % self.block_size

    def copies(self, slots: Tensor) -> Tensor:
        """The slots of the copies of tokens; -1: none."""
        entry = self._entry_of[slots // self.block_size]
        return torch.where(entry >= 0, entry * self.block_size + slots % self.block_size, -1)

    def begin(self, table: Tensor, before: Tensor, after: Tensor, written: Tensor) -> WindowStep:
        """A step that takes requests from `before` tokens to `after` (int64 (requests)) and writes the slots `written` (-1: none).
        Lets the blocks that this step reads in windows, and the next one, have copies."""
        self._step += 1
        reads = self._window(before)
        next_reads = self._window(after)
        slots = torch.cat([self.places(table, *part)[2] for part in (*reads, *next_reads)])
        needed = (slots // self.block_size).unique()
        fresh = needed[self._entry_of[needed] < 0]
        self._read_in[self._entry_of[needed[self._entry_of[needed] >= 0]]] = self._step
        self._give(fresh)
        old = slots[:0]
        if len(fresh):
            old = torch.cat([self.places(table, *part)[2] for part in reads]).unique()
            old = old[torch.isin(old // self.block_size, fresh) & ~torch.isin(old, written)]
        return WindowStep(torch.where(written >= 0, self.copies(written.clamp(min=0)), -1), (old, self.copies(old)))

    def _window(self, seen: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """(first token, count) of both windows in front of a request's next token, which is the last of `recent` itself."""
        sink = seen.clamp(max=self.sink)
        begin = self.recent_begin(seen)
        return (torch.zeros_like(sink), sink), (begin, seen - begin)

    def recent_begin(self, seen: Tensor) -> Tensor:
        """The first token that is in the recent window, and not in the sink, of the token behind so many."""
        return torch.maximum(seen + 1 - max(self.recent, 1), seen.clamp(max=self.sink))

    def windows(self, table: Tensor, before: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], ...]:
        """places() of what this step reads in windows: sinks, recent tokens."""
        return tuple(self.places(table, *part) for part in self._window(before))

    def history(self, table: Tensor, before: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """places() of what this step reads packed."""
        first = before.clamp(max=self.sink)
        return self.places(table, first, self.recent_begin(before) - first)

    def decode_tables(self, table: Tensor, before: list[int], own: Tensor) -> DecodeTables:
        """Of requests whose next token, behind so many, has the slot `own`. The sink is a multiple of the block size, and recent
        tokens are two or more, so that the token itself has a copy."""
        device, seen = table.device, torch.tensor(before, dtype=torch.long, device=table.device)
        (sinks, sink_counts), (begin, recent_counts) = self._window(seen)
        lengths = begin - sink_counts
        copies = torch.zeros(len(before), self.sink + self.recent, dtype=torch.long, device=device)
        for (request, token, slots), first in zip(self.windows(table, seen), (sinks, begin - sink_counts)):
            copies[request, token - first[request]] = self.copies(slots)
        last = sink_counts + recent_counts
        copies[torch.arange(len(before), device=device), last] = self.copies(own)
        most = max(max(n + 1 - self.recent, min(n, self.sink)) - min(n, self.sink) for n in before)
        first_page = self.sink // self.block_size
        pages = table[:, first_page:first_page + max(-(-most // self.block_size), 1)]
        return DecodeTables(pages.int().contiguous(), lengths.int(), copies.int(), (last + 1).int())

    def _give(self, blocks: Tensor) -> None:
        """Entries to blocks that have none."""
        if not len(blocks):
            return
        order = torch.argsort(self._read_in, stable=True)[:len(blocks)]
        if len(order) < len(blocks) or bool((self._read_in[order] == self._step).any()):
            raise RuntimeError(f"windows need more than the {self.entries} blocks of {self.block_size} tokens that were set aside")
        former = self._block_of[order]
        self._entry_of[former[former >= 0]] = -1
        self._entry_of[blocks], self._block_of[order] = order, blocks
        self._read_in[order] = self._step
