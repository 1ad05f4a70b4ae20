# SPDX-License-Identifier: MIT
"""What a GPU machine can do, measured through torch, and what a process takes of its GPU's memory."""
import contextlib
import statistics
import threading
import time

import torch

import provenance

GIB = 2**30


def event_seconds(work, repeats=7):
    """Median seconds that the GPU needs for work(), the first two times not counted."""
    times = []
    for _ in range(repeats + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1000)
    return statistics.median(times[2:])


def rates():
    """Upload from pinned memory, copy on the GPU (bytes read and written), fp64 matrix product."""
    source, target = torch.empty(GIB, dtype=torch.uint8, pin_memory=True), torch.empty(GIB, dtype=torch.uint8, device="cuda")
    source.fill_(1)
    other = torch.empty_like(target)
    a = torch.randn(8192, 8192, dtype=torch.float64, device="cuda")
    product = torch.empty_like(a)
    result = {"host_to_device_gb_per_s": GIB / 1e9 / event_seconds(lambda: target.copy_(source, non_blocking=True)),
              "hbm_copy_gb_per_s": 2 * GIB / 1e9 / event_seconds(lambda: other.copy_(target)),
              "fp64_gemm_tflop_per_s": 2 * 8192**3 / 1e12 / event_seconds(lambda: torch.mm(a, a, out=product))}
    del source, target, other, a, product
    torch.cuda.empty_cache()
    return result


@contextlib.contextmanager
def peak_gpu_memory():
    """Yields a list to which the end adds the bytes, at most, that the rest of the machine took of the GPU meanwhile."""
    peak, done = [], threading.Event()
    free = torch.cuda.mem_get_info()[0]
    least = [free]

    def watch():
        while not done.is_set():
            least[0] = min(least[0], torch.cuda.mem_get_info()[0])
            time.sleep(0.001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        done.set()
        watcher.join()
        peak.append(free - least[0])


def describe():
    return {**provenance.machine(), "torch": torch.__version__}
