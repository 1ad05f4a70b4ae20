# SPDX-License-Identifier: MIT
"""The keys and values of one layer of a PackedCache, and attention to them in transformed coordinates, each token with its own windows.

The history holds the tokens [sink, length - recent] that the next token sees packed, in a run of pages for each sequence
(packed_layer.py). The window is a ring with room for what the last token sees as it is; until evict(), the tokens of a call stand
beside it. Token i sees token j as the window has it if j < sink or j > i - recent, else as the history has it.

A call of one token is one launch of a decode kernel with the ring as it is; what changes from token to token is in tensors
(DecodeClock), so that a CUDA graph of such a call can be replayed. Calls of many tokens, and padded ones, are read in torch, over
unpacked rows: keys that are both in one call and in the history stand there twice, and a mask says which of the two a query sees.
What is kept is made outside of inference mode: a later call, which writes there, may not be in it. Needs torch only.
"""
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from .packed_layer import PackedSlots
from .score_rule import ScoreRule, attend_by_scores
from .sets import Layer, SetPart

ROOM = 256  # tokens of a page; the history grows by whole pages, and by a quarter
RING_PAGE = 64  # tokens; rings have multiples of it
_QUERIES = 512  # at once in torch: bounds the mask, and the scores where they are written

Attention = Callable[[Tensor, Tensor | None, float, ScoreRule], Tensor]  # query (batch, query heads, tokens, d), mask, scaling -> of query's shape


