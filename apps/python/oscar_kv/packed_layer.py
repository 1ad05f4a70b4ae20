# SPDX-License-Identifier: MIT
"""What a set does to the keys and values of one layer of a served cache:

    stored = bf16(bf16(x - mean) bf16(rotation)),   native = stored bf16(read)^T + mean,   q' = bf16(bf16(q) bf16(read))

(keys that are stored before RoPE are native until they are packed, where slow pairs are turned back and their mean is taken off, and native
again once they are unpacked: their matrices here are 1, and q' = q)

and stored rows packed in pages of bytes, by the operators of liboscar_torch.so: kernels on CUDA, their references on the CPU. Rows are
(tokens, heads, d). Needs torch only. Non-goals: windows, page tables, where pages lie.
"""
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .program import load_library
from .sets import Layer, Side

MOST_VALUES = 1 << 25  # of keys, and as many of values, that a server can spare memory for once they are unpacked: 128 MiB
_STORED_PAGE = 4  # tokens of a page of rows that are stored: the least that the kernels take
_MOST_SHARED = 16384  # query rows; kernels share workspaces up to so many units, each of which has at least one


class LayerSide:
    """The keys, or the values, of a layer in rows of `heads` KV heads, `dim` channels, a device and a type, as one of so many ranks has
    them. Raises ValueError if the set's matrices are for others."""

    def __init__(self, name: str, layer_id: int, side: Side, heads: int, dim: int, device: torch.device, dtype: torch.dtype, rank: int, ranks: int):
        self.where = where = f"layer {layer_id}: {name}"
        known = side.rotation.shape[-1]
        if dim != known:
            raise ValueError(f"{where} rows of {dim} channels do not fit matrices of {known} x {known}; is this a set for another model?")

        def own(what: str, x: Tensor) -> Tensor:
            """Of what each KV head has, what the rank's have."""
            if len(x) != ranks * heads:
                raise ValueError(f"{where} {what} of {len(x)} KV heads, but {ranks} ranks have {heads} each; use a set for this model, and no "
                                 "more ranks than KV heads")
            return x[rank * heads:(rank + 1) * heads]

        # The same products as those of servers: bfloat16 in, float32 sums. The CPU multiplies faster in float32.
        product_type = torch.bfloat16 if device.type == "cuda" and dtype == torch.bfloat16 else torch.float32
        self.heads, self.dim, self.rotary = heads, dim, side.rotary
        matrices = [own("matrices", x) for x in (side.rotation, side.read_rotation)]
        mean = None if side.mean is None or not side.mean.any() else own("means", side.mean).float()
        self.formats = [own("formats", x) for x in (side.levels, side.step, side.sigma)]
        self._expanded = dict[tuple[int, int], Tensor]()
        self.turn: Tensor | None = None  # of keys that are stored before RoPE, by which the packer turns them: on the CPU
        if side.rotary is not None:
            basis, inverse = matrices[0].float().contiguous(), matrices[1].float().transpose(1, 2).contiguous()
            near, far = (x if x is None else torch.tensor(x, dtype=torch.float32) for x in (side.rotary.frequency, side.rotary.far_frequency))
            self.turn = torch.ops.oscar.coded_turn(torch.tensor(side.rotary.pairs, dtype=torch.int32), near, basis, inverse,
                                                   mean=None if mean is None else mean.contiguous(), far_frequency=far)
            matrices, mean = [torch.eye(dim).expand(heads, -1, -1)] * 2, None
        self.rotation, self.read_rotation = (x.bfloat16().to(device, product_type) for x in matrices)
        self.mean = None if mean is None else mean.to(device)

    def stored(self, native: Tensor) -> Tensor:
        """bfloat16."""
        rows = native if self.mean is None else native.float() - self.mean
        return self._product(rows.bfloat16().to(self.rotation.dtype), self.rotation).bfloat16()

    def native(self, stored: Tensor) -> Tensor:
        """Of rows of KV heads or outputs of query heads, values of bfloat16: float32."""
        heads = stored.shape[1]
        rows = self._product(stored.to(self.read_rotation.dtype), self._of_heads(self.read_rotation, heads).transpose(-1, -2)).float()
        return rows if self.mean is None else rows + self._of_heads(self.mean, heads)

    def queries(self, native: Tensor) -> Tensor:
        """Queries for stored keys, bfloat16; scores of a query are off by one constant if keys are centred."""
        read = self._of_heads(self.read_rotation, native.shape[1])
        return self._product(native.bfloat16().to(read.dtype), read).bfloat16()

    @staticmethod
    def _product(rows: Tensor, matrices: Tensor) -> Tensor:
        """(tokens, heads, d) by a matrix of each head."""
        return torch.bmm(rows.transpose(0, 1), matrices).transpose(0, 1)

    def _of_heads(self, x: Tensor, heads: int) -> Tensor:
        """(KV heads, ...) as (heads, ...) for so many query heads, the same tensor in each call: a graph may hold it."""
        if len(x) == heads:
            return x
        key = (x.data_ptr(), heads)
        if key not in self._expanded:
            with torch.inference_mode(False):  # calls outside of it may need it for their gradients
                self._expanded[key] = x.repeat_interleave(heads // len(x), 0)
        return self._expanded[key]


class PackedSlots:
    """The packed rows of a layer's keys and values in pages: a page is uint8 (1, tokens, bytes) as vLLM has its blocks. A slot is the
    number of a token's place, counted through all pages. path: "kernels" where decode() serves decode steps, else "torch: why".

    Of rows of a layer, with LayerSides for `device` and `dtype`, for pages on that device or on another. Raises ValueError if the set does
    not fit the rows, or its operators cannot read the formats."""

    path = "kernels"
    most_values = MOST_VALUES

    def __init__(self, layer: Layer, heads: int, dim: int, device: torch.device, dtype: torch.dtype, pages: torch.device | None = None,
                 rank: int = 0, ranks: int = 1):
        load_library()
        self.heads, self.dim, pages, formats = heads, dim, pages or device, []
        self.sides = [LayerSide(name, layer.layer_id, getattr(layer, name), heads, dim, device, dtype, rank, ranks) for name in ("key", "value")]
        for levels, step, sigma in (side.formats for side in self.sides):
            bits = levels.log2().round().to(torch.uint8)[:, ::8]
            of_stored = (torch.where(levels > 1, x, 1.0) for x in (step, sigma))
            formats.append([x.cpu().contiguous() for x in (bits, *of_stored)])
        try:
            layout, tables = torch.ops.oscar.coded_layout(*(x for both in zip(*formats) for x in both), for_gpu=pages.type == "cuda")
        except RuntimeError as error:
            raise ValueError(str(error).splitlines()[0]) from error
        self._layout, self._tables, turn = layout.tolist(), tables.to(pages), self.sides[0].turn
        self._turn = turn if turn is None else turn.to(pages)
        self.bytes = self._layout[5]  # of a token

    def write(self, cache: Tensor, slots: Tensor, stored: Tensor, positions: Tensor | None = None, is_far: bool = False) -> None:
        """cache: uint8 (pages, 1, tokens, bytes); slots: int32 (tokens), negative ones are not written; stored: keys and values as stored,
        bfloat16 (2, tokens, heads, d), packed into the slots. For keys that are stored before RoPE positions (tokens), and whether
        they turned as in a far text (far())."""
        torch.ops.oscar.coded_pack(slots, cache[:, 0], self._layout, self._tables, k=stored[0], v=stored[1], **self._turned(positions, is_far))

    def unpack(self, cache: Tensor, slots: Tensor, keys: Tensor, values: Tensor, positions: Tensor | None = None, is_far: bool = False,
               was_far: bool | None = None, moved: int = 0) -> None:
        """The inverse, into bfloat16 (tokens, heads, d), any strides but of channels. positions, is_far: where the keys are read now; was_far:
        what is_far was when they were written, None: the same; moved: how far they stand behind the positions where they were written."""
        how = self._turned(positions, is_far)
        if how:
            how |= {"k_was_far": was_far, "k_moved": moved}
        torch.ops.oscar.coded_unpack(slots, cache[:, 0], self._layout, self._tables, k=keys, v=values, **how)

    @property
    def turns(self) -> bool:
        """Whether keys are stored before RoPE."""
        return self._turn is not None

    def far(self, length: int) -> bool:
        """Whether keys of a text of so many tokens turn by LongRoPE's frequencies of long texts."""
        rotary = self.sides[0].rotary
        return rotary is not None and 0 < rotary.near_context < length

    def _turned(self, positions: Tensor | None, is_far: bool) -> dict[str, Any]:
        if self._turn is None:
            return {}
        return {"k_turn": self._turn, "k_positions": positions.to(self._turn.device, torch.int32), "k_far": is_far}

    def decode(self, cache: Tensor, q: Tensor, windows: list[Tensor], tables: tuple[Tensor, ...], scaling: float, stream: int = 0,
               first: Tensor | None = None, is_far: bool = False, soft_cap: float = 0.0) -> tuple[Tensor, Tensor]:
        """q: bfloat16 (sequences, tokens, query heads, d) -> out of that shape, lse float32 (sequences, tokens, query heads). windows: pools of
        keys and values; tables: pages and lengths of the history, and of the window, of each sequence. stream: whose calls share a
        workspace. first: of keys that are stored before RoPE, int32 (sequences), the position of each history's first token, whose others
        follow one by one; is_far: as in write()."""
        rows = (q if q.shape[1] > 1 else q[:, 0], cache[:, 0], self._layout, self._tables, *tables[:2], *windows, *tables[2:])
        options = {"softmax_scale": scaling, "soft_cap": soft_cap, **self._turned(first, is_far)}
        out, lse = torch.ops.oscar.coded_decode(*rows, **options, workspace=_workspace_of(rows, options, stream))
        return out.reshape(q.shape), lse.reshape(q.shape[:3])

    @cached_property
    def rotations(self) -> tuple[list[Tensor], list[Tensor | None]]:
        """Matrices of keys, values, queries and outputs, and means of keys and values, as rotate_rows() takes them. A server asks for
        them before it captures graphs."""
        key, value = self.sides
        matrices = key.rotation, value.rotation, key.read_rotation, value.read_rotation.transpose(1, 2)
        return [x.bfloat16().contiguous() for x in matrices], [x if x is None else x.contiguous() for x in (key.mean, value.mean)]

    def stored(self, keys: Tensor, values: Tensor) -> Tensor:
        """Native rows (tokens, heads, d) as write() takes them."""
        return torch.stack([side.stored(x) for side, x in zip(self.sides, (keys, values))])

    def native(self, stored: Tensor) -> list[Tensor]:
        """The inverse, of (2, tokens, heads, d): keys and values, float32."""
        return [side.native(x) for side, x in zip(self.sides, stored)]

    def bytes_of(self, tokens: int) -> int:
        """Of what packed() gives for so many tokens."""
        return -(-tokens // _STORED_PAGE) * _STORED_PAGE * self.bytes

    def packed(self, keys: Tensor, values: Tensor, positions: Tensor | None = None, is_far: bool = False) -> Tensor:
        """Native rows (tokens, heads, d) in pages that lie behind each other: their bytes. positions, is_far: as in write()."""
        pages = torch.zeros(self.bytes_of(len(keys)), dtype=torch.uint8, device=keys.device)
        if len(keys):
            slots = torch.arange(len(keys), dtype=torch.int32, device=keys.device)
            self.write(pages.view(-1, 1, _STORED_PAGE, self.bytes), slots, self.stored(keys, values), positions, is_far)
        return pages

    def unpacked(self, pages: Tensor, tokens: int, positions: Tensor | None = None, is_far: bool = False,
                 was_far: bool | None = None, moved: int = 0) -> list[Tensor]:
        """The inverse: keys and values, float32. What is read how: as in unpack()."""
        stored = torch.empty(2, tokens, self.heads, self.dim, dtype=torch.bfloat16, device=pages.device)
        if tokens:
            slots = torch.arange(tokens, dtype=torch.int32, device=pages.device)
            self.unpack(pages.view(-1, 1, _STORED_PAGE, self.bytes), slots, *stored, positions, is_far, was_far, moved)
        return self.native(stored)

    def of_rank(self, cache: Tensor) -> Tensor:
        """What these tokens take of pages (pages, 1, tokens, bytes) whose slots have room for those of any rank."""
        if cache.shape[3] == self.bytes:
            return cache
        tokens = cache.shape[2]
        return cache.flatten(1)[:, :tokens * self.bytes].unflatten(1, (1, tokens, self.bytes))

    def rotate(self, rows: tuple[Tensor, Tensor], stored: Tensor, places: Tensor, copies: Tensor, queries: Tensor, turned: Tensor) -> None:
        """What a step has to rotate before it reads. rows: new keys and values, which go as stored to `stored`, bfloat16 (2, tokens,
        heads, d), and to the places int32 (tokens) of copies (2, any number, heads, d); negative: to none. queries (any number, query
        heads, d) go to `turned`, bfloat16 of that shape."""
        matrices, means = self.rotations
        torch.ops.oscar.rotate_rows([*rows, queries], matrices[:3], [*means, None], [*stored, turned], places, [*copies])

    def turn(self, queries: Tensor, turned: Tensor) -> None:
        torch.ops.oscar.rotate_rows([queries], self.rotations[0][2:3], [None], [turned], None, [])

    def turn_back(self, outputs: Tensor, native: Tensor) -> None:
        """outputs of attention (tokens, query heads, d), float32 or bfloat16, as the model has them, into bfloat16 of that shape."""
        torch.ops.oscar.rotate_rows([outputs], self.rotations[0][3:], self.rotations[1][1:], [native], None, [], adds_mean=True)


_workspaces: list[tuple[int, Tensor]] = []  # of a stream, all that ever were: graphs know their places; the last is the largest
_bytes: dict[tuple[Any, ...], int] = {}


def _workspace_of(arguments: tuple[Any, ...], options: dict[str, Any], stream: int) -> Tensor | None:
    """A workspace for torch.ops.oscar.coded_decode, that of this stream's calls: all layers of a model share it, since they take turns in
    one stream. None: the operator makes its own, as on the CPU, or for calls of so many sequences that they cannot share one."""
    q = arguments[0]
    if q.device.type != "cuda" or q.numel() // q.shape[-1] > _MOST_SHARED:
        return None
    key = (q.device.index, len(options), *arguments[2], *(x.shape for x in arguments if isinstance(x, Tensor)))
    if key not in _bytes:
        _bytes[key] = torch.ops.oscar.coded_decode_workspace(*arguments, **options)
    fitting = [x for of, x in _workspaces if of == stream and x.device == q.device and len(x) >= _bytes[key]]
    if not fitting and torch.cuda.is_current_stream_capturing():
        return None  # it would be filled with zeros by the graph alone
    if not fitting:
        fitting = [torch.zeros(_bytes[key] * 5 // 4, dtype=torch.uint8, device=q.device)]
        _workspaces.append((stream, fitting[0]))
    return fitting[-1]


def why_no_kernels(dim: int) -> str | None:
    """Why kernels on CUDA cannot pack rows of so many channels; None: they can. Loads the operators."""
    if dim not in (64, 128, 256):
        return f"rows of {dim} channels, the kernels take 64, 128 and 256"
    load_library()
    if not torch._C._dispatch_has_kernel_for_dispatch_key("oscar::coded_decode", "CUDA"):
        return "liboscar_torch.so was built without CUDA"
    return None


def why_no_decode(num_q_heads: int, num_kv_heads: int) -> str | None:
    """Why decode kernels cannot read a layer's packed rows for so many query heads; None: they can."""
    return f"{num_q_heads} query heads for {num_kv_heads} KV heads" if num_q_heads > 16 * num_kv_heads else None
