# SPDX-License-Identifier: MIT
"""torch.ops.oscar, as a server loads it: int2_ops_test.py LIBRARY shapes|attention.

shapes     without a GPU: the library loads, tells its schemas and shapes, and refuses tensors of the CPU
attention  on a GPU: rows that int2_pack wrote, and a window, read by int2_decode, against fp64; in a CUDA graph; and what
           both refuse. Exit status 77 without a GPU.
"""
import sys

import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

PAGE, HEADS, KV_HEADS, DIM = 16, 8, 2, 128


def expect_error(expected, call):
    try:
        call()
    except (RuntimeError, NotImplementedError) as error:
        assert expected in str(error), f"\"{expected}\" is not in: {error}"
    else:
        raise AssertionError(f"no error that says \"{expected}\"")


class Cache:
    """Sequences of some lengths in shuffled pages, the first tokens INT2, the last `window` of each bfloat16."""

    def __init__(self, device, lengths, window, groups=1, param_dtype=torch.float32):
        pages_of = -(-max(lengths) // PAGE)
        self.pages = torch.arange(len(lengths) * pages_of, dtype=torch.int32, device=device)
        if device == "cuda":
            self.pages = self.pages[torch.randperm(len(self.pages), device=device)].contiguous()
        self.pages = self.pages.reshape(len(lengths), pages_of)
        self.lengths = torch.tensor(lengths, dtype=torch.int32, device=device)
        self.window_lengths = torch.full_like(self.lengths, window)
        self.window_pages = torch.arange(len(lengths), dtype=torch.int32, device=device).reshape(-1, 1)
        shape = (self.pages.numel(), PAGE, KV_HEADS)
        self.codes = [torch.zeros(*shape, DIM // 4, dtype=torch.uint8, device=device) for _ in range(2)]
        self.params = [torch.zeros(*shape, groups, 2, dtype=param_dtype, device=device) for _ in range(2)]
        self.window = [torch.randn(len(lengths), PAGE, KV_HEADS, DIM, device=device).bfloat16() for _ in range(2)]
        self.q = torch.randn(len(lengths), HEADS, DIM, device=device).bfloat16()

    def write(self, **options):
        for b, length in enumerate(self.lengths.tolist()):
            at = torch.arange(length, device=self.q.device)
            slots = (self.pages[b][at // PAGE] * PAGE + at % PAGE).int()
            for codes, params in zip(self.codes, self.params):
                rows = torch.randn(length, KV_HEADS, DIM, device=self.q.device).bfloat16()
                torch.ops.oscar.int2_pack(rows, slots, codes, params, **options)

    def attend(self, **options):
        return torch.ops.oscar.int2_decode(self.q, *self.codes, *self.params, self.pages, self.lengths, *self.window,
                                           self.window_pages, self.window_lengths, **options)

    def decoded(self, side, b):
        """(KV heads, tokens, d) in fp64: history, then window."""
        pages = self.pages[b].long()
        packed = self.codes[side][pages].flatten(0, 1)[:self.lengths[b]]
        params = self.params[side][pages].flatten(0, 1)[:self.lengths[b]].double()
        codes = torch.cat([packed >> shift & 3 for shift in (0, 2, 4, 6)], -1).double()
        codes = codes.unflatten(-1, (params.shape[2], -1))
        rows = ((codes - params[..., 1:]) * params[..., :1]).flatten(2)
        return torch.cat([rows, self.window[side][b, :self.window_lengths[b]].double()]).transpose(0, 1)

    def reference(self):
        out = []
        for b in range(len(self.lengths)):
            q = self.q[b].double().unflatten(0, (KV_HEADS, -1))
            scores = q @ self.decoded(0, b).transpose(1, 2) * DIM**-0.5
            out.append((scores.softmax(-1) @ self.decoded(1, b)).flatten(0, 1))
        return torch.stack(out)


def shapes():
    cache = Cache("meta", [40, 7], 5)
    out, lse = cache.attend()
    assert out.shape == (2, HEADS, DIM) and lse.shape == (2, HEADS) and out.dtype == lse.dtype == torch.float32
    torch.ops.oscar.int2_pack(cache.q, cache.lengths, cache.codes[0], cache.params[0], grid="lsq")
    assert "Tensor(a!) codes" in str(torch.ops.oscar.int2_pack.default._schema)
    expect_error("CPU", Cache("cpu", [40, 7], 5).attend)
    check_symbols()


def check_symbols():
    """Sizes that torch.compile does not know are passed on as symbols."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    cache = Cache("cpu", [40, 7, 3], 5)
    dynamic = StatelessSymbolicContext([DimDynamic.DYNAMIC, DimDynamic.STATIC, DimDynamic.STATIC])
    cache.q = mode.from_tensor(cache.q, symbolic_context=dynamic)
    for name in ("pages", "lengths", "window_lengths", "window_pages"):
        setattr(cache, name, mode.from_tensor(getattr(cache, name), static_shapes=True))
    for name in ("codes", "params", "window"):
        setattr(cache, name, [mode.from_tensor(each, static_shapes=True) for each in getattr(cache, name)])
    with mode:
        out, lse = cache.attend()
    assert isinstance(lse.shape[0], torch.SymInt) and out.shape[0] is not None and lse.shape[1] == HEADS, (out.shape, lse.shape)
    assert out.shape == cache.q.shape and out.dtype == lse.dtype == torch.float32 and lse.is_contiguous()


def attention():
    for groups, param_dtype, options in ((1, torch.float32, {"clip_ratio": 0.96}), (2, torch.float16, {"grid": "lsq"}),
                                         (4, torch.bfloat16, {})):
        cache = Cache("cuda", [500, 33, 1], 9, groups, param_dtype)
        rotation = torch.linalg.qr(torch.randn(KV_HEADS, DIM, DIM, device="cuda"))[0].bfloat16().contiguous()
        cache.write(rotation=rotation, **options)
        out, _ = cache.attend()
        expected = cache.reference()
        error = float((out - expected).norm() / expected.norm())
        assert error < 2e-3, error
        assert all(int(codes.count_nonzero()) > 0 for codes in cache.codes)
        check_graph(cache, out)
    check_clip_ranks()
    check_refusals(cache)


def check_clip_ranks():
    """Heads with ranks of their own have the bytes of each packed alone by its ratio, rotated or not."""
    ratios, heads = [0.0, 0.5, 0.92, 1.0], 4
    x, slots = torch.randn(70, heads, DIM, device="cuda").bfloat16(), torch.randperm(80, device="cuda")[:70].int()
    ranks = torch.tensor([min(int(ratio * DIM), DIM - 1) if ratio > 0 else -1 for ratio in ratios], dtype=torch.int32, device="cuda")
    for rotation in (None, torch.linalg.qr(torch.randn(heads, DIM, DIM, device="cuda"))[0].bfloat16().contiguous()):
        pools = [(torch.zeros(5, 16, heads, DIM // 4, dtype=torch.uint8, device="cuda"), torch.zeros(5, 16, heads, 1, 2, device="cuda"))
                 for _ in range(2)]
        torch.ops.oscar.int2_pack(x, slots, *pools[0], rotation=rotation, clip_ranks=ranks)
        for head, ratio in enumerate(ratios):
            own = slice(head, head + 1)
            torch.ops.oscar.int2_pack(x[:, own], slots, *(pool[:, :, own] for pool in pools[1]), clip_ratio=ratio,
                                      rotation=None if rotation is None else rotation[own])
        for found, expected in zip(*pools):
            assert torch.equal(found, expected), int((found != expected).sum())


def check_graph(cache, expected):
    workspace = torch.zeros(1 << 22, dtype=torch.uint8, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        cache.attend(workspace=workspace)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            out, _ = cache.attend(workspace=workspace)
        out.zero_()
        graph.replay()
        graph.replay()
        stream.synchronize()
    assert torch.equal(out, expected)


def attend_with(cache, name, value):
    """Attends with another value of one of the cache's members, which is put back."""
    before = getattr(cache, name)
    setattr(cache, name, value)
    try:
        cache.attend()
    finally:
        setattr(cache, name, before)


def check_refusals(cache):
    expect_error("q is ", lambda: attend_with(cache, "q", cache.q.float()))
    expect_error("q is not contiguous", lambda: attend_with(cache, "q", cache.q.transpose(0, 1).contiguous().transpose(0, 1)))
    expect_error("v_codes has 16 bytes a row", lambda: attend_with(cache, "codes", [cache.codes[0], cache.codes[1][..., :16]]))
    expect_error("pages and its lengths have 2", lambda: attend_with(cache, "pages", cache.pages[:2]))
    expect_error("is on cpu", lambda: attend_with(cache, "lengths", cache.lengths.cpu()))
    x, slots = torch.randn(3, KV_HEADS, DIM, device="cuda").bfloat16(), torch.zeros(3, dtype=torch.int32, device="cuda")
    pack = torch.ops.oscar.int2_pack
    expect_error("grid is \"best\"", lambda: pack(x, slots, cache.codes[0], cache.params[0], grid="best"))
    expect_error("clip_ratio must", lambda: pack(x, slots, cache.codes[0], cache.params[0], clip_ratio=2.0))
    expect_error("clip_ranks has 1 heads", lambda: pack(x, slots, cache.codes[0], cache.params[0], clip_ranks=slots[:1]))
    expect_error("clip_ranks null", lambda: pack(x, slots, cache.codes[0], cache.params[0], grid="lsq", clip_ranks=slots[:KV_HEADS]))
    expect_error("slots has 2 entries", lambda: pack(x, slots[:2], cache.codes[0], cache.params[0]))


def main():
    library, part = sys.argv[1:]
    if part == "attention" and not torch.cuda.is_available():
        print("skipped: needs an NVIDIA GPU")
        return 77
    torch.manual_seed(0)
    torch.ops.load_library(library)
    {"shapes": shapes, "attention": attention}[part]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
