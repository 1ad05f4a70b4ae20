# SPDX-License-Identifier: MIT
"""torch.ops.oscar.observe on a GPU against the same rows on the CPU, which is exact: observe_cuda_test.py [ObserveCudaTest.test_…]
Needs torch alone. Exit status 77 without a GPU."""
import json
import os
import sys
import tempfile
import unittest
from pathlib import Path

import torch

torch.ops.load_library(os.environ["OSCAR_TORCH_LIBRARY"])
TOLERANCE = 1e-6  # of the norm: fp32 sums over 64 rows
TYPES = {"F64": torch.float64}


def read(path):
    """{name: tensor} of a safetensors file."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8:8 + size])
    header.pop("__metadata__")
    return {name: torch.frombuffer(bytearray(content[8 + size:][slice(*each["data_offsets"])]),
                                   dtype=TYPES[each["dtype"]]).reshape(each["shape"]) for name, each in header.items()}


def saved(state):
    with tempfile.TemporaryDirectory() as folder:
        torch.ops.oscar.save(state, str(Path(folder, "x.safetensors")))
        return read(Path(folder, "x.safetensors"))


def assert_same(name, gpu, cpu, tolerance=TOLERANCE):
    gpu, cpu = saved(gpu), saved(cpu)
    assert gpu.keys() == cpu.keys(), (name, gpu.keys() ^ cpu.keys())
    worst = 0.0
    for key, expected in cpu.items():
        error = float((gpu[key] - expected).norm() / expected.norm())
        worst = max(worst, error)
        assert error < tolerance, f"{name}, {key}: {error:.2e}"
    print(f"{name:60} worst relative error {worst:.1e}", flush=True)


def rows(shape, heads, dims, dtype):
    """q, k, v as transformers has them: heads before tokens in memory, not in the shape."""
    out = []
    for count, dim in zip((heads[0], heads[1], heads[1]), (dims[0], dims[0], dims[1])):
        x = torch.randn(*shape[:-1], count, shape[-1], dim, device="cuda") + 0.2
        out.append(x.to(dtype).transpose(-2, -3))
    return out


def compare(name, calls, **options):
    """calls: arguments of observe, on the GPU. Both see the same samples, so that sst must agree too."""
    states = [torch.ops.oscar.new_state(**options) for _ in range(2)]
    for device, state in zip(("cuda", "cpu"), states):
        for tensors, more in calls:
            moved = [x.to(device) for x in tensors]
            torch.ops.oscar.observe(state, 0, *moved, **{key: value.to(device) if torch.is_tensor(value) else value
                                                         for key, value in more.items()})
    assert_same(name, *states)


class ObserveCudaTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)

    def test_shapes_and_types(self):
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            for heads, dims in (((8, 2), (128, 128)), ((4, 4), (64, 64)), ((16, 2), (256, 128)), ((6, 1), (96, 32)),
                                ((5, 5), (40, 24)), ((8, 8), (192, 128))):
                calls = [(rows((tokens,), heads, dims, dtype), {}) for tokens in (1, 700, 63, 1500)]
                compare(f"{dtype}, heads {heads}, dims {dims}", calls, reservoir=500, seed=7)

    def test_what_counts(self):
        for integers in (torch.int32, torch.int64):
            packed = rows((900,), (8, 2), (128, 64), torch.bfloat16)
            for x in packed:
                x[:5], x[800:] = torch.nan, torch.nan
            boundaries = torch.tensor([5, 300, 301, 800], dtype=integers, device="cuda")
            compare(f"packed, {integers}", [(packed, {"cu_seqlens": boundaries})], reservoir=300)
        padded = rows((3, 400), (8, 2), (128, 128), torch.bfloat16)
        mask = torch.rand(3, 400, device="cuda") < 0.7
        for x in padded:
            x[~mask] = torch.nan
        compare("padded", [(padded, {"mask": mask, "query_scale": 0.6}), (padded, {"mask": mask})], reservoir=300)
        expanded = torch.ones(1, 400, dtype=torch.bool, device="cuda").expand(3, 400)
        plain = rows((3, 400), (8, 2), (128, 128), torch.bfloat16)
        compare("a mask without strides", [(plain, {"mask": expanded})])

    def test_graph_and_steady_state(self):
        observe = torch.ops.oscar.observe
        gpu, cpu = torch.ops.oscar.new_state(reservoir=2000), torch.ops.oscar.new_state(reservoir=2000)
        q, k, v = rows((512,), (8, 2), (128, 128), torch.bfloat16)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            observe(gpu, 0, q, k, v)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                observe(gpu, 0, q, k, v)
            for _ in range(9):
                graph.replay()
            stream.synchronize()
            torch.cuda.set_sync_debug_mode("error")
            before = torch.cuda.memory_stats()["allocation.all.allocated"]
            observe(gpu, 0, q, k, v)
            assert torch.cuda.memory_stats()["allocation.all.allocated"] == before, "observe allocates"
            torch.cuda.set_sync_debug_mode("default")
            stream.synchronize()
        torch.cuda.synchronize()
        for _ in range(11):
            observe(cpu, 0, q.cpu(), k.cpu(), v.cpu())
        assert_same("a graph, replayed 9 times", gpu, cpu)
        torch.ops.oscar.reset(gpu), torch.ops.oscar.reset(cpu)
        graph.replay()  # addresses are those of before
        torch.cuda.synchronize()
        observe(cpu, 0, q.cpu(), k.cpu(), v.cpu())
        assert_same("the same graph after reset", gpu, cpu)
        other = torch.ops.oscar.new_state(reservoir=2000)
        with torch.cuda.stream(stream), self.assertRaisesRegex(RuntimeError, "before a CUDA graph is captured"):
            with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):
                _ = q + 1  # torch warns of an empty graph
                observe(other, 0, q, k, v)

    def test_devices(self):
        q, k, v = rows((10,), (8, 2), (128, 128), torch.bfloat16)
        state = torch.ops.oscar.new_state()
        torch.ops.oscar.observe(state, 4, q, k, v)
        for expected, tensors in (("layer 4: q is on cpu, but k on cuda", (q.cpu(), k, v)),
                                  ("layer 4: k is on cpu, but this layer was on cuda", (q.cpu(), k.cpu(), v.cpu()))):
            with self.assertRaisesRegex(RuntimeError, expected):
                torch.ops.oscar.observe(state, 4, *tensors)


if __name__ == "__main__":
    if not torch.cuda.is_available():
        print("skipped: needs an NVIDIA GPU")
        sys.exit(77)
    unittest.main()
