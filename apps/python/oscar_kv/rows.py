# SPDX-License-Identifier: MIT
"""Queries, keys and values of a running model in one file, oscar_rows_rank<r>.pt of a folder, which `oscar fit --dump` and `verify
--dump` read (lib/dump/server_file.hpp): for tap.py and server.py.

Sequences are kept from their first token on, in host memory until they are saved: (query heads + 2 KV heads) x head_dim numbers for each
token and layer. Non-goals: layers whose heads differ in number or size.
"""
import contextlib
import hashlib
import json
import logging
import os
import secrets
import shlex
import shutil
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import identity

DEFAULT_TOKENS = 8192
_SHORT = 480  # half as much again as the windows of `oscar fit`, whose figures of attention need longer sequences


def check_folder(folder: str | os.PathLike[str]) -> Path:
    """Makes the folder, not its parents. Raises ValueError if no rows can be written there, or if there are some: they are never
    overwritten."""
    place = Path(folder)
    try:
        place.mkdir(exist_ok=True)
    except OSError as error:
        raise ValueError(f"{place}: the folder cannot be made: {error.strerror}; name one in a folder that is there") from error
    if not os.access(place, os.W_OK | os.X_OK):
        raise ValueError(f"{place}: this user may not write to the folder; name another one")
    for found in place.glob("oscar_rows_rank*.pt"):
        raise ValueError(f"{found} is there already, and is not overwritten; name another folder")
    return place


def _free_memory() -> int:
    line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
    return int(line.split()[1]) * 1024


@dataclass
class _Pass:
    """What begin() was given, and the rows of layers that have seen it."""

    mask: Any = None
    lengths: list[int] = field(default_factory=list)
    texts: list[Any] = field(default_factory=list)
    layers: dict[int, tuple[Any, Any, Any]] = field(default_factory=dict)


