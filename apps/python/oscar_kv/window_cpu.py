# SPDX-License-Identifier: MIT
"""torch.ops.oscar.window_step on the CPU: what the kernels compute (kernels/window_step.hpp), a request and a block at a time.

Whoever imports this has liboscar_torch.so loaded. It is what the kernels and their callers are tested against. Non-goals: speed.
"""
import torch
from torch import Tensor, library


@library.impl("oscar::window_step", "cpu")
def window_step(table: Tensor, starts: Tensor, lengths: Tensor, written: Tensor, entry_of: Tensor, block_of: Tensor, read_in: Tensor,
                room: Tensor, slots: Tensor, kept: Tensor, pages: Tensor, history: Tensor, copies: Tensor, copy_lengths: Tensor,
                block_size: int, sink: int, recent: int, step: int) -> None:
    """Shapes and types: apps/torch/window_ops.cpp."""
    assert {x.dtype for x in (table, starts, lengths, slots, kept, pages, history, copies, copy_lengths)} == {torch.int32}
    assert {x.dtype for x in (written, entry_of, block_of, read_in, room)} == {torch.int64}
    assert len(starts) == len(table) + 1 and len(lengths) == len(table) and len(slots) == len(kept) == len(written)
    each = len(pages) // len(table)
    assert len(pages) == len(history) == len(copies) == len(copy_lengths) == each * len(table)
    seen, asked = [], []
    for blocks, first, end, length in zip(table, starts.tolist(), starts.tolist()[1:], lengths.tolist()):
        before = max(length - (end - first), 0)
        after = length if end > first else before
        sinks = min(before, sink)
        begin = max(before + 1 - recent, sinks)
        seen.append((sinks, begin, after, after > before))
        numbers = [*range(-(-min(after, sink) // block_size)), *range(begin // block_size, -(-after // block_size))]
        for block in blocks[numbers].tolist() if after > before else []:
            if entry_of[block] >= 0:
                read_in[entry_of[block]] = step
            elif block not in asked:
                asked.append(block)
    for block in asked:
        entry = int(read_in[:-1].argmin())
        if read_in[entry] == step:  # there are too few
            continue
        if block_of[entry] >= 0:
            entry_of[block_of[entry]] = -1
        entry_of[block], block_of[entry], read_in[entry] = entry, block, step

    def copies_of(blocks: Tensor, places: Tensor) -> Tensor:
        entries = entry_of[blocks.long()]
        return torch.where(entries >= 0, entries * block_size + places, -1)

    slots.copy_(written)
    kept.copy_(torch.where(written >= 0, copies_of(written.clamp(min=0) // block_size, written % block_size), -1))
    place = torch.arange(copies.shape[1])
    for row in range(len(pages)):
        blocks, (sinks, begin, after, takes_part) = table[row // each], seen[row // each]
        token = torch.where(place < sinks, place, place + begin - sinks)
        pages[row] = blocks[-pages.shape[1]:]
        copies[row] = copies_of(blocks[(token // block_size).clamp(max=len(blocks) - 1)], token % block_size).clamp(min=0)
        history[row] = begin - sinks if takes_part else 0
        copy_lengths[row] = max(sinks + after - begin - (each - 1 - row % each), 0) if takes_part else 0
