# SPDX-License-Identifier: MIT
"""What a layer of vLLM's attention backend launches in a decode step, and that it waits for nothing: vllm_launches_test.py
[LaunchesTest.test_…]. On a GPU if OSCAR_TEST_DEVICE=cuda, where a CUDA graph of the step is replayed too; exit status 77 if there is none.
"""
import contextlib
import sys
import unittest
from unittest import mock

try:
    import torch
    from oscar_kv import int2_side
    from torch.utils._python_dispatch import TorchDispatchMode
    import vllm_backend_test as backends
    from vllm_backend_test import DEVICE, Expected, Server, coded_set, rows_of, set_of
except ImportError as missing:
    print(f"skipped: {missing}; run scripts/setup.sh --tests")
    sys.exit(77)

# Operators whose result, or its shape, the processor needs to know before it goes on.
WAITING = {f"aten.{name}" for name in ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "equal", "is_nonzero",
                                       "repeat_interleave", "bincount")} | {"a mask as an index"}


class Launches(TorchDispatchMode):
    """Counts operators that are launches on CUDA: those that compute, not those that look at a tensor or make room. What the
    references of our operators compute on the CPU is theirs, and one launch."""

    LOOKS = {f"aten.{name}" for name in ("view", "_unsafe_view", "transpose", "slice", "select", "unsqueeze", "expand", "split", "split_with_sizes",
                                         "empty", "empty_like", "new_empty", "as_strided", "unbind", "alias", "detach", "permute")}

    def __init__(self):
        super().__init__()
        self.names, self.launches = set(), []

    def __torch_dispatch__(self, operator, types, arguments=(), keywords=None):
        name = str(operator.overloadpacket)
        self.names.add(name)
        if name in ("aten.index", "aten.index_put_") and any(x is not None and x.dtype == torch.bool for x in arguments[1]):
            self.names.add("a mask as an index")
        if name not in self.LOOKS:
            self.launches.append(name)
        with torch._C._DisableTorchDispatch() if name.startswith("oscar.") else contextlib.nullcontext():
            return operator(*arguments, **(keywords or {}))


class LaunchesTest(unittest.TestCase):
    serve, by_kernels = backends.BackendTest.serve, backends.BackendTest.by_kernels

    def test_decode_steps_launch_little_and_wait_for_nothing(self):
        """What a layer computes in a step of one token, and of three, of each request, as on CUDA: a CUDA graph can hold it, and finds
        the tensors of the next step where those of this one were."""
        self.by_kernels()
        place = int2_side.Int2Side.place

        def place_as_on_cuda(side, *shape):
            place(side, *shape)
            side.rotation, side.read_rotation = side.rotation.bfloat16(), side.read_rotation.bfloat16()

        products = mock.patch.object(int2_side.Int2Side, "place", place_as_on_cuda)
        products.start()
        self.addCleanup(products.stop)
        for rotations, launches in ((coded_set(sink=16), 9), (set_of(sink=16), 10)):
            self.serve(rotations)
            server, seen = Server(), {"a": 50, "b": 40}
            rows = {name: rows_of(70, ord(name)) for name in seen}
            server.step({name: [x[:seen[name]] for x in rows[name]] for name in seen}, dict.fromkeys(seen, 0))
            for count in (1, 3):
                places = []
                for _ in range(2):
                    new = {name: [x[seen[name]:seen[name] + count] for x in rows[name]] for name in seen}
                    call, _ = server.prepared(new, seen)
                    call()  # what is kept for later calls
                    with Launches() as found:
                        call()
                    self.assertEqual(found.names & WAITING, set())
                    self.assertEqual(len(found.launches), launches, found.launches)
                    step = server.metadata
                    places.append([x.data_ptr() for x in (step.slots, step.copies, *step.decoded.tables)])
                    seen = {name: before + count for name, before in seen.items()}
                self.assertEqual(*places)


class GraphTest(unittest.TestCase):
    serve, by_kernels = backends.BackendTest.serve, backends.BackendTest.by_kernels

    def test_a_graph_of_one_step_computes_the_next(self):
        self.by_kernels()
        for rotations in (coded_set(sink=16), set_of(sink=16)):
            for count in (1, 3):
                self.serve(rotations)
                server, rows = Server(), rows_of(100, 10)
                expected = Expected(rotations, rows, by_kernels=True)
                server.step({"a": [x[:50] for x in rows]}, {"a": 0})
                call, graph = None, torch.cuda.CUDAGraph()
                for seen in range(50, 95, count):
                    new = [x[seen:seen + count] for x in rows]
                    if call is None:
                        new = [x.clone() for x in new]
                        call, _ = server.prepared({"a": new}, {"a": seen})
                        call()
                        torch.cuda.synchronize()
                        with torch.cuda.graph(graph):
                            call()
                    else:
                        server.prepared({"a": new}, {"a": seen})
                    for place, x in zip(call.inputs, new):
                        place[:count].copy_(x)
                    graph.replay()
                    want = expected.step(seen, count)
                    self.assertLess(float((call.output[:count].double() - want).norm() / want.norm()), 0.01, (rotations.manifest, count, seen))


    def test_steps_of_the_same_requests_do_not_wait_for_the_device(self):
        self.serve(coded_set(sink=16))
        server, rows = Server(), rows_of(100, 10)
        for seen, count in ((0, 50), (50, 1)):
            server.step({"a": [x[seen:seen + count] for x in rows]}, {"a": seen})
        step, build = server.builder, server.builder.build

        def watched(*arguments):
            torch.cuda.set_sync_debug_mode("error")
            try:
                return build(*arguments)
            finally:
                torch.cuda.set_sync_debug_mode("default")

        step.build = watched
        for seen in (51, 52):
            server.step({"a": [x[seen:seen + 1] for x in rows]}, {"a": seen})
        with self.assertRaisesRegex(RuntimeError, "synchroniz"):
            server.step({"b": [x[:1] for x in rows]}, {"b": 0})


if DEVICE != "cuda":  # a test of the GPU alone is none of the CPU's
    del GraphTest

if __name__ == "__main__":
    if DEVICE == "cuda" and not torch.cuda.is_available():
        print("skipped: needs an NVIDIA GPU")
        sys.exit(77)
    unittest.main()
