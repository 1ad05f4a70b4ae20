# SPDX-License-Identifier: MIT
"""What vLLM's attention backend launches in a decode step, that it waits for nothing, and which steps vLLM may capture: vllm_launches_test.py
[LaunchesTest.test_…]. On a GPU if OSCAR_TEST_DEVICE=cuda, where a CUDA graph of the step is replayed too; exit status 77 if there is none.
"""
import contextlib
import sys
import unittest
from unittest import mock

try:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    import vllm_backend_test as backends
    from vllm_one_layer import DEVICE, NAME, SPEC, Expected, Server, builder, coded_set, layers, rows_of, vllm_backend, vllm_fakes
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
        the tensors of the next step where those of this one were. What layers share is one operator of two launches, where the step
        before had the same requests; else it is torch's, in the same tensors."""
        self.by_kernels()

        def counted(*step):
            with Launches() as self.shared:
                return build(*step)

        self.serve(coded_set(sink=16))
        server, seen = Server(), {"a": 50, "b": 40}
        build, server.builder.build = server.builder.build, counted
        rows = {name: rows_of(70, ord(name)) for name in seen}
        server.step({name: [x[:seen[name]] for x in rows[name]] for name in seen}, dict.fromkeys(seen, 0))
        for count in (1, 3):
            places = []
            for follows in (False, True):
                if not follows:
                    server.builder.windows._former = frozenset()
                new = {name: [x[seen[name]:seen[name] + count] for x in rows[name]] for name in seen}
                call, _ = server.prepared(new, seen)
                call()  # what is kept for later calls
                with Launches() as found:
                    call()
                self.assertEqual(found.names & WAITING, set())
                self.assertEqual(len(found.launches), 4, found.launches)
                self.assertEqual(self.shared.launches == ["oscar.window_step"], follows, self.shared.launches)
                step = server.metadata
                places.append([x.data_ptr() for x in (step.slots, step.copies, *step.decoded.tables)])
                seen = {name: before + count for name, before in seen.items()}
            self.assertEqual(*places)

    def test_windows_are_restored_by_few_launches(self):
        """A cached prefix whose copies have made room makes its step wait for them."""
        self.by_kernels()
        self.serve(coded_set(sink=16))
        server = Server()
        slots, copies = torch.arange(40, device=DEVICE), torch.arange(5, 45, device=DEVICE)
        with Launches() as found:
            server.layer.impl.restore(server.cache, slots, copies, slots)
        self.assertEqual(len(found.launches), 3, found.launches)

    def test_whole_steps_are_captured_where_kernels_serve_all_their_tokens(self):
        def support(rotations, drafts):
            self.serve(rotations)
            found = layers()
            return vllm_backend.PackedMetadataBuilder.get_cudagraph_support(vllm_fakes.config_of(found, 40, 4, 64, drafts), SPEC).name

        self.by_kernels()
        for drafts, expected in ((0, "UNIFORM_BATCH"), (7, "UNIFORM_BATCH"), (8, "NEVER")):
            self.assertEqual(support(coded_set(sink=16), drafts), expected)
        self.assertEqual(support(coded_set(sink=20), 0), "NEVER")  # a sink that is no whole number of blocks

    def test_steps_of_the_same_requests_wait_for_nothing(self):
        """A request that comes, comes back or takes the place of another makes a step look for copies that it has not."""
        self.by_kernels()
        self.serve(coded_set(sink=16))
        server, rows, seen, waited = Server(), rows_of(200, 10), dict.fromkeys("abc", 0), []
        build = server.builder.build

        def watched(*step):
            with mock.patch.object(torch, "stack", side_effect=torch.stack) as asks:  # what the device is asked for
                found = build(*step)
            waited.append(asks.called)
            return found

        server.builder.build = watched
        for counts in ({"a": 50}, {"a": 1}, {"a": 1, "b": 20}, {"a": 3, "b": 1}, {"b": 1}, {"b": 1, "a": 1}, {"a": 1}, {"c": 5}, {"c": 1}):
            if "c" in counts and not seen["c"]:
                server.places["c"] = server.places.pop("a")
            server.step({name: [x[seen[name]:seen[name] + count] for x in rows] for name, count in counts.items()}, seen)
            seen = {name: before + counts.get(name, 0) for name, before in seen.items()}
        self.assertEqual(waited, [True, False, True, False, False, True, False, True, False])

    def test_layers_of_other_sizes_share_a_step(self):
        """Each size has a builder, which vLLM tells the same; a builder that is told the same again makes the step again."""
        self.serve(coded_set(sink=16))
        both = layers() | {"model.layers.3.other": layers()[NAME]}
        both["model.layers.3.other"].layer_name = "model.layers.3.other"
        first, second = (builder({name: layer for name, layer in both.items() if name != other}) for name, other in
                         ((NAME, "model.layers.3.other"), ("model.layers.3.other", NAME)))
        told = [vllm_fakes.step_of([0, 5], [5], [[1, 2]], [16, 17, 18, 19, 20], [0], [True], DEVICE) for _ in range(2)]
        made = [each.build(0, step) for step in told for each in (first, second)]
        self.assertIs(made[0], made[1])
        self.assertIs(made[2], made[3])
        self.assertIsNot(made[0], made[2])
        self.assertIs(first.windows, second.windows)
        self.assertIsNot(first.build(0, told[1]), made[2])

    def test_a_builder_before_the_cache_has_its_size(self):
        """While vLLM measures what graphs take it has no number of blocks, and all tables name the first one."""
        self.by_kernels()
        self.serve(coded_set(sink=16))
        found = layers()
        found[NAME].kv_cache = None
        made = builder(found, blocks=None)
        common = vllm_fakes.step_of(range(5), [1] * 4, [[0] * 12] * 4, [-1] * 4, range(4), [False] * 4, DEVICE)
        step = made.build(0, common)
        self.assertEqual((step.decoded.requests, step.prompts), (4, []))


class GraphTest(unittest.TestCase):
    serve, by_kernels = backends.BackendTest.serve, backends.BackendTest.by_kernels

    def test_a_graph_of_one_step_computes_the_next(self):
        self.by_kernels()
        rotations = coded_set(sink=16)
        for count in (1, 3):
            self.serve(rotations)
            server, rows = Server(), rows_of(100, 10)
            expected = Expected(rotations, rows)
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
                self.assertLess(float((call.output[:count].double() - want).norm() / want.norm()), 0.01, (count, seen))

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
    unittest.main()
