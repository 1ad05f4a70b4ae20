# SPDX-License-Identifier: MIT
"""An Int2Cache on the kernels of liboscar_torch.so: int2_pack writes the history, int2_decode reads ring and history. Of
codecs with 4 levels, lloyd-max alone is packed in torch. Rows of a coded cache are those of coded_kernel.py.

A sequence's history is a run of pages of its own. A call of one token is one launch of int2_decode with the ring as it is; what
changes from token to token is in tensors (decode_clock.py), so that a CUDA graph of such a call can be replayed. In the first call
of many, each token is a sequence to the kernel, with its own windows in one pool and lengths of the same history. Tensors of
indices are the same for all layers of a step and are kept for them. Non-goals: calls with a mask, which go to int2_attend.py,
over the same rows: those with padding, and those of several tokens after others (a second turn, a prompt in parts), for which
transformers makes one.
"""
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Any

import torch
from torch import Tensor

from .decode_clock import DecodeClock
from .int2_attend import Attention, Seen, attend
from .int2_rows import RING_PAGE, ROOM, SideRows
from .kernel_workspace import workspace_of
from .places import load_library
from .row_codec import RowCodec

_SEQUENCES = 1024  # of one launch for many tokens: bounds tables and workspace


def why_not(manifest: dict[str, Any], keys: Tensor, values: Tensor, num_q_heads: int, on_cpu: bool) -> str | None:
    """Why the kernels cannot hold these rows (batch, heads, tokens, d) of a set; None: they can. on_cpu: int2_cpu.py and
    coded_cpu.py will do."""
    device, dims = keys.device.type, (keys.shape[3], values.shape[3])
    if device != "cuda" and not (on_cpu and device == "cpu"):
        return f"rows are on {device}, the kernels on CUDA"
    if manifest["windows"]["recent"] < 1:
        return "no recent tokens are kept as they are"
    return why_not_rows(manifest["codec"], dims, num_q_heads, keys.shape[1]) or why_no_operators(device)


def why_not_rows(codec: dict[str, Any], dims: tuple[int, int], num_q_heads: int, num_kv_heads: int) -> str | None:
    """The same for a set's codec and rows of keys and values of so many channels."""
    dim, is_coded = dims[0], codec["name"] == "coded"
    wrong = [text for is_wrong, text in (
        (not is_coded and list(codec.get("levels", ())) != [4, 4], f"levels are {codec.get('levels')}, the kernels' 4 and 4"),
        (dim not in (64, 128, 256) or dims[1] != dim, f"rows of {dim} and {dims[1]} channels"),
        (not is_coded and (codec.get("group_size") or dim) not in (dim, 64, 32), f"groups of {codec.get('group_size')} channels"),
        (num_q_heads > 16 * num_kv_heads, f"{num_q_heads} query heads for {num_kv_heads} KV heads")) if is_wrong]
    return wrong[0] if wrong else None


def why_no_operators(device: str) -> str | None:
    """Loads the operators for "cuda", or their references for "cpu"."""
    try:
        load_library()
    except (FileNotFoundError, OSError) as error:
        return str(error)
    if device == "cpu":
        from . import coded_cpu, int2_cpu, rotate_cpu, window_cpu  # noqa: F401  (registers them)
    elif not torch._C._dispatch_has_kernel_for_dispatch_key("oscar::int2_decode", "CUDA"):
        return "liboscar_torch.so was built without CUDA"
    return None


