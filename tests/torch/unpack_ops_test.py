# SPDX-License-Identifier: MIT
"""torch.ops.oscar.coded_unpack and int2_unpack against the definitions: unpack_ops_test.py LIBRARY shapes|cpu|cuda.

shapes   in every build: schemas, and shapes without data
cpu      the references (oscar_kv/coded_cpu.py, int2_cpu.py), where the library was built with CUDA or without
cuda     the kernels, and what they refuse. Exit status 77 without a GPU.
Coded rows are read again as the header defines pages (tests/bench/coded_library.py, float64), and must have the bits of
oscar_kv/coded_pages.py rounded to bfloat16; INT2 rows must have the bits of the formula in float32.
"""
import sys
from pathlib import Path

import torch

PROJECT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(PROJECT / "apps/python"), str(PROJECT / "tests/bench")]
from coded_library import CodedFormat, decode_rows  # noqa: E402
from coded_ops_test import Cache, rows_of  # noqa: E402
from int2_ops_test import expect_error  # noqa: E402

BEFORE = 7.0  # what rows hold that are not to be written


class Format(CodedFormat):
    """Of a cache, for decode_rows(), without a library."""

    def __init__(self, cache):
        k_bits, v_bits, k_steps, v_steps = cache.format()[:4]
        self.bits, self.steps = (k_bits, v_bits), (k_steps, v_steps)


def prepare(cache):
    """Layout and tables, and pages with rows of any size."""
    if cache.device == "cpu":
        from oscar_kv.coded_cpu import tables_of
        cache.layout, cache.tables = tables_of(cache.reference)
    else:
        cache.prepare()
    slots = cache.slots()
    for side in range(2):
        rows = rows_of(cache, len(slots), "extreme" if cache.page == 64 else "normal")
        cache.reference.write(cache.pages, slots, side, rows.transpose(0, 1))


def targets(tokens, heads, dim, device):
    """bfloat16 (tokens, heads, d) of both layouts that attention takes, and a part of wider rows."""
    yield torch.full((tokens, heads, dim), BEFORE, dtype=torch.bfloat16, device=device)
    yield torch.full((heads, tokens + 3, dim), BEFORE, dtype=torch.bfloat16, device=device)[:, 2:-1].transpose(0, 1)
    yield torch.full((tokens, heads + 1, 2 * dim), BEFORE, dtype=torch.bfloat16, device=device)[:, 1:, dim:]


def some_of(slots):
    """In another order, some twice, some not to be read."""
    slots = slots[torch.randperm(len(slots), device=slots.device)].contiguous()
    slots[5::9] = slots[0]
    slots[3::11] = -1
    return slots


def check_coded(cache):
    slots, format_ = some_of(cache.slots()), Format(cache)
    read = slots >= 0
    page, token = slots[read].long() // cache.page, slots[read].long() % cache.page
    expected = [torch.stack([decode_rows(format_, cache.pages.flatten(1), head, cache.page, side)[page, token]
                             for head in range(cache.heads)], 1) for side in range(2)]
    bits = [cache.reference.read(cache.pages, slots[read], side).transpose(0, 1).bfloat16() for side in range(2)]
    for k, v in zip(*(targets(len(slots), cache.heads, cache.dim, cache.device) for _ in range(2))):
        torch.ops.oscar.coded_unpack(slots, cache.pages, cache.layout, cache.tables, k=k, v=v)
        for side, found in enumerate((k, v)):
            wrong = (found[read].double() - expected[side]).abs() - expected[side].abs() * 2**-8 * 1.001
            assert float(wrong.max()) <= 0, (cache.dim, cache.page, side, float(wrong.max()))
            assert torch.equal(found[read], bits[side]), (cache.dim, cache.page, side)
            assert float((found[~read].float() - BEFORE).abs().max()) == 0, "a row that is not to be written"
        for name, whole in (("k", k), ("v", v)):  # one side alone
            own = torch.full_like(whole, BEFORE)
            torch.ops.oscar.coded_unpack(slots, cache.pages, cache.layout, cache.tables, **{name: own})
            assert torch.equal(own, whole), name


