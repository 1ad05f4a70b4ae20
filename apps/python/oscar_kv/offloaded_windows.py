# SPDX-License-Identifier: MIT
"""The exact windows of prompts whose packed pages vLLM's OffloadingConnector moves to the host and back: for vllm_backend.py.

vLLM moves pages as bytes and knows nothing of copies beside them (window_blocks.py). So when pages are stored, the copies of a prompt's first
tokens and of its last ones are kept on the host, too, under the number of the chunk that gets the page. A block that is loaded loses the
copies of what it held before, and has those rows until it is written anew: they replace what is restored from its packed ones. First and
last tokens have a budget of bytes each, beyond which the rows that were longest not used go, and their tokens are read packed. The interface is
that of vLLM 0.32 and 0.33 (distributed/kv_transfer/kv_connector/v1/offloading). Non-goals, refused when a server starts: other connectors, chunks
of several blocks, blocks of states, stores that outlive the server.
"""
import logging
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from torch import Tensor

from .program import set_path
from .vllm_start import MOVES, served_set

_SHARE = 8  # each budget is this part of what vLLM takes on the host
_say = cache(logging.getLogger("vllm.oscar_kv").warning)
_Place = tuple[str, int]  # ("chunk", its number on the host) or ("block", its number on the device)
_Rows = dict[str, Tensor]  # of a layer's name, keys and values as stored: bfloat16 (2, tokens of a block, KV heads, d)


class ExactRows:
    """By their place, at most `budget` bytes of them; rows of two places count twice."""

    def __init__(self, budget: int):
        self.budget, self._bytes, self._rows = budget, 0, OrderedDict[_Place, _Rows]()

    def put(self, place: _Place, rows: _Rows | None) -> None:
        """None: the place has none from now on."""
        self._bytes -= _size(self._rows.pop(place, {}))
        if rows:
            self._rows[place] = rows
            self._bytes += _size(rows)
        while self._bytes > self.budget:
            self._bytes -= _size(self._rows.popitem(last=False)[1])

    def get(self, place: _Place) -> _Rows | None:
        if place in self._rows:
            self._rows.move_to_end(place)
        return self._rows.get(place)


def _size(rows: _Rows) -> int:
    return sum(x.nbytes for x in rows.values())