def _kept(count: int) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Keeps the last tensors of a function whose last argument is the device. On CUDA they are the current stream's own, as
    others could read them too early or too late; while a graph is captured none is kept, as its memory is the graph's."""
    def keeper(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        kept = lru_cache(maxsize=count)(lambda stream, *arguments: make(*arguments))

        @wraps(make)
        def get(*arguments: Any) -> Tensor:
            if arguments[-1].type != "cuda":
                return kept(None, *arguments)
            if torch.cuda.is_current_stream_capturing():
                return make(*arguments)
            return kept(torch.cuda.current_stream(arguments[-1]).cuda_stream, *arguments)
        return get
    return keeper


@_kept(8)
def _pages(batch: int, each: int, device: torch.device) -> Tensor:
    """int32 (batch, each): pages that belong to the sequences in order."""
    return torch.arange(batch * each, dtype=torch.int32, device=device).reshape(batch, each)


@_kept(4)
def slots_of(batch: int, room: int, first: int, count: int, device: torch.device) -> Tensor:
    """int32 (batch * count): where the tokens from `first` on go."""
    tokens = torch.arange(first, first + count, dtype=torch.int32, device=device)
    return (torch.arange(0, batch * room, room, dtype=torch.int32, device=device)[:, None] + tokens).flatten()


def clip_ranks(codec: RowCodec, heads: int, dim: int, device: torch.device) -> Tensor:
    """int32 (heads), as int2_pack takes them of rows of so many channels."""
    found = codec.clip_ranks(dim) or [-1]
    return torch.tensor(found if len(found) == heads else found * heads, dtype=torch.int32, device=device)


def pack(codec: RowCodec, ranks: Tensor, rows: Tensor, slots: Tensor, codes: Tensor, params: Tensor) -> None:
    """One int2_pack of rows (tokens, KV heads, d) as stored. What it has no grid for is packed in torch; int2_decode reads it all the same.
    ranks: clip_ranks() of the codec."""
    if codec.grid not in ("minmax", "lsq"):
        codec.encode_into(rows, slots, codes, params)
    else:
        torch.ops.oscar.int2_pack(rows, slots, codes, params, grid=codec.grid, clip_ranks=ranks if codec.grid == "minmax" else None)


def stream_of(x: Tensor) -> int:
    """The current stream of a CUDA tensor's device; 0 on the CPU."""
    return torch.cuda.current_stream(x.device).cuda_stream if x.device.type == "cuda" else 0


def _paged(x: Tensor, size: int) -> Tensor:
    """(batch, tokens, ...) as (pages, size, ...)."""
    return x.flatten(0, 1).unflatten(0, (-1, size))


class KernelRows(SideRows):
    """SideRows whose history the kernels can read."""

    def clear(self) -> None:
        super().clear()
        self.pages: tuple[Tensor, ...] = ()

    def begin(self, states: Tensor) -> None:
        super().begin(states)
        self.ranks = clip_ranks(self.codec, states.shape[1], states.shape[3], states.device)
        self.reserve(1)
        self._view()

    def reserve(self, count: int) -> None:
        """Makes room for so many more packed tokens."""
        room = self.codes.data.shape[1]
        self.codes.reserve(count)
        self.params.reserve(count)
        if self.pages and self.codes.data.shape[1] != room:
            self._view()

    def _view(self) -> None:
        """Ring, codes and params as pages, made anew where these are."""
        self.pages = tuple(_paged(x, size) for x, size in (
            (self.ring, RING_PAGE), (self.codes.data, ROOM), (self.params.data, ROOM)))

    def _pack(self, rows: Tensor) -> None:
        batch, count = rows.shape[0], rows.shape[2]
        self.reserve(count)
        slots = slots_of(batch, self.codes.data.shape[1], self.codes.length, count, rows.device)
        pack(self.codec, self.ranks, rows.transpose(1, 2).flatten(0, 1), slots, *self.pages[1:])
        self.codes.length += count
        self.params.length += count

    def pack_step(self, values: "KernelRows", slots: Tensor, rows: list[Tensor]) -> None:
        """Keys and values that leave the windows, bfloat16 (batch, heads, d), go to these slots of their histories."""
        for side, leaving in zip((self, values), rows):
            pack(side.codec, side.ranks, leaving, slots, *side.pages[1:])

    def advance(self) -> None:
        """A token more was stored on the device."""
        self.length += 1
        self.codes.length = self.params.length = max(self.length - self.recent + 1 - self.sink, 0)

    def held(self) -> tuple[Tensor, ...]:
        """What the kernels read and write."""
        return self.ring, self.codes.data, self.params.data

    def history_room(self) -> int:
        """Pages of ROOM tokens of each sequence."""
        return self.codes.data.shape[1] // ROOM

    def decode(self, values: "KernelRows", q: Tensor, windows: list[Tensor], tables: tuple[Tensor, ...], scaling: float) -> Tensor:
        """q: bfloat16 (sequences, query heads, d) for these keys and those values -> float32. windows: pools of both; tables:
        pages and lengths of the history, and of the window."""
        (_, k_codes, k_params), (_, v_codes, v_params) = self.pages, values.pages
        rows = q, k_codes, v_codes, k_params, v_params, *tables[:2], *windows, *tables[2:]
        out, _ = torch.ops.oscar.int2_decode(*rows, softmax_scale=scaling, workspace=workspace_of("int2", rows, scaling, stream_of(q)))
        return out

    def change(self, change: Callable[[Tensor], Tensor]) -> None:
        super().change(change)
        self._view()


@dataclass(frozen=True)
class _Step:
    """What one token of each sequence sees, once it is stored."""

    key: KernelRows
    value: KernelRows
    clock: DecodeClock

    def __call__(self, query: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
        sides = self.key, self.value
        if mask is not None:
            packed = max(self.key.length - self.key.recent - self.key.sink, 0)  # by the calls before
            return attend(query, *(Seen(side, side.window(packed), packed, side.length) for side in sides), mask, scaling)
        q = torch.empty(query[:, :, 0].shape, dtype=torch.bfloat16, device=query.device)
        self.key.turn(query[:, :, 0], q)
        pages, rings = _pages(len(q), self.key.history_room(), q.device), [side.pages[0] for side in sides]
        tables = pages, self.clock.lengths[0], _pages(len(q), len(rings[0]) // len(q), q.device), self.clock.lengths[1]
        out = self.key.decode(self.value, q, rings, tables, scaling)
        native = torch.empty(q.shape, dtype=query.dtype, device=q.device)
        self.value.turn_back(out.bfloat16(), native)
        return native[:, :, None]


def step_of(key: KernelRows, value: KernelRows, keys: Tensor, values: Tensor, clock: DecodeClock) -> Attention:
    """Stores one token of each sequence, native (batch, KV heads, 1, d), and packs the one that leaves the window, with nothing
    read from the device."""
    sides = key, value
    for side in sides:
        side.reserve(1)
    clock.begin(key.length, len(keys), key.history_room() * ROOM, keys.device)
    for side, states in zip(sides, (keys, values)):
        rows = torch.empty(states[:, :, 0].shape, dtype=torch.bfloat16, device=states.device)
        side.store(states[:, :, 0], rows)
        side.ring.index_copy_(1, clock.ring, rows[:, None])
    key.pack_step(value, clock.slots, [side.ring.index_select(1, clock.leaving)[:, 0] for side in sides])
    for side in sides:
        side.advance()
    return _Step(key, value, clock)


@dataclass(frozen=True)
class _Call:
    """What the tokens of a call see: rows after evict, and what they were before."""

    key: KernelRows
    value: KernelRows
    packed: int  # tokens of the history before
    windows: tuple[Seen, Seen]

    def __call__(self, query: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
        if mask is not None:
            return attend(query, *self.windows, mask, scaling)
        batch, _, _, dim = query.shape
        kv_heads = self.key.ring.shape[2]
        q = self.key.queries(query.reshape(batch, kv_heads, -1, dim)).reshape(query.shape)
        out = self.value.native(self._many(q, scaling).bfloat16().reshape(batch, kv_heads, -1, dim))
        return out.reshape(query.shape).to(query.dtype)

    def _many(self, q: Tensor, scaling: float) -> Tensor:
        batch, _, count, _ = q.shape
        rows = [seen.window.transpose(1, 2) for seen in self.windows]
        pools, width = [x.flatten(0, 1).contiguous()[:, None] for x in rows], rows[0].shape[1]
        history_pages, blocks = _pages(batch, self.key.history_room(), q.device), []
        each, first = max(_SEQUENCES // batch, 1), self.key.length - count
        for begin in range(0, count, each):
            block = q[:, :, begin:begin + each]
            tokens = torch.arange(first + begin, first + begin + block.shape[2], dtype=torch.int32, device=q.device)
            history, window, pages = self._tables(tokens, batch, width)
            tables = history_pages.repeat_interleave(len(tokens), 0), history, pages, window
            out = self.key.decode(self.value, block.transpose(1, 2).flatten(0, 1).contiguous(), pools, tables, scaling)
            blocks.append(out.unflatten(0, (batch, -1)).transpose(1, 2))
        return torch.cat(blocks, 2)

    def _tables(self, tokens: Tensor, batch: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """Of these tokens of each sequence: lengths of history and window, and the window's pages of one row, (sequences,
        sink + recent) in pools of `width` rows a sequence."""
        sink, recent, device = self.key.sink, self.key.recent, tokens.device
        entries = torch.arange(sink + recent, dtype=torch.int32, device=device)
        oldest = (tokens - recent + 1).clamp(min=sink)[:, None]  # of the recent ones
        places = torch.where(entries < sink, entries, entries - sink + oldest - self.packed).clamp(max=width - 1)
        pages = places + _pages(batch, width, device)[:, :1, None]
        lengths = (tokens + 1 - sink - recent).clamp(min=0), (tokens + 1).clamp(max=sink + recent)
        history, window = (x.repeat(batch) for x in lengths)
        return history, window, pages.flatten(0, 1)


def attention_of(key: KernelRows, value: KernelRows) -> Attention:
    """For the tokens of one call, between append and evict."""
    return _Call(key, value, key.codes.length, (Seen.by(key), Seen.by(value)))