class Rows:
    """Of passes that threads may run at once. limit: tokens that are kept. layers: all that a file must have. shard: (first KV head, KV
    heads of the model) of a tensor-parallel rank. Raises ValueError for what check_folder() refuses, and for a limit below 1."""

    def __init__(self, folder: str | os.PathLike[str], limit: int, layers: Iterable[int], shard: tuple[int, int] = (0, 0)):
        if limit < 1:
            raise ValueError(f"{limit} tokens of rows are none; keep at least 1")
        self.folder, self.layers, self.limit, self.lengths = check_folder(folder), sorted(layers), limit, list[int]()
        self._shard = shard
        self._texts: list[Any] | None = []
        self._kept: dict[int, list[tuple[Any, Any, Any]]] = {layer: [] for layer in self.layers}
        self._scales: dict[int, float] = {}
        self._missing: list[int] = []  # layers that a pass did not have
        self._passes: dict[int, _Pass] = {}  # of each thread the one under way
        self._began, self._lock = False, threading.Lock()

    def begin(self, mask: Any, lengths: Sequence[int], texts: Sequence[Any]) -> None:
        """A forward pass of this thread, which ends the one before. mask: which of its rows are of sequences, one after the other, that are there from their first
        token on; lengths: of these; texts: their token ids (int32 numpy arrays), or None of one whose are not known. What is beyond the
        limit is cut."""
        with self._lock:
            self._end()
            begun = self._passes[threading.get_ident()] = _Pass(mask)
            self._began, left = True, self.limit - self._taken()
            for length, ids in zip(lengths, texts):
                if (kept := min(length, left)) > 0:
                    begun.lengths.append(kept)
                    begun.texts.append(None if ids is None else ids[:kept])
                    left -= kept

    def end(self) -> None:
        """The pass of this thread is over: rows that come are of none."""
        with self._lock:
            self._end()

    def _taken(self) -> int:
        return sum(self.lengths) + sum(sum(each.lengths) for each in self._passes.values())

    @property
    def full(self) -> bool:
        return self._taken() >= self.limit

    def begin_prompts(self, tokens: int, places: Sequence[slice], texts: Sequence[Any]) -> None:
        """begin() of a pass over so many tokens, of which some are prompts from their first token on."""
        import torch

        mask = torch.zeros(tokens, dtype=torch.bool)
        for place in places:
            mask[place] = True
        self.begin(mask, [place.stop - place.start for place in places], texts)

    def add(self, layer: int, q: Any, k: Any, v: Any, scale: float) -> None:
        """A layer's rows of the pass, (of the mask's dimensions, heads, dim), where scores are scale q k. Raises IndexError or ValueError
        if they do not fit to others, or if memory or disk is too small for all."""
        seen = self._passes.get(threading.get_ident())
        if layer not in self._kept or seen is None or not seen.lengths:
            return
        count = sum(seen.lengths)
        rows = tuple(x.detach()[seen.mask.to(x.device)][:count].cpu() for x in (q, k, v))
        shapes = [tuple(x.shape[1:]) for x in rows]
        if not self._scales:
            self._shapes = shapes
            self._require_room(sum(x[0].nbytes for x in rows) * len(self.layers))
        if shapes != self._shapes:
            raise ValueError(f"layer {layer} has rows of heads and channels {shapes}, others {self._shapes}; use oscar dump")
        seen.layers[layer], self._scales[layer] = rows, scale

    def save(self, model: dict[str, Any], images: Sequence[int] = ()) -> None:
        """Writes the file and says what it has. model: ModelIdentity without sizes; images: token ids that stand for pieces of images.
        Raises RuntimeError if nothing was kept, FileExistsError if the file is there, OSError if the disk is full; a second try is
        possible."""
        import torch

        with self._lock:
            for thread in tuple(self._passes):
                self._end(thread)
        if not self._began:
            raise RuntimeError("no rows were kept: the model itself was not called; call it, and no part of it")
        if not self.lengths:
            raise RuntimeError(f"no rows were kept, since layers {self._missing} were not observed; use oscar dump" if self._missing else
                               "no rows were kept: no sequence was seen from its first token on, as where prefix caching has it, padding lies "
                               "before it without position_ids, several texts share a row, or its mask has holes; turn the prefix cache off, "
                               "pass position_ids, or give each text a row of its own")
        for layer, parts in self._kept.items():
            self._kept[layer] = [tuple(torch.cat(side) for side in zip(*parts))]
        (q_heads, dim), (heads, _), (_, value_dim) = self._shapes
        ranks = (self._shard[1] or heads) // heads
        rank, tokens = self._shard[0] // heads, sum(self.lengths)
        model = identity.with_shape(model, (q_heads * ranks, heads * ranks, dim, value_dim))
        if self._texts is None:  # keys tell data apart then, but for ranks, which must tell the same
            keys = self._kept[self.layers[0]][0][1].view(torch.uint8).numpy() if ranks == 1 else f"{self.folder.name} {self.lengths}".encode()
            data = {"data_sha256": hashlib.sha256(keys).hexdigest(), "tokens": tokens, "sequences": len(self.lengths)}
        else:
            data = identity.describe_tokens(self._texts, images)
        positions = torch.cat([torch.arange(length, dtype=torch.int32) for length in self.lengths])
        manifest = {"schema": "oscar.dump.v1", "oscar_version": "", "model": model, "calibration": data, "format": "pt",
                    "dtype": str(self._kept[self.layers[0]][0][1].dtype).removeprefix("torch."), "layers": []}
        path = self.folder / f"oscar_rows_rank{rank}.pt"
        self._write(path, {
            "format_version": 1, "manifest": json.dumps(manifest), "model_path": model["id"], "model_revision": model["revision"],
            "prompt_sha256": data["data_sha256"], "tokens": tokens, "tp_rank": rank, "tp_size": ranks, "local_kv_heads": heads,
            "global_kv_heads": heads * ranks, "global_q_heads": q_heads * ranks, "head_dim": dim, "v_head_dim": value_dim,
            "q_head_offset": rank * q_heads, "q_sample_stride": 1,
            "layers": {layer: {"k": k, "v": v, "q_samples": q, "positions": positions, "q_scaling": self._scales[layer], "count": tokens}
                       for layer, ((q, k, v),) in self._kept.items()}})
        short = "" if max(self.lengths) > _SHORT else f"; none is longer than {_SHORT} tokens, so give smaller windows (--sink, --recent)"
        logging.getLogger("oscar_kv").warning("oscar_kv: rows of %d tokens in %d sequences are in %s; next: oscar fit --dump %s --out SET%s",
                                              tokens, len(self.lengths), path, shlex.quote(str(self.folder)), short)

    def _end(self, thread: int | None = None) -> None:
        """Keeps the pass of a thread, this one unless told, if all layers have seen it: an error may have ended it."""
        each = self._passes.pop(threading.get_ident() if thread is None else thread, _Pass())
        if each.lengths and each.layers.keys() == self._kept.keys():
            for layer, rows in each.layers.items():
                self._kept[layer].append(rows)
            self.lengths += each.lengths
            if self._texts is not None:
                self._texts = None if any(ids is None for ids in each.texts) else self._texts + each.texts
        elif each.lengths:
            self._missing = [layer for layer in self.layers if layer not in each.layers]

    def _require_room(self, token_bytes: int) -> None:
        heads = self._shapes[1][0]
        token_bytes *= (self._shard[1] or heads) // heads  # other ranks are taken to be on this machine
        for what, room in ((f"the disk of {self.folder}", shutil.disk_usage(self.folder).free), ("half of the free memory", _free_memory() // 2)):
            if self.limit * token_bytes > room:
                raise ValueError(f"rows of {self.limit} tokens take {self.limit * token_bytes / 1e6:,.1f} MB ({token_bytes} bytes each), and "
                                 f"{what} has room for {room // token_bytes}; keep fewer (tokens=, OSCAR_OBSERVE_TOKENS)")

    @staticmethod
    def _write(path: Path, content: dict[str, Any]) -> None:
        """Under its name only when it is whole."""
        import torch

        partial = path.with_name(f"{path.name}.{secrets.token_hex(8)}.partial")
        try:
            with partial.open("xb") as file:
                torch.save(content, file)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(partial, path)  # somebody else may have the name by now
            except OSError:
                if os.path.lexists(path):
                    raise
                os.replace(partial, path)  # on a file system without hard links
        finally:
            with contextlib.suppress(FileNotFoundError):
                partial.unlink()
