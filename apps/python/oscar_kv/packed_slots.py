# SPDX-License-Identifier: MIT
"""A token of one layer in a paged cache of bytes: the packed keys of all KV heads and their packed values, with nothing between
them but what aligns slots. A block is (heads = 1, tokens, bytes) in vLLM's terms. Needs torch only. Non-goals: windows.
"""
from torch import Tensor

from .coded_rows import CodedCodec
from .int2_side import Int2Side

_ALIGNED = 16  # bytes of a slot of INT2 rows, which kernels load so many at a time


class PackedSlots:
    """key, value: of one layer, placed; heads: KV heads of this process. path: "kernels" where they serve decode steps
    (kernel_slots.py), else "torch: why"."""

    path = "torch"
    most_values = 1 << 22  # of keys, and as many of values, for which unpack() takes memory that a server can spare

    def __init__(self, key: Int2Side, value: Int2Side, heads: int, dim: int):
        self.sides, self.heads, self.dim = (key, value), heads, dim
        parts = [side.codec.part_bytes(heads, dim) for side in self.sides]
        # Codes of keys, codes of values, params of keys, params of values: each part is aligned as its numbers are.
        self._sizes = [size for both in zip(*parts) for size in both]
        self.bytes = sum(self._sizes)
        if not isinstance(key.codec, CodedCodec):
            self.bytes = -(-self.bytes // _ALIGNED) * _ALIGNED

    def of_rank(self, cache: Tensor) -> Tensor:
        """What these tokens take of blocks (blocks, 1, tokens, bytes) whose slots have room for those of any rank."""
        if cache.shape[3] == self.bytes:
            return cache
        tokens = cache.shape[2]
        return cache.flatten(1)[:, :tokens * self.bytes].unflatten(1, (1, tokens, self.bytes))

    def rotate(self, rows: tuple[Tensor, Tensor], stored: Tensor, places: Tensor, copies: Tensor, queries: Tensor, turned: Tensor) -> None:
        """What a step has to rotate before it reads. rows: new keys and values (tokens, heads, d), which go as stored to `stored`, bfloat16
        (2, tokens, heads, d), and to the places int32 (tokens) of copies (2, any number, heads, d); negative: to none. queries (any
        number, query heads, d) go to `turned`, bfloat16 of that shape."""
        for side, x, out in zip(self.sides, rows, stored):
            side.store(x, out)
        has_copy = places >= 0
        copies[:, places[has_copy].long()] = stored[:, has_copy]
        if len(queries):
            self.turn(queries, turned)

    def turn(self, queries: Tensor, turned: Tensor) -> None:
        self.sides[0].turn(queries, turned)

    def turn_back(self, outputs: Tensor, native: Tensor) -> None:
        """outputs of attention (tokens, query heads, d), float32 or bfloat16, as the model has them, into bfloat16 of that shape."""
        self.sides[1].turn_back(outputs.bfloat16(), native)

    def write(self, cache: Tensor, slots: Tensor, stored: Tensor) -> None:
        """cache: uint8 (blocks, 1, tokens, bytes); slots: int32 (tokens), places in all blocks; negative ones are not written; stored: keys
        and values as stored, bfloat16 (2, tokens, heads, d), packed into the slots."""
        written = slots >= 0
        slots, stored = slots[written].long(), stored[:, written]
        parts = [side.codec.encode_parts(rows.transpose(0, 1)) for side, rows in zip(self.sides, stored)]
        first = 0
        for data in (part for both in zip(*parts) for part in both):
            cache[slots // cache.shape[2], 0, slots % cache.shape[2], first:first + data.shape[1]] = data
            first += data.shape[1]

    def read(self, cache: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        """The inverse: keys and values of the slots as stored, float32 (heads, tokens, d)."""
        rows = cache[slots // cache.shape[2], 0, slots % cache.shape[2]]
        parts = rows[:, :sum(self._sizes)].split(self._sizes, -1)
        key, value = (side.codec.decode_parts(list(parts[number::2]), self.heads, self.dim)
                      for number, side in enumerate(self.sides))
        return key, value

    def unpack(self, cache: Tensor, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """read() of int32 slots into bfloat16 (heads, tokens, d), any strides."""
        for out, rows in zip((keys, values), self.read(cache, slots)):
            out.copy_(rows)
