# SPDX-License-Identifier: MIT
"""How calls on a GPU are timed, and the rate of a copy there."""
import time

import torch


def time_graph(run, per_graph, repeats=40):
    """Median microseconds of one call; run(i) enqueues the i-th of per_graph calls."""
    torch.cuda.synchronize()  # what the calls read was written in another stream
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for i in range(per_graph):
            run(i)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for i in range(per_graph):
                run(i)
        begin = time.monotonic()
        while time.monotonic() - begin < 0.03:  # after other work a GPU takes some 10 ms to its full speed
            graph.replay()
            stream.synchronize()
        times = []
        for _ in range(repeats):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record(stream)
            graph.replay()
            end.record(stream)
            stream.synchronize()
            times.append(begin.elapsed_time(end) * 1000 / per_graph)
    return sorted(times)[repeats // 2]


def copy_rate():
    a = torch.rand(1 << 30, device="cuda")
    b = torch.empty_like(a)
    return 8 * a.numel() / (time_graph(lambda i: torch.add(a, 1, out=b), 4, 10) * 1e6)
