# SPDX-License-Identifier: MIT
"""The C functions of oscar/int2_attention.h through ctypes, and how calls of them are timed."""
import ctypes
import time

import torch

DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}


class Rows(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("page_stride", ctypes.c_int64), ("token_stride", ctypes.c_int64),
                ("head_stride", ctypes.c_int64)]


class Table(ctypes.Structure):
    _fields_ = [("pages", ctypes.c_void_p), ("lengths", ctypes.c_void_p), ("pages_per_sequence", ctypes.c_int32),
                ("page_size", ctypes.c_int32), ("max_length", ctypes.c_int32)]


class Args(ctypes.Structure):
    _fields_ = ([(name, ctypes.c_int32) for name in
                 ("batch", "num_q_heads", "num_kv_heads", "head_dim", "group_size", "param_dtype")] +
                [("softmax_scale", ctypes.c_float), ("split_batch", ctypes.c_int32), ("q", ctypes.c_void_p)] +
                [(name, Rows) for name in ("k_codes", "v_codes", "k_params", "v_params")] + [("history", Table)] +
                [(name, Rows) for name in ("k_window", "v_window")] + [("window", Table)] +
                [("out", ctypes.c_void_p), ("lse", ctypes.c_void_p), ("workspace", ctypes.c_void_p),
                 ("workspace_bytes", ctypes.c_size_t)])


def open_library(path):
    library = ctypes.CDLL(path)
    library.oscar_int2_decode_workspace.restype = ctypes.c_size_t
    library.oscar_last_error.restype = ctypes.c_char_p
    return library


def call(library, name, args):
    """Enqueues in torch's current stream."""
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    status = getattr(library, name)(ctypes.byref(args), stream)
    if status != 0:
        raise RuntimeError(f"cuda error {status}: {library.oscar_last_error().decode()}")


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
