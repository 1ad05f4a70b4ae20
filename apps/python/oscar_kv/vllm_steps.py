# SPDX-License-Identifier: MIT
"""Which tokens of a step of vLLM belong to prompts and were not computed before: for vllm_plugin.py.

Every attention backend builds its own metadata from CommonAttentionMetadata, which says of each request whether it is still in
its prompt. What a request has computed before is known from what vLLM's scheduler tells the workers in each step: prompts that
are computed again after a preemption do not count twice, and tokens that came from the prefix cache are counted apart.
Non-goals: speculative decoding, whose drafts are not in the scheduler's output.
"""
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

Guard = Callable[[Callable[[], None]], None]
MARK = "oscar_prompts"  # the attribute of a backend's metadata that has a step's Spans


class Span(NamedTuple):
    """Tokens of prompts that lie side by side in a step."""

    tokens: slice
    boundaries: Any  # int32 (prompts + 1), on the device, counted from the first token


@dataclass
class _Chunk:
    start: int  # of the request's tokens
    count: int
    seen: int  # tokens of the request that were computed before, from its first on


class Steps:
    """The requests of a server, by its scheduler."""

    def __init__(self) -> None:
        self.from_cache = 0  # tokens of prompts that were in the prefix cache when their request began
        self._seen: dict[str, int] = {}
        self._again: list[_Chunk] = []

    def begin(self, output: Any) -> None:
        """A step, by vLLM's SchedulerOutput."""
        for request in output.finished_req_ids:
            self._seen.pop(request, None)
        cached = output.scheduled_cached_reqs
        starts = dict(zip(cached.req_ids, cached.num_computed_tokens))
        for new in output.scheduled_new_reqs:
            starts[new.req_id] = new.num_computed_tokens
            if new.req_id not in self._seen:
                self.from_cache += new.num_computed_tokens
        chunks = [(request, _Chunk(starts[request], count, self._seen.get(request, 0)))
                  for request, count in output.num_scheduled_tokens.items()]
        self._again = [chunk for _, chunk in chunks if chunk.start < chunk.seen]
        for request, chunk in chunks:
            self._seen[request] = max(chunk.seen, chunk.start + chunk.count)

    def _known(self, start: int, count: int) -> int:
        """How many of these tokens of a request were computed before. Rows do not tell whose they are; two requests of one step
        that begin and end at the same places can be taken for each other."""
        for chunk in self._again:
            if (chunk.start, chunk.count) == (start, count):
                self._again.remove(chunk)
                return min(chunk.seen - start, count)
        return 0

    def spans(self, common: Any) -> list[Span]:
        """Of a step's CommonAttentionMetadata. Raises ValueError if it does not tell prompts."""
        import torch

        prefilling = getattr(common, "is_prefilling", None)
        if prefilling is None:
            raise ValueError("this version of vLLM does not tell prompts from decode steps (CommonAttentionMetadata.is_prefilling); "
                             "use vLLM 0.32, or oscar fit --model")
        starts, rows = common.query_start_loc_cpu.tolist(), prefilling.tolist()
        if self._again:
            lengths = common.seq_lens_cpu_upper_bound
            lengths = (common.seq_lens if lengths is None else lengths).tolist()
        runs: list[list[int]] = []  # ends of prompts, after the begin of the first
        for i, (begin, end) in enumerate(zip(starts, starts[1:])):
            if not rows[i]:
                continue
            if self._again:
                begin += self._known(lengths[i] - (end - begin), end - begin)
            if begin == end:
                continue
            if runs and runs[-1][-1] == begin:
                runs[-1].append(end)
            else:
                runs.append([begin, end])
        device = common.query_start_loc.device
        return [Span(slice(run[0], run[-1]), torch.tensor([at - run[0] for at in run], dtype=torch.int32, device=device))
                for run in runs]


def builder_of(backend: Any, steps: Steps, guard: Guard) -> type:
    """The backend's builder of metadata, whose metadata also have the Spans of their step; guard(work): runs it, come what may."""
    original: Any = backend.get_builder_cls()

    class ObservedBuilder(original):
        def build(self, common_prefix_len: int, common_attn_metadata: Any, *args: Any, **kwargs: Any) -> Any:
            metadata = super().build(common_prefix_len, common_attn_metadata, *args, **kwargs)
            guard(lambda: setattr(metadata, MARK, steps.spans(common_attn_metadata)))
            return metadata

    return ObservedBuilder


def watch_scheduler(steps: Steps, guard: Guard) -> None:
    """Tells `steps` of every step that a worker of this process is given. A second call changes nothing."""
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    if "oscar_watches" in vars(WorkerWrapperBase):
        return
    execute = WorkerWrapperBase.execute_model

    def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        guard(lambda: steps.begin(scheduler_output))
        return execute(self, scheduler_output, *args, **kwargs)

    WorkerWrapperBase.execute_model = execute_model
    WorkerWrapperBase.oscar_watches = True