class DecodeClock:
    """Where the next token of a PackedCache goes, as tensors on the cache's device, which a CUDA graph of a step advances by itself. A step
    of one token is the same for all layers: the first that takes part in it advances the clock. sink, recent: tokens of the windows. The
    token at position p takes its place in the ring, and the oldest recent one, p + 1 - recent, is packed for the tokens after it; the
    token itself still sees that one in the window.

    position: int64 (1), of the next token. ring, leaving: int64 (1), the ring's slots of the step's token and of the one that is packed.
    slots: int32 (batch), where in the history that one goes, negative if it is none; leaves: its position. sinks: int32 (batch), the position
    of the history's first token. lengths: int32 (batch), tokens of the history and
    of the window that the step's token sees. pages: int32 (batch, pages of each), those of the history and of the ring."""

    def __init__(self, sink: int, recent: int):
        self.sink, self.recent = sink, recent
        self.next = -1  # what `position` holds
        self.placed = 0  # how often the tensors were made anew; graphs of those before are stale
        self._shape = (0, 0)

    def begin(self, length: int, batch: int, room: int, device: torch.device) -> None:
        """Lets the tensors be those of the token after `length` others, once for all layers. room: tokens that the history of each
        sequence has place for. Raises RuntimeError if a graph is captured while the cache is not where the clock is."""
        if self.next == length + 1 and self._shape == (batch, room):
            return  # a layer before did it
        if self.next != length or self._shape != (batch, room):
            if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                raise RuntimeError("a CUDA graph of a PackedCache's step is captured after a step that was not: see DecodeGraph")
            self._place(length, batch, room, device)
        self._tick()
        self.next = length + 1

    def follow(self) -> None:
        """A graph has advanced the tensors by a token."""
        self.next += 1

    @torch.inference_mode(False)
    def _place(self, length: int, batch: int, room: int, device: torch.device) -> None:
        self._shape, self.placed = (batch, room), self.placed + 1
        self.position = torch.full((1,), length, device=device)
        self.ring, self.leaving = torch.zeros_like(self.position), torch.zeros_like(self.position)
        self._first = torch.arange(0, batch * room, room, dtype=torch.int32, device=device)
        self.slots, self.leaves, self.sinks = torch.empty_like(self._first), torch.empty_like(self._first), torch.full_like(self._first, self.sink)
        self.lengths = torch.empty_like(self._first), torch.empty_like(self._first)
        self.pages = [torch.arange(batch * each, dtype=torch.int32, device=device).reshape(batch, each)
                      for each in (room // ROOM, ring_pages(self.sink, self.recent))]

    def _tick(self) -> None:
        p, kept = self.position, self.sink + self.recent
        packed = p + 1 - kept  # which token of the history the leaving one becomes
        self.ring.copy_(torch.where(p < self.sink, p, self.sink + (p - self.sink) % self.recent))
        self.leaving.copy_(torch.where(packed < 0, 0, self.sink + packed % self.recent))
        self.slots.copy_(torch.where(packed < 0, -1, self._first + packed))
        self.leaves.copy_((self.sink + packed).expand_as(self.slots))
        self.lengths[0].copy_(packed.clamp(min=0).expand_as(self.slots))
        self.lengths[1].copy_((p + 1).clamp(max=kept).expand_as(self.slots))
        p += 1


def ring_pages(sink: int, recent: int) -> int:
    """Of each sequence."""
    return -(-(sink + recent) // RING_PAGE)


def _slots(batch: int, room: int, first: int, count: int, device: torch.device) -> Tensor:
    """int32 (batch * count): where the tokens from `first` on go."""
    tokens = torch.arange(first, first + count, dtype=torch.int32, device=device)
    return (torch.arange(0, batch * room, room, dtype=torch.int32, device=device)[:, None] + tokens).flatten()


def _by_tokens(x: Tensor) -> Tensor:
    """(batch, heads, tokens, d) as (batch * tokens, heads, d)."""
    return x.transpose(1, 2).flatten(0, 1)


class LayerRows:
    """Rows are (2, batch, tokens, KV heads, d), keys and values, as stored. Raises ValueError if they do not fit the set's matrices."""

    def __init__(self, part: SetPart, layer: Layer):
        self._layer, (self.sink, self.recent) = layer, part.windows
        self.clear()

    def clear(self) -> None:
        self.length = self.packed = 0  # tokens, and those of the history
        self._near = 0  # those up to the last call that left the text near (PackedSlots.far)
        self.ring: Tensor | None = None  # (2, batch, slots, heads, d)
        self.new: Tensor | None = None  # between append and evict
        self.history: Tensor | None = None  # uint8 (batch, pages, tokens, bytes)

    @torch.inference_mode(False)
    def begin(self, keys: Tensor, values: Tensor, at: torch.device) -> None:
        """Checks the shapes of the first rows (batch, heads, tokens, d), and moves the matrices to where they are. at: where packed rows
        are kept, the device of the rows or the CPU."""
        batch, heads, _, dim = keys.shape
        if values.shape[3] != dim:
            raise ValueError(f"layer {self._layer.layer_id}: keys of {dim} and values of {values.shape[3]} channels are not packed together")
        self._packed = PackedSlots(self._layer, heads, dim, keys.device, keys.dtype, at)
        self.sides = self._packed.sides
        self.ring = keys.new_zeros(2, batch, ring_pages(self.sink, self.recent) * RING_PAGE, heads, dim, dtype=torch.bfloat16)
        self.history = torch.zeros(batch, 0, ROOM, self._packed.bytes, dtype=torch.uint8, device=at)
        self.reserve(1)

    def reserve(self, count: int) -> None:
        """Makes room for so many more packed tokens."""
        have, end = self.history.shape[1], self.packed + count
        if end > have * ROOM:
            more = -(-max(end, have * ROOM * 5 // 4) // ROOM) - have
            with torch.inference_mode(False):
                self.history = torch.cat([self.history, self.history.new_zeros(len(self.history), more, *self.history.shape[2:])], 1)

    def _cache(self) -> Tensor:
        """The history as PackedSlots has pages."""
        return self.history.flatten(0, 1)[:, None]

    def _positions(self, first: int, count: int) -> Tensor:
        """In the text, of the tokens of each sequence's history from `first` on."""
        first += self.sink
        return torch.arange(first, first + count, dtype=torch.int32, device=self.history.device).repeat(len(self.history))

    def append(self, keys: Tensor, values: Tensor) -> None:
        """(batch, heads, tokens, d), native."""
        self.new = self._packed.stored(_by_tokens(keys), _by_tokens(values)).unflatten(1, (len(keys), -1))
        self.length += keys.shape[2]
        if not self._packed.far(self.length):
            self._near = self.length

    def _ring_slots(self, tokens: range) -> Tensor:
        return torch.tensor([t if t < self.sink else self.sink + (t - self.sink) % self.recent for t in tokens],
                            dtype=torch.long, device=self.ring.device)

    def _held(self, begin: int, end: int) -> Tensor:
        """Tokens that the ring or `new` has."""
        first = self.length - (0 if self.new is None else self.new.shape[2])
        parts = [self.ring[:, :, self._ring_slots(range(begin, min(end, first)))]]
        if end > first:
            parts.append(self.new[:, :, max(begin - first, 0):end - first])
        return torch.cat(parts, 2) if len(parts) > 1 else parts[0]

    def window(self, packed: int) -> Tensor:
        """All tokens but those of a history of so many."""
        return torch.cat([self._held(0, min(self.sink, self.length)), self._held(self.sink + packed, self.length)], 2)

    def unpacked(self) -> Tensor:
        """The history."""
        batch, at, is_far = len(self.history), self.history.device, self._packed.far(self.length)
        near = min(max(self._near - self.sink, 0), self.packed) if is_far else self.packed  # tokens that were written as those of a near text
        parts = []
        for first, count, was_far in [part for part in ((0, near, False), (near, self.packed - near, True)) if part[1]] or [(0, 0, False)]:
            rows = torch.empty(2, batch * count, *self.ring.shape[3:], dtype=torch.bfloat16, device=at)
            slots = _slots(batch, self.history.shape[1] * ROOM, first, count, at)
            self._packed.unpack(self._cache(), slots, *rows, self._positions(first, count), is_far, was_far)
            parts.append(rows.unflatten(1, (batch, count)))
        return (parts[0] if len(parts) == 1 else torch.cat(parts, 2)).to(self.ring.device)

    def read(self) -> list[Tensor]:
        """All keys and values in the order of their tokens, in native coordinates, float32 (batch, heads, tokens, d)."""
        window, sink = self.window(self.packed), min(self.sink, self.length)
        rows = torch.cat([window[:, :, :sink], self.unpacked(), window[:, :, sink:]], 2)
        return [x.unflatten(0, rows.shape[1:3]).transpose(1, 2) for x in self._packed.native(rows.flatten(1, 2))]

    def evict(self) -> None:
        """Packs what the next token does not see in a window, and lets the ring have the call's last tokens."""
        begin, length, first = self.sink + self.packed, self.length, self.length - self.new.shape[2]
        count = min(length, length - self.recent + 1) - begin
        if count > 0:
            self.reserve(count)
            at = self.history.device
            near = min(max(self._near - begin, 0), count)  # tokens whose call was one of a near text
            for part, is_far in ((near, False), (count - near, True)):
                if part > 0:
                    slots = _slots(len(self.history), self.history.shape[1] * ROOM, self.packed, part, at)
                    rows = self._held(self.sink + self.packed, self.sink + self.packed + part).flatten(1, 2).to(at)
                    self._packed.write(self._cache(), slots, rows, self._positions(self.packed, part), is_far)
                    self.packed += part
        for kept in (range(first, min(self.sink, length)), range(max(first, self.sink, length - self.recent), length)):
            if kept:
                self.ring[:, :, self._ring_slots(kept)] = self.new[:, :, kept.start - first:kept.stop - first]
        self.new = None

    def advance(self) -> None:
        """A token more was stored on the device."""
        self.length += 1
        self.packed = max(self.length - self.recent + 1 - self.sink, 0)

    @torch.inference_mode(False)
    def change(self, change: Callable[[Tensor], Tensor]) -> None:
        """Selects or repeats sequences."""
        self.ring = torch.stack([change(rows) for rows in self.ring])
        self.history = change(self.history)

    def held(self) -> tuple[Tensor, ...]:
        """What the kernels read and write."""
        return self.ring, self.history

    def nbytes(self) -> int:
        return 0 if self.ring is None else self.ring.nbytes + self.history.nbytes

    def step_of(self, keys: Tensor, values: Tensor, clock: DecodeClock) -> Attention:
        """Stores one token of each sequence, native (batch, KV heads, 1, d), and packs the one that leaves the window, with nothing
        read from the device."""
        self.reserve(1)
        clock.begin(self.length, len(keys), self.history.shape[1] * ROOM, keys.device)
        rows = self._packed.stored(keys[:, :, 0], values[:, :, 0])
        self.ring.index_copy_(2, clock.ring, rows[:, :, None])
        self._packed.write(self._cache(), clock.slots, self.ring.index_select(2, clock.leaving)[:, :, 0], clock.leaves)
        self.advance()
        return partial(self._attend_step, clock)

    def _attend_step(self, clock: DecodeClock, query: Tensor, mask: Tensor | None, scaling: float, rule: ScoreRule) -> Tensor:
        if mask is not None:
            packed = max(self.length - self.recent - self.sink, 0)  # by the calls before
            return self._attend(self.window(packed), packed, self.length, query, mask, scaling, rule)
        rule.check(self.sides[0])
        q, rings = self.sides[0].queries(query[:, :, 0])[:, None], [ring.flatten(0, 1).unflatten(0, (-1, RING_PAGE)) for ring in self.ring]
        tables = clock.pages[0], clock.lengths[0], clock.pages[1], clock.lengths[1]
        stream = torch.cuda.current_stream(q.device).cuda_stream if q.device.type == "cuda" else 0
        found = self._packed.decode(self._cache(), q.contiguous(), rings, tables, scaling, stream, clock.sinks, soft_cap=rule.soft_cap)
        out, lse = (x[:, 0] for x in found)
        native = self.sides[1].native(out.bfloat16())
        rule.apply_sinks(native, lse)
        return native.to(query.dtype)[:, :, None]

    def attention(self) -> Attention:
        """For the tokens of one call, between append and evict."""
        return partial(self._attend, self.window(self.packed), self.packed, self.length)

    def _attend(self, window: Tensor, packed: int, length: int, query: Tensor, mask: Tensor | None, scaling: float, rule: ScoreRule) -> Tensor:
        """In torch. window: before it was shortened; packed: tokens of the history that were no part of it; length: of the cache then,
        whose last tokens are the query's. mask: bool (batch, 1, tokens, all tokens), what each token sees but for itself, also of tokens after
        it; None: all before it."""
        rule.check(self.sides[0])
        batch, heads, tokens, _ = query.shape
        dtype = torch.bfloat16 if query.dtype == torch.float16 else query.dtype  # stored keys and their queries leave float16's range
        stored = self.sides[0].queries(_by_tokens(query)).unflatten(0, (batch, tokens)).transpose(1, 2).to(dtype)
        k, v = torch.cat([window, self.unpacked()], 2).transpose(2, 3).to(dtype)
        held, history = (torch.arange(count, device=query.device) for count in (window.shape[2], self.packed))
        token = torch.cat([torch.where(held < self.sink, held, held + packed), history + min(self.sink, length)])  # of each row
        exact = torch.arange(len(token), device=query.device) < len(held)
        parts, sums = [], []
        for begin in range(0, tokens, _QUERIES):
            i = torch.arange(length - tokens, length, device=query.device)[begin:begin + _QUERIES, None]
            in_window = (token < self.sink) | (token > i - self.recent)
            visible = in_window == exact
            if mask is None:
                visible = visible & (token <= i)
            else:  # padding sees itself, or there would be nothing to weigh
                visible = visible & (mask[:, :, begin:begin + _QUERIES][..., token] | (token == i))
            rows = stored[:, :, begin:begin + _QUERIES], k, v
            if rule.is_plain:
                parts.append(scaled_dot_product_attention(*rows, attn_mask=visible, scale=scaling, enable_gqa=heads != k.shape[1]))
            else:
                more, lse = attend_by_scores(*rows, scaling, visible, rule.soft_cap)
                parts.append(more)
                sums.append(lse)
        out = self.sides[1].native(_by_tokens(torch.cat(parts, 2)).bfloat16())
        if sums:
            rule.apply_sinks(out, _by_tokens(torch.cat(sums, 2)))
        return out.unflatten(0, (batch, tokens)).transpose(1, 2).to(query.dtype)
