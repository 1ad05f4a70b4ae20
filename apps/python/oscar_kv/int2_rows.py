# SPDX-License-Identifier: MIT
"""The keys, or the values, of one layer of an Int2Cache: windows in bfloat16, the history packed, rows
as stored (int2_side.py).

The history holds the tokens [sink, length - recent] that the next token sees packed. The window is a ring with room for
what the last token sees as it is; until evict(), the tokens of a call stand beside it.
"""
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .int2_side import Int2Side
from .rotation_set import Side

ROOM = 256  # tokens; the history grows by steps of so many, and by a quarter
RING_PAGE = 64  # tokens; rings have multiples of it


class _Grown:
    """(batch, tokens, heads, ...), with room for more tokens. first: (batch, heads, 0, ...)."""

    def __init__(self, first: Tensor):
        self.data, self.length = first.transpose(1, 2), 0

    def reserve(self, count: int) -> None:
        """Makes room for so many more."""
        end = self.length + count
        if end > self.data.shape[1]:
            room = -(-max(end, self.data.shape[1] * 5 // 4) // ROOM) * ROOM
            larger = self.data.new_empty(self.data.shape[0], room, *self.data.shape[2:])
            larger[:, :self.length] = self.data[:, :self.length]
            self.data = larger

    def append(self, rows: Tensor) -> None:
        self.reserve(rows.shape[2])
        end = self.length + rows.shape[2]
        self.data[:, self.length:end] = rows.transpose(1, 2)
        self.length = end

    def rows(self) -> Tensor:
        return self.data[:, :self.length].transpose(1, 2)


class SideRows(Int2Side):
    """Raises ValueError if rows do not fit the set's matrices."""

    def __init__(self, manifest: dict[str, Any], name: str, layer_id: int, side: Side, sink: int, recent: int):
        super().__init__(manifest, name, layer_id, side)
        self.sink, self.recent = sink, recent
        self.clear()

    @staticmethod
    def join(key: "SideRows", value: "SideRows") -> None:
        """Tells the sides of each other."""

    def clear(self) -> None:
        self.length = 0
        self.ring: Tensor | None = None  # (batch, slots, heads, d)
        self.new: Tensor | None = None  # (batch, heads, tokens, d), between append and evict
        self.codes: _Grown | None = None
        self.params: _Grown | None = None

    def begin(self, states: Tensor) -> None:
        """Checks the shape of the first rows, and moves the matrices to where they are."""
        heads, dim = states.shape[1], states.shape[3]
        self.place(heads, dim, states.device, states.dtype)
        slots = -(-(self.sink + self.recent) // RING_PAGE) * RING_PAGE
        self.ring = states.new_zeros(states.shape[0], slots, heads, dim, dtype=torch.bfloat16)
        self._begin_history()

    def _begin_history(self) -> None:
        self.codes, self.params = (_Grown(x) for x in self.codec.encode(self.ring[:, :0].transpose(1, 2)))

    def append(self, states: Tensor) -> None:
        """(batch, heads, tokens, d), native."""
        self.new = self.stored(states)
        self.length += states.shape[2]

    def _slots(self, tokens: range) -> list[int]:
        return [t if t < self.sink else self.sink + (t - self.sink) % self.recent for t in tokens]

    def _held(self, begin: int, end: int) -> Tensor:
        """Tokens that the ring or `new` has, as stored, (batch, heads, tokens, d)."""
        first = self.length - (0 if self.new is None else self.new.shape[2])
        slots = self._slots(range(begin, min(end, first)))
        parts = []
        if len(slots) == 1:  # a step of decoding: a view
            parts.append(self.ring[:, slots[0]:slots[0] + 1].transpose(1, 2))
        elif slots:
            parts.append(self.ring[:, torch.tensor(slots, device=self.ring.device)].transpose(1, 2))
        if end > first:
            parts.append(self.new[:, :, max(begin - first, 0):end - first])
        return torch.cat(parts, 2) if len(parts) > 1 else parts[0] if parts else self.ring[:, :0].transpose(1, 2)

    def window(self, packed: int) -> Tensor:
        """All tokens but those of a history of so many, as stored, (batch, heads, tokens, d)."""
        return torch.cat([self._held(0, min(self.sink, self.length)), self._held(self.sink + packed, self.length)], 2)

    def history(self) -> Tensor:
        """Decoded, as stored before, float32."""
        rows = self.codec.decode(self.codes.rows(), self.params.rows(), self.ring.shape[3])
        return rows.bfloat16().float()

    def read(self) -> Tensor:
        """All rows in the order of their tokens, in native coordinates, float32."""
        window, sink = self.window(self.codes.length).float(), min(self.sink, self.length)
        return self.native(torch.cat([window[:, :, :sink], self.history(), window[:, :, sink:]], 2))

    def evict(self) -> None:
        """Packs what the next token does not see in a window, and lets the ring have the call's last tokens."""
        begin, length, first = self.sink + self.codes.length, self.length, self.length - self.new.shape[2]
        count = min(length, length - self.recent + 1) - begin
        if count > 0:
            self._pack(self._held(begin, begin + count))
        for kept in (range(first, min(self.sink, length)), range(max(first, self.sink, length - self.recent), length)):
            if not kept:
                continue
            slots, rows = self._slots(kept), self.new[:, :, kept.start - first:kept.stop - first]
            if len(kept) == 1:
                self.ring[:, slots[0]] = rows[:, :, 0]
            else:
                self.ring[:, torch.tensor(slots, device=rows.device)] = rows.transpose(1, 2)
        self.new = None

    def _pack(self, rows: Tensor) -> None:
        codes, params = self.codec.encode(rows)
        self.codes.append(codes)
        self.params.append(params)

    def change(self, change: Callable[[Tensor], Tensor]) -> None:
        """Selects or repeats sequences."""
        self.ring = change(self.ring)
        for grown in (self.codes, self.params):
            grown.data = change(grown.data)

    def nbytes(self) -> int:
        return 0 if self.ring is None else sum(x.nbytes for x in (self.ring, self.codes.data, self.params.data))
