# SPDX-License-Identifier: MIT
"""torch.ops.oscar.observe and its kin on the CPU: observe_ops_test.py [ObserveOpsTest.test_…]"""
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

try:
    import torch
    from safetensors import safe_open
except ImportError as missing:
    print(f"skipped: {missing}; run scripts/setup.sh --tests")
    sys.exit(77)

torch.ops.load_library(os.environ["OSCAR_TORCH_LIBRARY"])
ops = torch.ops.oscar
Q_HEADS, HEADS, DIM, VALUE_DIM = 6, 2, 32, 16


def rows(tokens, dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    shapes = (tokens, Q_HEADS, DIM), (tokens, HEADS, DIM), (tokens, HEADS, VALUE_DIM)
    return [(torch.randn(shape) + 0.3).to(dtype) for shape in shapes]


def gram(x, heads=HEADS):
    x = x.double().unflatten(1, (heads, -1)).transpose(0, 1).flatten(1, 2)
    return x.mT @ x


def sums_of(q, k, v):
    """Everything that a file of statistics says of these rows, by its definition."""
    group = Q_HEADS // HEADS
    form = gram(q) / (len(k) * group)
    weight = torch.einsum("thi,hij,thj->ht", k.double(), form, k.double())
    return {"qqt": gram(q), "ktk": gram(k), "vtv": gram(v), "keys": k.double().sum(0).flatten(), "qqt.total":
            torch.full((HEADS,), len(k) * group, dtype=torch.float64), "sst.total": weight.sum(1),
            "sst": torch.einsum("ht,thi,thj->hij", weight, v.double(), v.double())}


class ObserveOpsTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="oscar-observe-")))

    def saved(self, state, name="x.safetensors", **options):
        """{"qqt": sums, "qqt.total": …} of layer 0."""
        ops.save(state, str(self.folder / name), **options)
        with safe_open(self.folder / name, "pt") as file:
            return {key.removeprefix("layer_0.").removesuffix(".sums"): file.get_tensor(key) for key in file.keys()}

    def assert_sums(self, state, expected, tolerance=1e-12):
        saved = self.saved(state)
        for name, value in expected.items():
            error = float((saved[name] - value).norm() / value.norm())
            self.assertLess(error, tolerance, name)

    def test_sums_of_every_type_and_in_chunks(self):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            q, k, v = rows(1500, dtype)
            state = ops.new_state()
            for chunk in (slice(0, 1100), slice(1100, 1101), slice(1101, 1500)):  # a chunked prefill
                ops.observe(state, 0, q[chunk], k[chunk], v[chunk])
            self.assert_sums(state, sums_of(q, k, v))
            with torch.inference_mode():  # a state made outside can be used inside, and the reverse
                ops.reset(state)
                ops.observe(state, 0, q, k, v)
            ops.observe(state, 0, q, k, v)
            self.assert_sums(state, sums_of(*(torch.cat([x, x]) for x in (q, k, v))))

    def test_packed_and_padded_batches_count_real_tokens_only(self):
        q, k, v = rows(40)
        packed = [torch.cat([torch.full_like(x[:3], torch.nan), x, torch.full_like(x[:9], torch.nan)])
                  for x in (q, k, v)]
        state = ops.new_state()
        ops.observe(state, 0, *packed, torch.tensor([3, 20, 43], dtype=torch.int32))
        self.assert_sums(state, sums_of(q, k, v))
        mask = torch.ones(2, 30, dtype=torch.bool)
        mask[0, :15], mask[1, 25:] = False, False  # padded left, and right
        padded = [torch.full((2, 30, *x.shape[1:]), torch.nan) for x in (q, k, v)]
        for to, x in zip(padded, (q, k, v)):
            to[mask] = x
        state = ops.new_state()
        strided = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in padded]  # as transformers has them
        ops.observe(state, 0, *strided, mask=mask)
        self.assert_sums(state, sums_of(q, k, v))

    def test_parts_of_tensors_that_gradients_flow_through(self):
        q, k, v = (torch.cat([x, x], -1).requires_grad_() for x in rows(90))
        parts = [x[20:60, :, :x.shape[2] // 2] for x in (q, k, v)]
        state = ops.new_state()
        ops.observe(state, 0, *parts)
        self.assert_sums(state, sums_of(*(x.detach() for x in parts)))

    def test_query_scale_is_one_of_queries(self):
        q, k, v = rows(100)
        state = ops.new_state()
        ops.observe(state, 0, q, k, v, query_scale=0.7)
        self.assert_sums(state, sums_of(q.double() * 0.7, k, v))

    def line(self, state, first, last):
        """Tokens whose score weight is their number."""
        number = torch.arange(first, last, dtype=torch.float32).reshape(-1, 1, 1)
        ops.observe(state, 0, torch.ones_like(number), number.sqrt(), torch.ones_like(number))

    def assert_uniform(self, state, last, tolerance):
        """The sum of numbers below `last` is known, and estimated where values of one are weighted by it."""
        saved = self.saved(state)
        total = last * (last - 1) / 2
        self.assertLess(abs(float(saved["sst.total"]) / total - 1), 1e-6)
        error = abs(float(saved["sst"].flatten()) / total - 1)
        self.assertLess(error, tolerance)
        self.assertGreater(error, 1e-6)  # or it is no sample

    def test_a_full_sample_is_uniform(self):
        # The mean of n = 2000 uniform numbers is off by 0.58 / sqrt(n) = 1.3 %.
        states = []
        for seed, calls in ((0, [0, 100, 1900, 2500, 30000]), (1, [0, 30000]), (2, [*range(0, 3001), 30000])):
            state = ops.new_state(reservoir=2000, seed=seed)
            for first, last in zip(calls, calls[1:]):
                self.line(state, first, last)
            self.assert_uniform(state, 30000, 0.04)
            states.append(state)
        more = ops.new_state(reservoir=2000, seed=4)
        self.line(more, 30000, 60000)
        ops.merge(states[0], more)
        self.assert_uniform(states[0], 60000, 0.04)
        self.line(states[0], 60000, 90000)  # merged states go on
        self.assert_uniform(states[0], 90000, 0.04)

    def test_a_sample_comes_within_a_percent_of_all_rows(self):
        # Queries and keys of few directions, values that go with the keys: scores and values hang together.
        torch.manual_seed(0)
        directions = torch.randn(8, DIM)
        k = (torch.randn(20000, HEADS, 8) * torch.linspace(0.2, 2, 8)) @ directions
        v = k[..., :VALUE_DIM] * k.norm(dim=-1, keepdim=True) + torch.randn(20000, HEADS, VALUE_DIM)
        q = torch.randn(20000, Q_HEADS, 8) @ directions
        state = ops.new_state(reservoir=4000)
        ops.observe(state, 0, q, k, v)
        exact, sampled = sums_of(q, k, v)["sst"], self.saved(state)["sst"]
        for all_rows, some in zip(exact, sampled):
            best, found = (torch.linalg.eigh(each)[1] for each in (all_rows, some))
            gain = [(basis.T @ all_rows @ basis).diagonal().log().mean() for basis in (best, found)]
            self.assertLess(float(gain[1] - gain[0]), 0.01)  # of the variances' geometric mean
            self.assertGreater(float((some - all_rows).norm() / all_rows.norm()), 1e-3)

    def test_merged_states_are_those_of_all_data(self):
        q, k, v = rows(300)
        first, second, empty = ops.new_state(), ops.new_state(seed=1), ops.new_state()
        ops.observe(first, 0, q[:120], k[:120], v[:120])
        ops.observe(second, 0, q[120:], k[120:], v[120:])
        for part in (first, second):
            ops.merge(empty, part)
        self.assert_sums(empty, sums_of(q, k, v))
        with self.assertRaisesRegex(RuntimeError, "merged with itself"):
            ops.merge(empty, empty)
        other = ops.new_state(reservoir=5)
        ops.observe(other, 0, q, k, v)
        with self.assertRaisesRegex(RuntimeError, "samples of two states differ.*layer 0"):
            ops.merge(empty, other)
        with self.assertRaisesRegex(RuntimeError, "different KV heads"):
            ops.merge(empty, ops.new_state(first_kv_head=2, total_kv_heads=4))

    def test_refuses_shapes_devices_and_types_by_name(self):
        q, k, v = rows(10)
        state = ops.new_state()
        ops.observe(state, 3, q, k, v)

        def refused(expected, *arguments, layer=3, **options):
            with self.assertRaisesRegex(RuntimeError, f"layer {layer}: .*{expected}"):
                ops.observe(state, layer, *arguments, **options)

        refused("v .*are of different tokens", q, k, v[:9])
        refused("q is on meta, but k on cpu", q.to("meta"), k, v)
        refused("q is BFloat16, but k Float", q.bfloat16(), k, v)
        refused("k is Double", q.double(), k.double(), v.double())
        refused("rows of q have 31 channels, those of k 32", q[..., :31], k, v)
        refused("5 heads of q, 2 of k", q[:, :5], k, v)
        refused("q is .6, 32.", q[0], k, v)
        refused("k is bfloat16, but was float32 before", q.bfloat16(), k.bfloat16(), v.bfloat16())
        refused("other heads or dimensions than before", q[:, :4], k, v)
        refused("cu_seqlens is Float", q, k, v, torch.zeros(2))
        refused("give a padded batch a mask", q[None], k[None], v[None], torch.tensor([0, 10]))
        refused("mask is Bool .9.", q, k, v, mask=torch.ones(9, dtype=torch.bool))
        with self.assertRaisesRegex(RuntimeError, "begin at 3"):
            ops.observe(ops.new_state(first_kv_head=3, total_kv_heads=4), 0, q, k, v)

    def test_save_refuses_nothing_and_nan(self):
        state = ops.new_state()
        with self.assertRaisesRegex(RuntimeError, "no layer was observed"):
            self.saved(state)
        q, k, v = rows(10)
        ops.observe(state, 7, q, k, v / 0)
        with self.assertRaisesRegex(RuntimeError, "NaN or Inf .layer 7"):
            self.saved(state)
        ops.reset(state)
        with self.assertRaisesRegex(RuntimeError, "no tokens were observed .layer 7"):
            self.saved(state)

    def test_a_state_is_known_by_what_new_state_returned(self):
        q, k, v = rows(10)
        state = ops.new_state()
        copy = state.clone()
        ops.observe(copy, 0, q, k, v)  # as torch.compile would have it
        self.assert_sums(state, sums_of(q, k, v))
        del state
        for what in (copy, ops.new_state() + 100):
            with self.assertRaisesRegex(RuntimeError, "there is no state"):
                ops.observe(what, 0, q, k, v)
        for what in (torch.zeros(1), torch.zeros(2, dtype=torch.int64)):
            with self.assertRaisesRegex(RuntimeError, "not what torch.ops.oscar.new_state returned"):
                ops.reset(what)

    def fit(self, *files, exit_code=0):
        out = self.folder / f"set{len(list(self.folder.iterdir()))}"
        done = subprocess.run([os.environ["OSCAR_BINARY"], "fit", "-q", "--stats",
                               *(str(self.folder / f"{name}.safetensors") for name in files), "--out", str(out)],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, exit_code, done.stderr)
        return done.stderr if exit_code else (out / "rotations.h5").read_bytes()

    def test_shards_of_ranks_make_the_set_of_the_whole(self):
        torch.manual_seed(0)
        q, k, v = torch.randn(500, 8, 16), torch.randn(500, 4, 16), torch.randn(500, 4, 16)
        data = '{"data_sha256": "' + 64 * "a" + '", "tokens": 500, "sequences": 1}'

        def save(name, first, last, total=4):
            state = ops.new_state(first_kv_head=first, total_kv_heads=total)
            for layer in (0, 2):
                heads = slice(first, last)
                ops.observe(state, layer, q[:, 2 * first:2 * last] * (layer + 1), k[:, heads], v[:, heads])
            self.saved(state, name + ".safetensors", data=data, expected_layers=[0, 2])

        save("whole", 0, 4, 0), save("a", 0, 1), save("b", 1, 3), save("c", 3, 4)
        self.assertEqual(self.fit("c", "a", "b"), self.fit("whole"))
        self.assertIn("KV heads 1 to 2 are missing", self.fit("c", "a", exit_code=1))
        self.assertIn("of 4 KV heads only 0 to 2 are here", self.fit("b", "a", exit_code=1))
        save("again", 1, 2)
        self.assertIn("two ranks with the same KV heads", self.fit("a", "again", "b", "c", exit_code=1))

    def test_fit_names_a_layer_that_was_never_observed(self):
        state = ops.new_state()
        for layer in (0, 2):
            ops.observe(state, layer, *rows(100))
        self.saved(state, "x.safetensors", expected_layers=[0, 1, 2])
        self.assertIn("layer 1 was never observed", self.fit("x", exit_code=1))


if __name__ == "__main__":
    unittest.main()
