# SPDX-License-Identifier: MIT
"""A coded cache on the kernels of liboscar_torch.so: coded_pack writes the history, coded_decode reads window and history.

CodedKernelRows are the rows of an Int2Cache whose keys and values share pages; how a call reads them is int2_kernel.py's. Where
a mask is given, coded_pages.py decodes the same pages in torch.
"""
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .coded_pages import CodedPages
from .coded_rows import CodedCodec
from .int2_kernel import KernelRows, slots_of, stream_of
from .int2_rows import RING_PAGE, ROOM, SideRows
from .kernel_workspace import workspace_of


class KernelPages(CodedPages):
    """CodedPages with what the operators are told about them. Raises ValueError that says why the kernels cannot read these
    formats."""

    def __init__(self, key: CodedCodec, value: CodedCodec, device: torch.device):
        super().__init__(key, value)
        if device.type == "cpu":
            from .coded_cpu import tables_of

            self.layout, self.tables = tables_of(self)
            return
        sides = [codec.tables() for codec in self.codecs]
        try:
            layout, tables = torch.ops.oscar.coded_layout(*(x for both in zip(*sides) for x in both))
        except RuntimeError as error:
            raise ValueError(str(error).splitlines()[0]) from error
        self.layout, self.tables = layout.tolist(), tables.to(device)

    def pack(self, slots: Tensor, pages: Tensor, **rows: Any) -> None:
        """slots: int32 (tokens); pages: uint8 (pages, page size, token bytes); k, v: bfloat16 (tokens, KV heads, d). Keys that lack
        their norm and RoPE come with k_norm_weight, norm_epsilon, positions, cos_sin and k_finished (apps/torch/coded_ops.cpp)."""
        torch.ops.oscar.coded_pack(slots, pages, self.layout, self.tables, **rows)

    def unpack(self, slots: Tensor, pages: Tensor, **rows: Tensor) -> None:
        """The inverse: k, v are written."""
        torch.ops.oscar.coded_unpack(slots, pages, self.layout, self.tables, **rows)

    def decode(self, q: Tensor, pages: Tensor, windows: list[Tensor], tables: tuple[Tensor, ...], scaling: float) -> Tensor:
        """As KernelRows.decode()."""
        rows = q, pages, self.layout, self.tables, *tables[:2], *windows, *tables[2:]
        out, _ = torch.ops.oscar.coded_decode(*rows, softmax_scale=scaling, workspace=workspace_of("coded", rows, scaling, stream_of(q)))
        return out


def why_not(key: CodedCodec, value: CodedCodec, device: torch.device) -> str | None:
    """Why the kernels cannot read these formats; None: they can. The operators are loaded."""
    try:
        KernelPages(key, value, device)
    except ValueError as error:
        return str(error)
    return None


class _History:
    """Pages of ROOM tokens, those of a sequence one after another, of a layer's keys and values."""

    def __init__(self, pages: KernelPages, batch: int, device: torch.device):
        self.pages = pages
        self.data = torch.zeros(batch, 0, ROOM, pages.token_bytes, dtype=torch.uint8, device=device)

    def reserve(self, end: int) -> None:
        """Makes room for so many tokens of each sequence."""
        room = self.data.shape[1]
        if end > room * ROOM:
            more = -(-max(end, room * ROOM * 5 // 4) // ROOM) - room
            self.data = torch.cat([self.data, self.data.new_zeros(self.data.shape[0], more, *self.data.shape[2:])], 1)

    def paged(self) -> Tensor:
        return self.data.flatten(0, 1)


class _Length:
    """How many tokens of the history a side has packed."""

    def __init__(self) -> None:
        self.length = 0


class CodedKernelRows(KernelRows):
    """The keys, or the values, of a layer. The history belongs to the keys."""

    @staticmethod
    def join(key: Any, value: Any) -> None:
        key.other, value.other = value, key

    def clear(self) -> None:
        super().clear()
        self.history_of_layer: _History | None = None

    def begin(self, states: Tensor) -> None:
        SideRows.begin(self, states)
        self.pages = (self.ring.flatten(0, 1).unflatten(0, (-1, RING_PAGE)),)

    def _begin_history(self) -> None:
        self.codes = _Length()
        if self.other.ring is None:  # the first side
            return
        key, value = (self, self.other) if self.name == "key" else (self.other, self)
        history = _History(KernelPages(key.codec, value.codec, self.ring.device), self.ring.shape[0], self.ring.device)
        history.reserve(1)
        key.history_of_layer = value.history_of_layer = history

    def held(self) -> tuple[Tensor, ...]:
        return self.ring, self.history_of_layer.data

    def history_room(self) -> int:
        return self.history_of_layer.data.shape[1]

    def reserve(self, count: int) -> None:
        self.history_of_layer.reserve(self.codes.length + count)

    def _pack(self, rows: Tensor) -> None:
        history, (batch, _, count, _) = self.history_of_layer, rows.shape
        self.reserve(count)
        slots = slots_of(batch, self.history_room() * ROOM, self.codes.length, count, rows.device)
        history.pages.pack(slots, history.paged(), **{self.name[0]: rows.transpose(1, 2).flatten(0, 1)})
        self.codes.length += count

    def pack_step(self, values: KernelRows, slots: Tensor, rows: list[Tensor]) -> None:
        history = self.history_of_layer
        history.pages.pack(slots, history.paged(), k=rows[0], v=rows[1])

    def advance(self) -> None:
        self.length += 1
        self.codes.length = max(self.length - self.recent + 1 - self.sink, 0)

    def decode(self, values: KernelRows, q: Tensor, windows: list[Tensor], tables: tuple[Tensor, ...], scaling: float) -> Tensor:
        history = self.history_of_layer
        return history.pages.decode(q, history.paged(), windows, tables, scaling)

    def history(self) -> Tensor:
        history, batch = self.history_of_layer, self.ring.shape[0]
        slots = slots_of(batch, self.history_room() * ROOM, 0, self.codes.length, self.ring.device)
        rows = history.pages.read(history.paged(), slots, 0 if self.name == "key" else 1)
        return rows.unflatten(1, (batch, -1)).transpose(0, 1).bfloat16().float()

    def change(self, change: Callable[[Tensor], Tensor]) -> None:
        self.ring = change(self.ring)
        self.pages = (self.ring.flatten(0, 1).unflatten(0, (-1, RING_PAGE)),)
        if self.name == "key":
            self.history_of_layer.data = change(self.history_of_layer.data)

    def nbytes(self) -> int:
        if self.ring is None:
            return 0
        return self.ring.nbytes + (self.history_of_layer.data.nbytes if self.name == "key" else 0)
