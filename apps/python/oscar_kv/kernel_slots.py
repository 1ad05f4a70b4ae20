# SPDX-License-Identifier: MIT
"""PackedSlots that kernels of liboscar_torch.so write and read: blocks of INT2 rows, or pages of a coded cache
(kernels/include/oscar/coded_attention.h). slots_for() says which, and where only torch can. Non-goals: windows, page tables.
"""
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from . import coded_kernel, int2_kernel
from .int2_side import Int2Side
from .kernel_workspace import workspace_of
from .packed_slots import PackedSlots

MOST_VALUES = 1 << 25  # the kernels take no memory of their own: 128 MiB of keys and values
ON_CPU = False  # tests: take the operators' references, int2_cpu.py and coded_cpu.py


class KernelSlots(PackedSlots):
    """A layer's step is four launches: rotate(), write(), decode() and turn_back()."""

    path, most_values = "kernels", MOST_VALUES

    def __init__(self, key: Int2Side, value: Int2Side, heads: int, dim: int):
        super().__init__(key, value, heads, dim)
        self._matrices = [x.bfloat16().contiguous() for x in (key.rotation, value.rotation, key.read_rotation)]
        self._means = [*(side.mean if side.mean is None else side.mean[:, 0].contiguous() for side in self.sides), None]
        self._back = value.read_rotation.bfloat16().transpose(1, 2).contiguous()

    def rotate(self, rows: tuple[Tensor, Tensor], stored: Tensor, places: Tensor, copies: Tensor, queries: Tensor, turned: Tensor) -> None:
        torch.ops.oscar.rotate_rows([*rows, queries], self._matrices, self._means, [*stored, turned], places, [*copies])

    def turn(self, queries: Tensor, turned: Tensor) -> None:
        torch.ops.oscar.rotate_rows([queries], self._matrices[2:], [None], [turned], None, [])

    def turn_back(self, outputs: Tensor, native: Tensor) -> None:
        torch.ops.oscar.rotate_rows([outputs], [self._back], self._means[1:2], [native], None, [], adds_mean=True)


