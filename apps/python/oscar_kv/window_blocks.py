# SPDX-License-Identifier: MIT
"""Which tokens of a paged cache are also kept in bfloat16: those of the blocks that windows read. For servers whose paged cache
holds packed rows only (vllm_backend.py).

A request reads its first `sink` tokens and its last `recent` ones as they were computed. Copies belong to blocks, not to requests:
so requests that share a prefix share its copies, a request that is preempted or moved finds its own again, and a block that is given to
another request is simply written anew. There are as many entries, of one block each, as all requests at once can read; the one that
was longest not read makes room. A block that comes back without a copy, by a prefix cache whose copy has made room, is restored from
its packed rows, as is one whose rows were copied from another block. Needs torch only. In a step of the same requests as the one before it
runs on the device, with shapes that depend on no data; in others it waits for the device.
"""
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


MOST_NEW = 8  # new tokens of a request that kernels read at once


@dataclass
class WindowStep:
    """Slots count places: those of tokens in all blocks, those of copies in all entries.

    kept: for each token of the step, the slot of its copy; negative: none. restored: (slots, slots of copies, positions) of older tokens,
    whose copies are made of packed rows before anything is read."""

    kept: Tensor
    restored: tuple[Tensor, Tensor, Tensor]


class DecodeTables(NamedTuple):
    """What the new tokens of each request see, int32: pages and lengths of its history, whose first page is the first behind the
    sink; slots of copies and lengths of its windows, the new tokens last."""

    pages: Tensor  # (requests, pages of a request)
    lengths: Tensor
    copies: Tensor  # (requests, sink + recent - 1 + new tokens), pages of one token
    copy_lengths: Tensor


