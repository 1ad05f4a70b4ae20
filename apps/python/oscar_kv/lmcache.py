# SPDX-License-Identifier: MIT
"""A set as a serde of LMCache: chunks of a model's cache are stored in packed rows, and read back as bfloat16.

    python -m oscar_kv.lmcache server … --l2-adapter '{"type": "fs", "base_path": "/cache", "serde": {"type": "oscar", "set": "SET"}}'

is `lmcache server` with the serde, which importing this module registers. A chunk is tensors [2, layers, tokens, heads * d]: keys and values,
as attention sees them, of some tokens of a prompt, and LMCache does not say which; or [layers, tokens, heads * 2 d] of vLLM 0.32, in the order
of an attention backend, which must be named. The first `exact` tokens of each chunk stay as they are, as a prompt's first are seen by many heads;
sets that store keys before RoPE are refused. A stored chunk is as large as was estimated:

    magic, version, tokens, size, hashes of the set, the model, the chunk's key and its layout; SHA-256 of all other bytes;
    of each tensor and layer the exact rows of keys and values, then pages of packed rows (packed_layer.py); zeros up to the size

What differs is refused before anything is read of it, and LMCache takes the chunk for one that is not there. Non-goals: LMCache inside an
engine's process, which knows its own serdes only.
"""
import hashlib
import json
import logging
import struct
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.serde import AsyncSerdeProcessor, Deserializer, SerdeProcessor, Serializer, register_serde_factory
from lmcache.v1.memory_management import MemoryObj
from torch import Tensor

from .packed_layer import PackedSlots
from .served_model import check_config
from .sets import SetPart, read_set

_HEAD = struct.Struct("<8sIIQ16s16s16s16s")
_BEGIN = _HEAD.size + 32  # after a digest
_MAGIC, _VERSION, _RECENT = b"oscar-kv", 1, 16
_KEYS_FIRST = ("FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION")  # of vLLM, with keys before values in each head; CPU_ATTN has neither
_SETTINGS = {"set": None, "attention_backend": None, "exact": 4, "device": "cpu", "max_workers": 1, "allow_rejected": False}
_Piece = tuple[int, Callable[[Tensor], Tensor], PackedSlots | None, int, int]
_log = logging.getLogger("oscar_kv")


def _hash(*said: Any) -> bytes:
    return hashlib.sha256(json.dumps(said).encode()).digest()[:16]


def _digest(head: bytes, body: Tensor) -> bytes:
    whole = hashlib.sha256(head)
    whole.update(body.cpu().numpy())
    return whole.digest()


def _bytes_of(x: Tensor) -> Tensor:
    return x.contiguous().flatten().view(torch.uint8)