class Int2Slots(KernelSlots):
    """The rows of a KV head lie behind each other in a block, so that the kernels read whole lines of memory. Keys and values have formats
    of the same size: to the packer they are heads of one kind."""

    def __init__(self, key: Int2Side, value: Int2Side, heads: int, dim: int):
        super().__init__(key, value, heads, dim)
        ratios = [side.codec.clip_ratio for side in self.sides]
        ratios = [x if isinstance(x, Tensor) else torch.full((heads,), x or 0.0, dtype=torch.float64) for x in ratios]
        self._codec = replace(key.codec, clip_ratio=torch.cat([x.double().cpu() for x in ratios]))
        self._ranks = int2_kernel.clip_ranks(self._codec, 2 * heads, dim, key.rotation.device)

    def _both(self, cache: Tensor) -> list[Tensor]:
        """Codes and params of keys and values: views (blocks, tokens, 2 heads, ...)."""
        data, tokens = cache[:, 0].flatten(1), cache.shape[2]
        of_codes, of_params = (2 * size * tokens for size in self._sizes[::2])
        parts = data[:, :of_codes], data[:, of_codes:of_codes + of_params].view(self._codec.param_type)
        codes, params = (part.unflatten(1, (2 * self.heads, tokens, -1)).transpose(1, 2) for part in parts)
        return [codes, params.unflatten(-1, (-1, 2))]

    def _pools(self, cache: Tensor) -> list[Tensor]:
        """Codes of keys, codes of values, params of keys, params of values: views (blocks, tokens, heads, ...)."""
        return [part for both in self._both(cache) for part in both.split(self.heads, 2)]

    def read(self, cache: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        page, token = slots // cache.shape[2], slots % cache.shape[2]
        rows = [pool[page, token].transpose(0, 1) for pool in self._pools(cache)]
        keys, values = (side.codec.decode(*rows[number::2], self.dim) for number, side in enumerate(self.sides))
        return keys, values

    def unpack(self, cache: Tensor, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        pools = self._pools(cache)
        for number, out in enumerate((keys, values)):
            torch.ops.oscar.int2_unpack(slots, *pools[number::2], out.transpose(0, 1))

    def write(self, cache: Tensor, slots: Tensor, stored: Tensor) -> None:
        int2_kernel.pack(self._codec, self._ranks, stored.transpose(0, 1).flatten(1, 2), slots, *self._both(cache))

    def decode(self, cache: Tensor, q: Tensor, windows: list[Tensor], tables: tuple[Tensor, ...], scaling: float) -> Tensor:
        """q: bfloat16 (sequences, tokens, query heads, d) -> float32 of that shape. windows: pools of keys and values; tables: pages
        and lengths of the history, and of the window, of each token."""
        rows = q.flatten(0, 1), *self._pools(cache), *tables[:2], *windows, *tables[2:]
        out, _ = torch.ops.oscar.int2_decode(*rows, softmax_scale=scaling, workspace=workspace_of("int2", rows, scaling))
        return out.unflatten(0, q.shape[:2])


class CodedSlots(KernelSlots):
    def __init__(self, key: Int2Side, value: Int2Side, heads: int, dim: int, device: torch.device):
        super().__init__(key, value, heads, dim)
        self.pages = coded_kernel.KernelPages(key.codec, value.codec, device)
        self.bytes = self.pages.token_bytes

    def write(self, cache: Tensor, slots: Tensor, stored: Tensor) -> None:
        self.pages.pack(slots, cache[:, 0], k=stored[0], v=stored[1])

    def read(self, cache: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = (self.pages.read(cache[:, 0], slots, side) for side in range(2))
        return keys, values

    def unpack(self, cache: Tensor, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        self.pages.unpack(slots, cache[:, 0], k=keys.transpose(0, 1), v=values.transpose(0, 1))

    def decode(self, cache: Tensor, q: Tensor, windows: list[Tensor], tables: tuple[Tensor, ...], scaling: float) -> Tensor:
        """As Int2Slots.decode(), but tables are those of sequences."""
        rows = q if q.shape[1] > 1 else q[:, 0], cache[:, 0], self.pages.layout, self.pages.tables, *tables[:2], *windows, *tables[2:]
        out, _ = torch.ops.oscar.coded_decode(*rows, softmax_scale=scaling, workspace=workspace_of("coded", rows, scaling))
        return out.reshape(q.shape)


def _why_not(manifest: dict[str, Any], heads: int, dim: int, num_q_heads: int, block_size: int, device: torch.device) -> str | None:
    sink, recent = manifest["windows"]["sink"], manifest["windows"]["recent"]
    if device.type != "cuda" and not ON_CPU:
        return f"the cache is on {device.type}, the kernels on CUDA"
    if recent < 2:
        return f"a window of {recent} recent tokens"
    if block_size not in (4, 8, 16, 32, 64, 128, 256):
        return f"blocks of {block_size} tokens"
    if sink % block_size:
        return f"a sink of {sink} tokens in blocks of {block_size}"
    return (int2_kernel.why_not_rows(manifest["codec"], (dim, dim), num_q_heads, heads)
            or int2_kernel.why_no_operators("cpu" if device.type == "cpu" else "cuda"))


def slots_for(manifest: dict[str, Any], key: Int2Side, value: Int2Side, heads: int, dim: int, num_q_heads: int, block_size: int,
              device: torch.device) -> PackedSlots:
    """key, value: of one layer, placed; heads: KV heads of this process. `.path` says whether kernels serve its decode steps."""
    why = _why_not(manifest, heads, dim, num_q_heads, block_size, device)
    if why is None:
        try:
            return (CodedSlots(key, value, heads, dim, device) if manifest["codec"]["name"] == "coded" else
                    Int2Slots(key, value, heads, dim))
        except ValueError as error:
            why = str(error)
    slots = PackedSlots(key, value, heads, dim)
    slots.path = f"torch: {why}"
    return slots
