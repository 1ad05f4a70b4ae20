# SPDX-License-Identifier: MIT
"""torch.ops.oscar.coded_*, as a server loads them: coded_ops_test.py LIBRARY shapes|attention.

shapes     without a GPU: the operators tell their schemas and shapes, and refuse tensors of the CPU
attention  on a GPU: pages that coded_pack wrote have the bytes of oscar_kv/coded_pages.py, which follows the definition; they are
           read by coded_decode, against fp64; both in a CUDA graph; and what they refuse. Exit status 77 without a GPU.
"""
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "apps/python"))
from oscar_kv.coded_pages import CodedPages  # noqa: E402
from oscar_kv.coded_rows import CodedCodec  # noqa: E402

from int2_ops_test import attend_with, expect_error  # noqa: E402

# Bits of blocks: all widths, runs that are cut at bytes, an odd and an even number of bytes, one class only, nothing at all.
# A head's values have the plan of the next head: in each size some head has 8-byte pieces of both.
PLANS = {64: ([8, 7, 6, 5, 4, 3, 2, 1], [3] * 8, [2] * 8, [4, 4, 4, 4, 0, 0, 0, 0], [3, 3, 3, 1, 1, 0, 0, 0], [1] + [0] * 7, [0] * 8),
         128: ([8, 4, 4, 4, 2, 2, 2, 2, 2, 1, 1, 0, 0, 0, 0, 0], [2] * 16, [8, 7, 7, 6, 6, 6, 5, 5, 5, 4, 4, 4, 4, 4, 3, 2],
               [1] * 9 + [0] * 7, [3] * 11 + [0] * 5, [2] * 10 + [1] * 3 + [0] * 3),
         256: ([8, 6, 5, 4, 4, 4] + [2] * 12 + [1] * 10 + [0] * 4, [5, 3, 3] + [1] * 22 + [0] * 7, [2] * 32, [3] * 3 + [1] * 20 + [0] * 9)}