class OffloadedWindows:
    """groups: of each group of layers whose blocks vLLM moves, the tokens of a block and the PackedMetadataBuilders of its packed layers.
    sink, recent: tokens that a request reads exactly; budget: bytes for each."""

    def __init__(self, groups: list[tuple[int, list[Any]]], sink: int, recent: int, budget: int):
        self.groups, self.sink, self.recent = groups, sink, recent
        self.first, self.last = ExactRows(budget), ExactRows(budget)
        self._stores: list[Any] = []  # of the step before, which wrote what they read
        self._tails: dict[tuple[str, int], list[int]] = {}  # of each request and group, chunks that have rows in `last`
        self._finished: Iterable[str] = ()  # requests, in the step before
        self._loaded: set[int] = set()  # blocks, until a request that begins has them

    def begin(self, output: Any) -> None:
        """A step, by vLLM's SchedulerOutput, before its blocks are given copies."""
        moves, flushed = output.kv_connector_metadata, output.kv_connector_metadata.jobs_to_flush or ()
        self._save(self._stores + [job for i, job in moves.store_jobs.items() if i in flushed])
        self._stores = [job for i, job in moves.store_jobs.items() if i not in flushed]
        self._tails = {key: tail for key, tail in self._tails.items() if key[0] not in self._finished}
        self._finished = output.finished_req_ids
        for block in self._written(output):
            self._put(("block", block))
        self._load(moves.load_jobs.values())

    def _save(self, jobs: Iterable[Any]) -> None:
        """Of stores, by vLLM's TransferJobs."""
        for job in jobs:
            for number, index, blocks, chunks in self._parts(job.src_spec, job.dst_spec):
                tokens, builders = self.groups[number]
                sinks, last = -(-self.sink // tokens) - index, -(-self.recent // tokens) + 1  # where vLLM leaves blocks out, sinks are some more
                tail = self._tails.setdefault((job.req_id, number), [])
                for i, (block, chunk) in enumerate(zip(blocks, chunks)):
                    is_first, is_last = i < sinks, i >= len(blocks) - last
                    rows = self._copied(builders, block) if is_first or is_last else None
                    for place in (("chunk", chunk), ("block", block)):  # blocks for a prefix cache whose copies make room
                        self._put(place, rows if is_first else None, rows if is_last else None)
                    tail += [chunk] * is_last
                for chunk in tail[:-last]:
                    self.last.put(("chunk", chunk), None)
                del tail[:-last]

    def _load(self, jobs: Iterable[Any]) -> None:
        for job in jobs:
            for number, index, blocks, chunks in self._parts(job.dst_spec, job.src_spec):
                tokens, builders = self.groups[number]
                for builder in builders:
                    builder.windows.forget(blocks)
                self._loaded.update(blocks)
                for i, (block, chunk) in enumerate(zip(blocks, chunks)):
                    first, last = (rows.get(("chunk", chunk)) for rows in (self.first, self.last))
                    if builders and (first or last) is None and (index + i) * tokens < self.sink:
                        _say(f"oscar_kv: first tokens of a prompt came back from the host without their exact rows, of which {self.first.budget} "
                             "bytes are kept, and are read packed; give more memory to offloading")
                    self._put(("block", block), first, last)

    def _put(self, place: _Place, first: _Rows | None = None, last: _Rows | None = None) -> None:
        self.first.put(place, first)
        self.last.put(place, last)

    def _of(self, block: int) -> _Rows | None:
        return self.first.get(("block", block)) or self.last.get(("block", block))

    def _parts(self, device: Any, host: Any) -> Iterator[tuple[int, int, list[int], list[int]]]:
        """Of a transfer: each group, which of a request's blocks its first one is, its blocks and chunks. Raises ValueError if it moves others."""
        blocks, chunks = (getattr(spec, "block_ids", ()) for spec in (device, host))
        if len(blocks) != len(chunks):
            raise ValueError(f"a transfer between {type(device).__name__} and {type(host).__name__} does not move each block to a chunk; with "
                             "OSCAR_KV_SET use vLLM's CPUOffloadingSpec")
        first = 0
        for number, (count, index) in enumerate(zip(device.group_sizes, device.block_indices)):
            yield number, index, *(x[first:first + count].tolist() for x in (blocks, chunks))
            first += count

    def _written(self, output: Any) -> list[int]:
        """Blocks that a step begins to write, so that they hold no longer what was stored or loaded. Of a prompt that came back whole vLLM
        computes the last token again, which changes nothing."""
        cached = output.scheduled_cached_reqs
        begun = [(new.block_ids, new.num_computed_tokens) for new in output.scheduled_new_reqs]
        begun += [(blocks, seen if name in cached.resumed_req_ids else 0) for name, blocks, seen
                  in zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens) if blocks is not None]
        written = [copy.dst_block_id for copy in getattr(output, "kv_cache_block_copies", None) or ()]
        for groups, seen in begun:
            for (tokens, _), blocks in zip(self.groups, groups):
                first, after = seen // tokens, (seen + 1) // tokens  # which differ if one token of a block is missing
                written += blocks[after if self._loaded.issuperset(blocks[first:after]) else first:]
                self._loaded.difference_update(blocks)
        return written

    def give(self, builder: Any, slots: Tensor) -> None:
        """Lets tokens of these slots, whose copies are restored from packed rows, have their exact ones where they are known. Another engine's
        blocks have the same numbers."""
        if all(builder not in builders for _, builders in self.groups):
            return
        size = builder.windows.block_size
        known = {block: rows for block in (slots // size).unique().tolist() if (rows := self._of(block))}
        for rows, entry in zip(known.values(), builder.windows.entries_of(list(known))):
            for layer in builder.layers:
                layer.impl.copies_of(entry, size).copy_(rows[layer.layer_name])

    def _copied(self, builders: list[Any], block: int) -> _Rows | None:
        """The exact rows of a block, on the host; None: it has no copy."""
        if known := self._of(block):
            return known
        entries = [builder.windows.entries_of([block])[0] for builder in builders]
        if min(entries, default=-1) < 0:
            return None
        return {layer.layer_name: layer.impl.copies_of(entry, builder.windows.block_size).to("cpu", copy=True)
                for builder, entry in zip(builders, entries) for layer in builder.layers}


def watch_transfers(builder: Any, vllm_config: Any) -> None:
    """Gives `builder`, the class of metadata builders, its OffloadedWindows when vLLM's connector learns of the caches. A second call changes
    nothing. Raises ValueError if it is another connector."""
    if (name := vllm_config.kv_transfer_config.kv_connector) != MOVES:
        raise ValueError(f"the set {set_path()} cannot be served: vLLM chose {name} to move blocks; unset VLLM_USE_SIMPLE_KV_OFFLOAD")
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import get_offloading_group_ids
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker as Worker

    if "oscar_watches" in vars(Worker):
        return
    register = Worker.register_kv_caches

    def register_kv_caches(self: Any, kv_caches: dict[str, Tensor]) -> None:
        register(self, kv_caches)
        if set_path() is None:
            return
        layers, groups = self.vllm_config.compilation_config.static_forward_context, self.kv_cache_config.kv_cache_groups
        moved = []
        for group in (groups[i] for i in get_offloading_group_ids(self.kv_cache_config)):
            builders = [getattr(getattr(layers[name], "impl", None), "builder", None) for name in group.layer_names]
            moved.append((group.kv_cache_spec.block_size, [each for i, each in enumerate(builders) if each and each not in builders[:i]]))
        budget = int(self.spec.extra_config["cpu_bytes_to_use"]) // _SHARE // self.vllm_config.parallel_config.world_size
        self.oscar_windows = OffloadedWindows(moved, *(windows := served_set().windows), budget)
        builder.offloaded = weakref.ref(self.oscar_windows)
        _say(f"oscar_kv: blocks go to the host packed; the exact first {windows[0]} and last {windows[1]} tokens of prompts go with them and take up to "
             f"{2 * budget / 2**20:.1f} MiB more")

    Worker.register_kv_caches, Worker.oscar_watches = register_kv_caches, True