class SetSerde(Serializer, Deserializer):
    """part: of read_set(). exact: tokens of each chunk that stay as they are. device: where rows are packed and unpacked. Threads may use
    it at once. Warns once of each tensor and layer that is stored as it is, since the set is not for it. Raises ValueError if the part is not
    coded, or stores keys before RoPE, or for an attention backend of another order than keys and values of each head."""

    def __init__(self, part: SetPart, exact: int = _SETTINGS["exact"], device: str = _SETTINGS["device"], attention_backend: str | None = None):
        if attention_backend not in (None, *_KEYS_FIRST):
            raise ValueError(f"attention_backend {attention_backend!r}: give what vLLM says that it uses, if it is one of {_KEYS_FIRST}, and leave it out if not")
        turned = [i for i, layer in part.layers.items() if layer.key.rotary is not None]
        if turned:
            raise ValueError(f"the set stores keys of layers {turned} before RoPE, which takes their positions, and LMCache does not tell a "
                             "serde where a chunk stands; fit a set with --keys after-rope")
        if not all(part.manifest["model"][name] for name in ("num_layers", "num_key_value_heads", "head_dim")):
            raise ValueError("the set does not say how many layers, KV heads and channels its model has; fit it again from the model")
        if part.windows[1] > _RECENT:
            _log.warning("oscar_kv: the set was fitted for %d recent tokens that stay as they are; LMCache stores them packed, which costs "
                         "quality: fit a set for it with --sink %d --recent %d", part.windows[1], exact, _RECENT)
        self._part, self._exact, self._device, self._is_told = part.to_torch(), exact, torch.device(device), attention_backend is not None
        self._lock, self._made = threading.RLock(), dict[Any, Any]()
        self._set = _hash([[i, name, what, hashlib.sha256(_bytes_of(x).numpy()).hexdigest()]
                           for i, layer in self._part.layers.items() for name in ("key", "value")
                           for what, x in vars(getattr(layer, name)).items() if isinstance(x, Tensor)])

    def _once(self, key: Any, make: Callable[[], Any]) -> Any:
        with self._lock:
            if key not in self._made:
                self._made[key] = make()
            return self._made[key]

    def _pieces(self, layout: MemoryLayoutDesc, rank: int, ranks: int) -> list[_Piece]:
        """What follows each other in a chunk: number of a tensor, which of its rows, by which slots (None: as it is) but for how many tokens, bytes."""
        pieces, model = [], self._part.manifest["model"]
        layers, heads, dim = (model[name] for name in ("num_layers", "num_key_value_heads", "head_dim"))
        warn = lambda what: self._once(what, lambda: _log.warning("oscar_kv: LMCache stores %s as it is", what))
        for number, (shape, dtype) in enumerate(zip(layout.shapes, layout.dtypes)):
            planes, (tokens, width) = list(shape[:-2]), shape[-2:] if len(shape) > 2 else (0, 0)
            joined = 2 if self._is_told and planes in ([layers], [1, layers]) else 1  # keys and values of a head
            own = width // dim // joined
            if dtype != torch.bfloat16 or own == 0 or heads % own or width != own * joined * dim or (joined == 1 and planes != [2, layers]):
                warn(f"a tensor {list(shape)} of {dtype}, where the set is for [2, {layers}, tokens, {heads} * {dim}] of bfloat16, or a rank's heads "
                     f"(of vLLM [{layers}, tokens, {heads} * {2 * dim}], if the setting attention_backend names the one that it runs),")
                pieces.append((number, lambda x: x, None, 0, shape.numel() * dtype.itemsize))
                continue
            place, kept, row = (rank * (heads // own) // ranks, heads // own), min(self._exact, tokens), 2 * own * dim * dtype.itemsize
            for i in range(layers):
                layer = self._part.layers.get(i) or warn(f"layer {i}, which the set leaves out,")
                slots = layer and self._once((i, own, place), lambda layer=layer: PackedSlots(
                    layer, own, dim, self._device, dtype, None, *place))
                size = kept * row + slots.bytes_of(tokens - kept) if slots else tokens * row
                rows_of = lambda x, i=i, shape=(2 // joined, tokens, own, joined, dim): x[..., i, :, :].view(shape).movedim(3, 1).flatten(0, 1)
                pieces.append((number, rows_of, slots, kept, size))
        return pieces

    def estimate_serialized_size(self, layout_desc: MemoryLayoutDesc) -> int:
        """Of the rank whose rows are largest: what is stored is read into a buffer of this size, and here nothing tells the rank."""
        heads = self._part.manifest["model"]["num_key_value_heads"]
        return _BEGIN + max(sum(piece[4] for piece in self._pieces(layout_desc, rank, heads)) for rank in range(heads))

    def _chunk(self, obj: MemoryObj, key: ObjectKey) -> tuple[list[_Piece], bytes]:
        """Its pieces, and its head. Raises ValueError for a model that the set is not for."""
        self._once(key.model_name, lambda: check_config(self._part, SimpleNamespace(_name_or_path=key.model_name, _commit_hash=None)))
        layout = MemoryLayoutDesc(obj.get_shapes(), obj.get_dtypes())
        tokens = max((shape[-2] for shape in layout.shapes if len(shape) > 2), default=0)
        head = _HEAD.pack(_MAGIC, _VERSION, tokens, self.estimate_serialized_size(layout), self._set, _hash(key.model_name),
                          _hash(key.chunk_hash.hex(), key.kv_rank, key.object_group_id, key.cache_salt),
                          _hash([list(shape) for shape in layout.shapes], list(map(str, layout.dtypes)), self._exact))
        return self._pieces(layout, key.kv_rank >> 16 & 255, max(key.kv_rank >> 24, 1)), head

    def serialize(self, src: MemoryObj, dst: MemoryObj, key: ObjectKey) -> int:
        pieces, head = self._chunk(src, key)
        out, size = _bytes_of(dst.tensor), _HEAD.unpack(head)[3]
        body, at = out[_BEGIN:size].zero_(), 0
        for number, rows_of, slots, exact, count in pieces:
            rows, place = rows_of(src.get_tensor(number)), body[at:at + count]
            plain = _bytes_of(rows[:, :exact] if slots else rows)
            place[:len(plain)] = plain
            if slots:
                place[len(plain):] = slots.packed(*rows[:, exact:].to(self._device))
            at += count
        out[:_BEGIN] = torch.frombuffer(bytearray(head + _digest(head, body)), dtype=torch.uint8)
        return size

    def deserialize(self, src: MemoryObj, dst: MemoryObj, key: ObjectKey) -> None:
        pieces, head = self._chunk(dst, key)
        body = self._body(_bytes_of(src.tensor), head, key)
        for number, rows_of, slots, exact, count in pieces:
            rows, place = rows_of(dst.get_tensor(number)), body[:count]
            plain = rows[:, :exact] if slots else rows
            plain.copy_(place[:plain.nbytes].view(rows.dtype).view(plain.shape))
            for out, native in zip(rows[:, exact:], slots.unpacked(place[plain.nbytes:].to(self._device), rows.shape[1] - exact) if slots else ()):
                out.copy_(native)
            body = body[count:]

    def _body(self, data: Tensor, head: bytes, key: ObjectKey) -> Tensor:
        """What follows the head of a stored chunk. Raises ValueError unless it is whole, and what this serde writes for the key."""
        found = bytes(data[:_BEGIN].cpu().numpy()).ljust(_BEGIN, b"\0")
        its, own = _HEAD.unpack(found[:_HEAD.size]), _HEAD.unpack(head)
        body = data[_BEGIN:own[3]]
        for is_wrong, text in (
                (its[0] != _MAGIC, "oscar_kv did not write it"),
                (its[1] != _VERSION, f"it is of version {its[1]}, and this oscar_kv reads {_VERSION}"),
                (its[4] != own[4], "it was written with another set"),
                (its[5] != own[5], "it is of another model"),
                (its[6] != own[6], "it is what another key stands for"),
                (its != own, f"its layout is another: {its[2]} tokens in {its[3]} bytes, where {own[2]} in {own[3]} are asked for"),
                (len(data) < own[3], f"it was cut to {len(data)} of {own[3]} bytes"),
                (found[_HEAD.size:] != _digest(head, body), "bytes of it have changed since it was written")):
            if is_wrong:
                raise ValueError(f"chunk {key.chunk_hash.hex()} of {key.model_name}: {text}; it is not read; delete it, and give each set a folder")
        return body


def create(kwargs: dict[str, Any]) -> SerdeProcessor:
    """For LMCache. kwargs: what a configuration says of the serde beside its type."""
    said, least = _SETTINGS | kwargs, {"exact": 0, "max_workers": 1}
    if not isinstance(said["set"], str) or type(said["allow_rejected"]) is not bool or set(said) > set(_SETTINGS) or \
            any(type(said[name]) is not int or said[name] < at for name, at in least.items()):
        raise ValueError(f'serde {kwargs}: name a folder by "set"; these and no others can be said, of these types: {_SETTINGS}')
    serde = SetSerde(read_set(said["set"], allow_rejected=said["allow_rejected"]), said["exact"], said["device"], said["attention_backend"])
    return AsyncSerdeProcessor(serde, serde, said["max_workers"])


register_serde_factory("oscar", create)

if __name__ == "__main__":
    from lmcache.cli.main import main

    main()
