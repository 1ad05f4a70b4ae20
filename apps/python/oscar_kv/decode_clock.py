# SPDX-License-Identifier: MIT
"""Where the next token of an Int2Cache goes, as tensors on the cache's device, which a CUDA graph of a step advances by itself.

A step of one token is the same for all layers: the first that takes part in it advances the clock. Needs torch only. Non-goals: what a
layer stores and packs (int2_kernel.py).
"""
import torch
from torch import Tensor


class DecodeClock:
    """sink, recent: tokens of the windows. The token at position p takes its place in the ring, and the oldest recent one, p + 1 - recent,
    is packed for the tokens after it; the token itself still sees that one in the window.

    position: int64 (1), of the next token. ring, leaving: int64 (1), the ring's slots of the step's token and of the one that is packed.
    slots: int32 (batch), where in the history that one goes, negative if it is none. lengths: int32 (batch), tokens of the history and
    of the window that the step's token sees."""

    def __init__(self, sink: int, recent: int):
        self.sink, self.recent = sink, recent
        self._next = -1  # what `position` holds
        self._shape = (0, 0)

    def begin(self, length: int, batch: int, room: int, device: torch.device) -> None:
        """Lets the tensors be those of the token after `length` others, once for all layers. room: tokens that the history of each
        sequence has place for. Raises RuntimeError if a graph is captured while the cache is not where the clock is."""
        if self._next == length + 1 and self._shape == (batch, room):
            return  # a layer before did it
        if self._next != length or self._shape != (batch, room):
            if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                raise RuntimeError("a CUDA graph of an Int2Cache's step is captured after a step that was not: see DecodeGraph")
            self._place(length, batch, room, device)
        self._tick()
        self._next = length + 1

    def follow(self) -> None:
        """A graph has advanced the tensors by a token."""
        self._next += 1

    def _place(self, length: int, batch: int, room: int, device: torch.device) -> None:
        self._shape = (batch, room)
        self.position = torch.full((1,), length, device=device)
        self.ring, self.leaving = torch.zeros_like(self.position), torch.zeros_like(self.position)
        self._first = torch.arange(0, batch * room, room, dtype=torch.int32, device=device)
        self.slots = torch.empty_like(self._first)
        self.lengths = torch.empty_like(self._first), torch.empty_like(self._first)

    def _tick(self) -> None:
        p, kept = self.position, self.sink + self.recent
        packed = p + 1 - kept  # which token of the history the leaving one becomes
        self.ring.copy_(torch.where(p < self.sink, p, self.sink + (p - self.sink) % self.recent))
        self.leaving.copy_(torch.where(packed < 0, 0, self.sink + packed % self.recent))
        self.slots.copy_(torch.where(packed < 0, -1, self._first + packed))
        self.lengths[0].copy_(packed.clamp(min=0).expand_as(self.slots))
        self.lengths[1].copy_((p + 1).clamp(max=kept).expand_as(self.slots))
        p += 1