class Cache:
    """Sequences of some lengths in shuffled pages, a window of their own tokens, and queries."""

    def __init__(self, device, dim=128, lengths=(500, 33, 1), window=9, page=16, groups=3):
        self.device, self.dim, self.page, self.groups = device, dim, page, groups
        plans, torch_ = PLANS[dim], torch.Generator().manual_seed(dim)
        self.heads = len(plans)
        self.codecs = []
        for side in range(2):
            bits = torch.tensor([plans[(head + side) % self.heads] for head in range(self.heads)])
            levels = (1 << bits).int().repeat_interleave(8, 1)
            spread = 0.5 + torch.rand(levels.shape, generator=torch_)
            self.codecs.append(CodedCodec(levels, 6 / levels * spread, spread))
        for codec in self.codecs:
            codec.to("cpu" if device == "meta" else device)
        self.reference = CodedPages(*self.codecs)
        pages = -(-max(lengths) // page)
        self.table = torch.randperm(len(lengths) * pages, generator=torch_).int().reshape(len(lengths), pages).to(device)
        self.lengths = torch.tensor(lengths, dtype=torch.int32, device=device)
        self.window_lengths = torch.full_like(self.lengths, window)
        self.window_table = torch.arange(len(lengths), dtype=torch.int32, device=device).reshape(-1, 1)
        self.windows = [torch.randn(len(lengths), 16, self.heads, dim, generator=torch_).bfloat16().to(device) for _ in range(2)]
        self.q = torch.randn(len(lengths), groups * self.heads, dim, generator=torch_).bfloat16().to(device)
        self.pages = torch.full((self.table.numel(), page, self.reference.token_bytes), 0xA5, dtype=torch.uint8, device=device)

    def format(self):
        """bits, steps and sigmas, of keys and of values."""
        sides = [codec.tables() for codec in self.codecs]
        return [x for both in zip(*sides) for x in both]

    def prepare(self):
        numbers, tables = torch.ops.oscar.coded_layout(*self.format())
        self.layout, self.tables = numbers.tolist(), tables.to(self.device)
        assert self.layout[5] == self.reference.token_bytes

    def slots(self):
        """Those of all tokens of all sequences."""
        found = []
        for b, length in enumerate(self.lengths.tolist()):
            at = torch.arange(length, device=self.device)
            found.append((self.table[b][at // self.page] * self.page + at % self.page).int())
        return torch.cat(found)

    def attend(self, **options):
        return torch.ops.oscar.coded_decode(self.q, self.pages, self.layout, self.tables, self.table, self.lengths, *self.windows,
                                            self.window_table, self.window_lengths, **options)

    def expected(self):
        """Outputs in fp64, over the pages as coded_pages.py reads them."""
        out, first = [], 0
        slots, lengths = self.slots(), self.lengths.tolist()
        packed = [self.reference.read(self.pages, slots, side) for side in range(2)]
        for b, length in enumerate(lengths):
            k, v = (torch.cat([rows[:, first:first + length].double(), window[b, :self.window_lengths[b]].double().transpose(0, 1)], 1)
                    for rows, window in zip(packed, self.windows))
            first += length
            scores = self.q[b].double().unflatten(0, (self.heads, -1)) @ k.transpose(1, 2) * self.dim**-0.5
            out.append((scores.softmax(-1) @ v).flatten(0, 1))
        return torch.stack(out)


def shapes():
    cache = Cache("meta", lengths=(40, 7))
    cache.layout, cache.tables = [128, cache.heads, 8, 8, 4, cache.reference.token_bytes, 64], torch.empty(128, dtype=torch.uint8, device="meta")
    out, lse = cache.attend()
    assert out.shape == cache.q.shape and lse.shape == cache.q.shape[:2] and out.dtype == lse.dtype == torch.float32
    slots = torch.zeros(3, dtype=torch.int32, device="meta")
    torch.ops.oscar.coded_pack(slots, cache.pages, cache.layout, cache.tables, k=torch.empty(3, cache.heads, 128, device="meta").bfloat16())
    assert "Tensor(a!) pages" in str(torch.ops.oscar.coded_pack.default._schema)
    on_cpu = Cache("cpu", lengths=(40, 7))
    on_cpu.layout, on_cpu.tables = cache.layout, torch.zeros(128, dtype=torch.uint8)
    expect_error("CPU", on_cpu.attend)
    expect_error("CPU", lambda: torch.ops.oscar.coded_pack(on_cpu.lengths, on_cpu.pages, on_cpu.layout, on_cpu.tables))


def rows_of(cache, count, kind):
    """(tokens, heads, d): normal ones of any size, with rows of zeros and of a single value; or what may overflow."""
    x = torch.randn(count, cache.heads, cache.dim, device=cache.device)
    x *= torch.exp2(torch.randint(-6, 7, (count, cache.heads, 1), device=cache.device).float())
    if kind == "extreme":
        x *= torch.tensor([1e-38, 1e-20, 1.0, 1e17, 1e30], device=cache.device)[torch.arange(count, device=cache.device) % 5][:, None, None]
    elif kind == "small integers":  # many values at the edges between levels
        x = torch.randint(-4, 5, x.shape, device=cache.device).float()
    x[1::17] = 0
    x[2::17, :, 5:] = 0
    return x.bfloat16()


def check_bytes(cache, kind):
    slots = cache.slots()
    slots[3::11] = -1
    slots = slots[torch.randperm(len(slots), device=cache.device)].contiguous()
    k, v = (rows_of(cache, len(slots), kind) for _ in range(2))
    before = cache.pages.clone()
    expected = before.clone()
    for side, rows in enumerate((k, v)):
        cache.reference.write(expected, slots, side, rows.transpose(0, 1))
    torch.ops.oscar.coded_pack(slots, cache.pages, cache.layout, cache.tables, k=k, v=v)
    # Free bits have no meaning: what differs may only be there, and the rows that are read are the same.
    assert torch.equal(cache.pages, expected), (cache.dim, kind, int((cache.pages != expected).sum()))
    assert not torch.equal(before, expected)
    cache.pages.copy_(before)
    torch.ops.oscar.coded_pack(slots, cache.pages, cache.layout, cache.tables, k=k)
    torch.ops.oscar.coded_pack(slots, cache.pages, cache.layout, cache.tables, v=v)
    assert torch.equal(cache.pages, expected), "keys and values one after another"


def check_rotation(cache):
    """bf16((x - mean) R) with float32 sums: of the codes of coded_pages.py nearly all are the same, and errors are as large."""
    slots, heads, dim = cache.slots(), cache.heads, cache.dim
    x = [torch.randn(len(slots), heads, dim, device="cuda").bfloat16() for _ in range(2)]
    rotations = [torch.linalg.qr(torch.randn(count, dim, dim, device="cuda"))[0].bfloat16().contiguous() for count in (heads, 1)]
    mean = 3 * torch.randn(heads, dim, device="cuda")
    x[0] = (x[0].float() + mean).bfloat16()
    torch.ops.oscar.coded_pack(slots, cache.pages, cache.layout, cache.tables, k=x[0], v=x[1], k_rotation=rotations[0],
                               v_rotation=rotations[1][0], k_mean=mean)
    expected = cache.pages.clone()
    for side, (rows, rotation) in enumerate(zip(x, rotations)):
        exact = (rows.double() - (mean.double() if side == 0 else 0)).transpose(0, 1) @ rotation.double()
        cache.reference.write(expected, slots, side, exact.float().bfloat16())
        found, plain = (cache.reference.read(pages, slots, side) for pages in (cache.pages, expected))
        same = float((found == plain).float().mean())
        assert same > 0.97, (dim, side, same)
        errors = [float((y.double() - exact).norm()) for y in (found, plain)]
        assert abs(errors[0] / errors[1] - 1) < 1e-3, errors


def attention():
    for dim, page in ((64, 4), (128, 16), (128, 256), (256, 64)):
        cache = Cache("cuda", dim, page=page)
        cache.prepare()
        for kind in ("extreme", "small integers", "normal"):
            check_bytes(cache, kind)
        check_rotation(cache)
        rows = [torch.randn(int(cache.lengths.sum()), cache.heads, dim, device="cuda").bfloat16() for _ in range(2)]
        torch.ops.oscar.coded_pack(cache.slots(), cache.pages, cache.layout, cache.tables, k=rows[0], v=rows[1])
        out, _ = cache.attend()
        expected = cache.expected()
        error = float((out - expected).norm() / expected.norm())
        assert error < 2e-3, error
        check_graph(cache, rows, out)
        print("dim", dim, "page", page, "error", error, flush=True)
    check_refusals(cache)


def check_graph(cache, rows, expected):
    workspace, slots = torch.zeros(1 << 24, dtype=torch.uint8, device="cuda"), cache.slots()
    stream = torch.cuda.Stream()

    def step():
        torch.ops.oscar.coded_pack(slots, cache.pages, cache.layout, cache.tables, k=rows[0], v=rows[1])
        return cache.attend(workspace=workspace)[0]

    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        step()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            out = step()
        out.zero_()
        cache.pages.fill_(0xA5)
        graph.replay()
        graph.replay()
        stream.synchronize()
    assert torch.equal(out, expected)


def check_refusals(cache):
    expect_error("q is ", lambda: attend_with(cache, "q", cache.q.float()))
    expect_error("q has 128 channels", lambda: attend_with(cache, "q", cache.q[..., :128].contiguous()))
    expect_error("layout has 2 numbers", lambda: attend_with(cache, "layout", [1, 2]))
    expect_error("pages must be (pages, page_size", lambda: attend_with(cache, "pages", cache.pages[..., :16]))
    expect_error("page_table and its lengths have 2", lambda: attend_with(cache, "table", cache.table[:2]))
    expect_error("is on cpu", lambda: attend_with(cache, "tables", cache.tables.cpu()))
    slots = torch.zeros(3, dtype=torch.int32, device="cuda")
    x = torch.randn(3, cache.heads, cache.dim, device="cuda").bfloat16()

    def pack(**sides):
        torch.ops.oscar.coded_pack(slots, cache.pages, cache.layout, cache.tables, **sides)

    expect_error("rows neither of keys nor of values", pack)
    expect_error("k is [2, ", lambda: pack(k=x[:2]))
    expect_error("v is Float", lambda: pack(v=x.float()))
    expect_error("a mean needs a rotation", lambda: pack(k=x, k_mean=torch.zeros(1, cache.dim, device="cuda")))
    expect_error("both have rotations", lambda: pack(k=x, v=x, k_rotation=torch.zeros(cache.dim, cache.dim, device="cuda").bfloat16()))
    bits, *others = cache.format()
    expect_error("must not increase", lambda: torch.ops.oscar.coded_layout(bits.flip(1).contiguous(), *others))
    expect_error("sigmas must be positive", lambda: torch.ops.oscar.coded_layout(bits, *others[:3], -others[3], others[4]))


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