class WindowBlocks:
    """requests: as many as run at once; tokens: as many as one step computes."""

    def __init__(self, blocks: int, block_size: int, sink: int, recent: int, requests: int, tokens: int, device: torch.device):
        self.block_size, self.sink, self.recent = block_size, sink, recent
        self.entries = min(blocks, self.most_entries(block_size, sink, recent, requests, tokens))
        self.slots = self.entries * block_size  # of copies
        # The last element of each stands for no block, or no entry.
        self._entry_of = torch.full((blocks + 1,), -1, dtype=torch.long, device=device)
        self._block_of = torch.full((self.entries + 1,), -1, dtype=torch.long, device=device)
        self._read_in = torch.zeros(self.entries + 1, dtype=torch.long, device=device)  # the step
        self._first = torch.zeros(blocks + 1, dtype=torch.long, device=device)
        self._step, self._former = 0, frozenset[int]()

    @staticmethod
    def most_entries(block_size: int, sink: int, recent: int, requests: int, tokens: int) -> int:
        """Entries that suffice for any step: each request reads the window before its new tokens, and leaves that behind them. One
        is for the block that steps without requests name."""
        of_request, window = -(-sink // block_size) + (recent - 1) // block_size + 3, -(-recent // block_size)
        return 1 + requests * of_request + min(-(-tokens // block_size), requests * window)

    def forget(self, blocks: list[int]) -> None:
        """Drops the copies of blocks whose packed rows came from other blocks, and not from a step."""
        at = torch.tensor(blocks, dtype=torch.long, device=self._entry_of.device)
        self._block_of[self._entry_of[at]] = -1  # of those without a copy the last element, which says so anyway
        self._entry_of[at] = -1

    def entries_of(self, blocks: list[int]) -> list[int]:
        """The entries that hold copies of these blocks; -1: none."""
        return self._entry_of[torch.tensor(blocks, dtype=torch.long, device=self._entry_of.device)].tolist()

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

    def begin(self, table: Tensor, before: Tensor, after: Tensor, written: Tensor, requests: frozenset[int] = frozenset(),
              has_new: bool = True, has_drafts: bool = False) -> WindowStep:
        """A step that takes requests from `before` tokens to `after` (int64 (requests)) and writes the slots `written` (-1: none).
        Lets the blocks that this step reads in windows, and the next one, have copies, and those of a few new tokens, which see
        each other there. Requests without new tokens take no part. requests: the places of those that take part, where they are
        known; has_new: some may be others than those that had their places in the step before; has_drafts: of more than MOST_NEW new
        tokens of one, which do not all have copies, some may be taken back. Where all took part in the step before, and none had such
        drafts, it left copies of all that they read now: nothing is restored, and the device is not waited for."""
        steady = self.is_steady(requests, has_new)
        self._former = frozenset() if has_drafts else requests
        self._step += 1
        begin = self.recent_begin(before)
        few = after - before <= MOST_NEW
        parts = [self._blocks(table, *part) for part in (
            (torch.zeros_like(before), torch.where(after > before, after.clamp(max=self.sink), 0), self.sink),
            (begin, torch.where(after > before, torch.where(few, after, before), 0), self.recent + MOST_NEW),
            (self.recent_begin(after), torch.where(after > before, after, 0), self.recent))]
        ids, firsts = (torch.cat(x, 1) for x in zip(*parts))
        had = self._entry_of[ids]
        fresh = (had < 0) & (ids < len(self._entry_of) - 1)
        self._read_in.index_fill_(0, torch.where(had >= 0, had, self.entries).flatten(), self._step)
        is_full = self._give(ids.flatten(), fresh.flatten())
        kept = torch.where(written >= 0, self.copies(written.clamp(min=0)), -1)
        if steady:
            return WindowStep(kept, (before[:0],) * 3)
        full, is_old = torch.stack([is_full, (fresh & (firsts < before[:, None])).any()]).tolist()
        if full:
            raise RuntimeError(f"windows need more than the {self.entries} blocks of {self.block_size} tokens that were set aside")
        old = torch.stack([before[:0]] * 2)
        if is_old:  # whole blocks: a request that shares one may read more of it
            place = torch.arange(self.block_size, device=table.device)
            position = firsts[..., None] + place
            is_seen = (position < before[:, None, None]) & fresh[..., None]
            old = torch.stack([ids[..., None] * self.block_size + place, position])[:, is_seen].unique(dim=1)
            old = old[:, ~torch.isin(old[0], written)]
        return WindowStep(kept, (old[0], self.copies(old[0]), old[1]))

    def is_steady(self, requests: frozenset[int], has_new: bool) -> bool:
        """Whether all these took part in the step before, as begin() has them."""
        return bool(requests) and not has_new and requests <= self._former

    def step(self, table: Tensor, starts: Tensor, lengths: Tensor, written: Tensor, requests: frozenset[int], slots: Tensor, kept: Tensor,
             tables: DecodeTables) -> None:
        """begin() and decode_tables() by kernels, where begin() would wait for nothing and no request has more than MOST_NEW new tokens.
        starts, lengths: int32 (requests + 1) and (requests), where their tokens begin in the step, and tokens of each with these. slots
        and kept, int32 (tokens of the step), and tables are written."""
        self._former = requests
        self._step += 1
        torch.ops.oscar.window_step(table, starts, lengths, written, self._entry_of, self._block_of, self._read_in, self._first, slots, kept,
                                    *tables, self.block_size, self.sink, self.recent, self._step)

    def _blocks(self, table: Tensor, first: Tensor, end: Tensor, most: int) -> tuple[Tensor, Tensor]:
        """The blocks of the tokens [first, end) of each request, at most so many tokens, and their first tokens: (requests, any)
        each. Where a request has fewer, they are no block."""
        width = -(-most // self.block_size) + 1
        number = (first // self.block_size)[:, None] + torch.arange(width, device=table.device)
        token = number * self.block_size
        ids = table.gather(1, number.clamp(max=table.shape[1] - 1)).long()
        return torch.where((token < end[:, None]) & (first < end)[:, None], ids, len(self._entry_of) - 1), token

    def recent_begin(self, seen: Tensor) -> Tensor:
        """The first token that is in the recent window, and not in the sink, of the token behind so many."""
        return torch.maximum(seen + 1 - max(self.recent, 1), seen.clamp(max=self.sink))

    def rows_before(self, table: Tensor, before: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What this step reads of the tokens before its own, one request after another: as Prompts has them slots, positions, and of those in
        windows which these are, and slots of copies."""
        request, token, slot = self.places(table, torch.zeros_like(before), before)
        is_near = (token < self.sink) | (token >= self.recent_begin(before)[request])
        near = is_near.nonzero()[:, 0]
        return torch.where(is_near, -1, slot).int(), token.int(), near, self.copies(slot[near])

    def decode_tables(self, table: Tensor, before: Tensor, count: Tensor, tokens: int) -> DecodeTables:
        """Of requests with `count` new tokens behind `before` (int64 (requests)), at most `tokens`; a request of none sees nothing.
        The sink is a multiple of the block size, and recent tokens are two or more."""
        sinks, begin = before.clamp(max=self.sink), self.recent_begin(before)
        place = torch.arange(self.seen_at_once(tokens), device=table.device)
        token = torch.where(place < sinks[:, None], place, place + (begin - sinks)[:, None])
        block = table.gather(1, (token // self.block_size).clamp(max=table.shape[1] - 1)).long()
        copies = (self._entry_of[block] * self.block_size + token % self.block_size).clamp(min=0)
        taking = count > 0
        lengths = torch.where(taking, begin - sinks, 0), torch.where(taking, sinks + before - begin + count, 0)
        return DecodeTables(table[:, -self.page_width(table):].int().contiguous(), lengths[0].int(), copies.int(), lengths[1].int())

    def seen_at_once(self, tokens: int) -> int:
        """Tokens of the windows that the last of so many new ones sees at most."""
        return self.sink + self.recent - 1 + tokens

    def page_width(self, table: Tensor) -> int:
        """Pages of the history that decode_tables() has of each request."""
        return max(table.shape[1] - self.sink // self.block_size, 1)

    def _give(self, ids: Tensor, fresh: Tensor) -> Tensor:
        """Entries to the blocks that are fresh, of which some may stand there several times: those that were longest not read.
        Returns whether there are too few, bool ()."""
        nowhere, places = len(self._entry_of) - 1, torch.arange(len(ids), device=ids.device)
        self._first[ids] = places
        chosen = fresh & (self._first[ids] == places)
        rank = chosen.cumsum(0) - 1
        entry = torch.argsort(self._read_in[:-1], stable=True)[rank.clamp(0, self.entries - 1)]
        is_full = (chosen & ((rank >= self.entries) | (self._read_in[entry] == self._step))).any()
        former = self._block_of[entry]
        self._entry_of.index_fill_(0, torch.where(chosen & (former >= 0), former, nowhere), -1)
        self._entry_of[torch.where(chosen, ids, nowhere)] = entry
        self._entry_of[nowhere:].fill_(-1)
        at = torch.where(chosen, entry, self.entries)
        self._block_of[at] = ids
        self._read_in.index_fill_(0, at, self._step)
        return is_full