def check_int2(device, dim, groups, param_dtype, page, tokens=333, heads=3):
    """Pools as vLLM's blocks have them: the rows of a head lie behind each other."""
    count = tokens // page + 2
    codes = torch.randint(0, 256, (count, heads, page, dim // 4), dtype=torch.uint8, device=device).transpose(1, 2)
    scales = torch.exp2(torch.randint(-20, 12, (count, heads, page, groups, 1), device=device).float()) * 1.1
    params = torch.cat([scales, 1.5 + 2 * torch.randn_like(scales)], -1).to(param_dtype).transpose(1, 2)
    slots = some_of(torch.randperm(count * page, device=device)[:tokens].int())
    read = slots >= 0
    at = slots[read].long() // page, slots[read].long() % page
    numbers = torch.cat([codes[at] >> shift & 3 for shift in (0, 2, 4, 6)], -1).float().unflatten(-1, (groups, -1))
    scale, zero = params[at].float().unbind(-1)
    expected = ((numbers - zero[..., None]) * scale[..., None]).flatten(-2).bfloat16()
    for out in targets(tokens, heads, dim, device):
        torch.ops.oscar.int2_unpack(slots, codes, params, out)
        assert torch.equal(out[read], expected), (dim, groups, param_dtype, page, int((out[read] != expected).sum()))
        assert float((out[~read].float() - BEFORE).abs().max()) == 0, "a row that is not to be written"


def run(device):
    for dim in (64, 128, 256):
        for page in (4, 16, 64, 256):
            cache = Cache(device, dim, lengths=(270, 33, 1), page=page)
            halves = [sum(-(-int(bits.sum()) // 8) % 2 for bits in head) for head in zip(*Format(cache).bits)]
            assert 2 in halves and 0 in halves, "heads with 8-byte pieces of both sides, and of none"
            prepare(cache)
            check_coded(cache)
        for groups in sorted({1, dim // 64, dim // 32}):
            for param_dtype, page in ((torch.float32, 16), (torch.float16, 1), (torch.bfloat16, 80)):
                check_int2(device, dim, groups, param_dtype, page)
        print("dim", dim, "done", flush=True)
    nothing = torch.empty(0, cache.heads, cache.dim, dtype=torch.bfloat16, device=device)
    torch.ops.oscar.coded_unpack(cache.slots()[:0], cache.pages, cache.layout, cache.tables, k=nothing)
    if device == "cuda":
        check_refusals(cache)


def check_refusals(cache):
    slots = torch.zeros(3, dtype=torch.int32, device="cuda")
    x = torch.empty(3, cache.heads, cache.dim, device="cuda").bfloat16()

    def unpack(pages=cache.pages, **sides):
        torch.ops.oscar.coded_unpack(slots, pages, cache.layout, cache.tables, **sides)

    expect_error("room neither for keys nor for values", unpack)
    expect_error("k is [2, ", lambda: unpack(k=x[:2]))
    expect_error("v is Float", lambda: unpack(v=x.float()))
    expect_error("v is on cpu", lambda: unpack(k=x, v=x.cpu()))
    expect_error("pages must be (pages, page_size", lambda: unpack(cache.pages[..., :16], k=x))
    codes = torch.zeros(2, 16, 3, 32, dtype=torch.uint8, device="cuda")
    params, out = torch.zeros(2, 16, 3, 1, 2, device="cuda"), torch.empty(3, 3, 128, device="cuda").bfloat16()
    expect_error("out is [3, 3, 128], not [2, ", lambda: torch.ops.oscar.int2_unpack(slots[:2], codes, params, out))
    expect_error("codes has 16 bytes a row", lambda: torch.ops.oscar.int2_unpack(slots, codes[..., :16], params, out))
    expect_error("params is Long", lambda: torch.ops.oscar.int2_unpack(slots, codes, params.long(), out))
    expect_error("slots is Long", lambda: torch.ops.oscar.int2_unpack(slots.long(), codes, params, out))
    expect_error("differ in pages", lambda: torch.ops.oscar.int2_unpack(slots, codes, params[:1], out))
    expect_error("aligned", lambda: torch.ops.oscar.int2_unpack(slots, codes, params, torch.empty(3 * 3 * 128 + 1, device="cuda").bfloat16()[1:].view(3, 3, 128)))


def shapes():
    slots, x = torch.zeros(3, dtype=torch.int32, device="meta"), torch.empty(3, 2, 128, dtype=torch.bfloat16, device="meta")
    torch.ops.oscar.coded_unpack(slots, torch.empty(1, 16, 8, dtype=torch.uint8, device="meta"), [0] * 7, slots, k=x, v=x)
    torch.ops.oscar.int2_unpack(slots, torch.empty(1, 16, 2, 32, dtype=torch.uint8, device="meta"), torch.empty(1, 16, 2, 1, 2, device="meta"), x)
    assert "Tensor(b!)? v" in str(torch.ops.oscar.coded_unpack.default._schema)
    assert "Tensor(a!) out" in str(torch.ops.oscar.int2_unpack.default._schema)


def main():
    library, part = sys.argv[1:]
    if part == "cuda" and not torch.cuda.is_available():
        print("skipped: needs an NVIDIA GPU")
        return 77
    torch.manual_seed(0)
    torch.ops.load_library(library)
    if part == "cpu":
        from oscar_kv import coded_cpu, int2_cpu  # noqa: F401  (registers the references)
    shapes() if part == "shapes" else run(part)
    return 0


if __name__ == "__main__":
    sys.exit(main())
