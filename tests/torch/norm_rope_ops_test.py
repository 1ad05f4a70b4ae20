# SPDX-License-Identifier: MIT
"""torch.ops.oscar.coded_pack of keys that lack their norm and RoPE: norm_rope_ops_test.py LIBRARY cpu|cuda.

Pages and finished keys must have the bytes of keys that plain torch finished as servers do, packed without the option. Their rows are
small whole numbers times powers of two, whose squares add up exactly in any order. Rows of any size must come near float64, and on
CUDA have the bits of oscar_kv/norm_rope.py. Exit status 77 for cuda without a GPU.
"""
import sys
from pathlib import Path

import torch

PROJECT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(PROJECT / "apps/python")]
from coded_ops_test import Cache  # noqa: E402

EPSILON = 1e-6


def prepared(device, dim, page):
    cache = Cache(device, dim, lengths=(270, 33, 1) if device == "cuda" else (40, 9, 1), page=page)
    if device == "cpu":
        from oscar_kv.coded_cpu import tables_of
        cache.layout, cache.tables = tables_of(cache.reference)
    else:
        cache.prepare()
    return cache


def normed(x, weight, epsilon=EPSILON):
    """As a server: in float32, rounded to the weight's type, multiplied, rounded to the row's."""
    rows = x.float()
    scale = (rows.pow(2).mean(-1, keepdim=True) + epsilon).double().rsqrt().float()
    return ((rows * scale).to(weight.dtype) * weight).bfloat16()


def turned(x, positions, cos_sin, interleaved):
    """As a server's kernel: in float32, rounded once."""
    pairs = torch.arange(cos_sin.shape[1] // 2, device=x.device)
    first, second = (2 * pairs, 2 * pairs + 1) if interleaved else (pairs, pairs + len(pairs))
    cos, sin = (cos_sin.float()[positions.long()][:, None, part] for part in (pairs, pairs + len(pairs)))
    rows = x.float()
    a, b = rows[..., first], rows[..., second]
    rows[..., first], rows[..., second] = a * cos - b * sin, b * cos + a * sin
    return rows.bfloat16()


def table(positions, rotary, dtype, device):
    angles = torch.arange(positions).double()[:, None] * 10000.0 ** -(torch.arange(0, rotary, 2) / rotary)
    return torch.cat((angles.cos(), angles.sin()), 1).to(device, dtype)


def pack(cache, slots, pages=None, **rows):
    """The pages after rows were packed into pages full of 0xA5, or into these."""
    pages = torch.full_like(cache.pages, 0xA5) if pages is None else pages
    torch.ops.oscar.coded_pack(slots, pages, cache.layout, cache.tables, **rows)
    return pages


class Case:
    """Rows, slots of which some are not written, and what a server's norm and RoPE need."""

    def __init__(self, cache):
        self.cache, self.device, slots = cache, cache.device, cache.slots()
        slots[3::11] = -1
        self.slots = slots[torch.randperm(len(slots), device=self.device)].contiguous()
        self.count = len(slots)
        self.positions = torch.randint(0, 500, (self.count,), device=self.device)
        self.weight = 0.5 + torch.rand(cache.dim, device=self.device)

    def exact_rows(self):
        """A part of wider rows, as a server's projection has them."""
        shape = self.count, self.cache.heads + 1, 2 * self.cache.dim
        rows = torch.randint(-127, 128, shape, device=self.device) * torch.exp2(torch.randint(-6, 7, (*shape[:2], 1), device=self.device).float())
        rows[1::17] = 0
        return rows.bfloat16()[:, 1:, self.cache.dim:]

    def options(self, weight_dtype, rotary=0, interleaved=False, table_dtype=torch.float32, position_dtype=torch.int64):
        found = {}
        if weight_dtype is not None:
            found |= {"k_norm_weight": self.weight.to(weight_dtype), "norm_epsilon": EPSILON}
        if rotary:
            found |= {"positions": self.positions.to(position_dtype), "cos_sin": table(500, rotary, table_dtype, self.device), "interleaved": interleaved}
        return found


def finished_by_torch(x, options):
    if "k_norm_weight" in options:
        x = normed(x, options["k_norm_weight"])
    return turned(x, options["positions"], options["cos_sin"], options["interleaved"]) if "cos_sin" in options else x


def check_bytes(case, options, rotated, with_keys_alone=True):
    cache, x, before = case.cache, case.exact_rows(), 7.0
    v = torch.randn(case.count, cache.heads, cache.dim, device=case.device).bfloat16()
    others = {}
    if rotated:
        rotations = torch.linalg.qr(torch.randn(2, cache.heads, cache.dim, cache.dim, device=case.device))[0].bfloat16()
        others = {"k_rotation": rotations[0].contiguous(), "v_rotation": rotations[1].contiguous(),
                  "k_mean": torch.randn(cache.heads, cache.dim, device=case.device)}
    expected_rows = finished_by_torch(x, options)
    assert not options or not torch.equal(expected_rows, x)
    expected = pack(cache, case.slots, k=expected_rows, v=v, **others)
    what = cache.dim, rotated, {name: getattr(value, "dtype", value) for name, value in options.items()}
    wide = torch.full((case.count, cache.heads + 1, 2 * cache.dim), before, dtype=torch.bfloat16, device=case.device)
    finished = wide[:, :-1, :cache.dim]
    found = pack(cache, case.slots, k=x, v=v, **options, **others, k_finished=finished)
    assert torch.equal(finished, expected_rows), (what, int((finished != expected_rows).sum()))
    assert torch.equal(found, expected), (what, int((found != expected).sum()))
    finished.fill_(before)
    assert float((wide.float() - before).abs().max()) == 0, (what, "more than the finished rows was written")
    if with_keys_alone:  # without finished rows; then in place
        keys = {name: value for name, value in others.items() if name.startswith("k_")}
        expected = pack(cache, case.slots, k=expected_rows, **keys)
        assert torch.equal(pack(cache, case.slots, k=x, **options, **keys), expected), what
        assert torch.equal(pack(cache, case.slots, k=x, **options, **keys, k_finished=x), expected), what
        assert torch.equal(x, expected_rows), what


def check_any_rows(case, options):
    """Near float64: a server rounds normed rows, their products with the weight, and turned pairs, to 8 bits."""
    cache = case.cache
    x = torch.randn(case.count, cache.heads, cache.dim, device=case.device) * torch.exp2(torch.randint(-9, 10, (case.count, 1, 1), device=case.device).float())
    x, finished = x.bfloat16(), torch.empty(case.count, cache.heads, cache.dim, dtype=torch.bfloat16, device=case.device)
    pack(cache, case.slots, k=x, k_finished=finished, **options)
    rows = x.double()
    y = rows * (rows.pow(2).mean(-1, keepdim=True) + EPSILON).rsqrt() * options["k_norm_weight"].double()
    half = options["cos_sin"].shape[1] // 2
    cos, sin = options["cos_sin"].double()[options["positions"].long()][:, None].chunk(2, -1)
    a, b = y[..., :half], y[..., half:2 * half]
    exact, sizes = y.clone(), y.abs()
    exact[..., :half], exact[..., half:2 * half] = a * cos - b * sin, b * cos + a * sin
    sizes[..., :half] = sizes[..., half:2 * half] = a.abs() + b.abs()
    assert bool(((finished.double() - exact).abs() <= 3.02 * 2.0**-8 * sizes).all())
    if case.device == "cuda":
        from oscar_kv.norm_rope import rms_norm, rope
        expected = rope(rms_norm(x, options["k_norm_weight"], EPSILON), options["positions"], options["cos_sin"])
        assert torch.equal(finished, expected), int((finished != expected).sum())


def expect_refusal(expected, call):
    try:
        call()
    except (RuntimeError, AssertionError) as error:
        assert expected in str(error), f"\"{expected}\" is not in: {error}"
    else:
        raise SystemExit(f"no error that says \"{expected}\"")


def check_refusals(case):
    cache, x = case.cache, case.exact_rows()
    norm, rope = case.options(torch.float32), case.options(None, 64)

    def refused(expected, k=x, **options):
        expect_refusal(expected, lambda: pack(cache, case.slots, k=k, **options))

    refused("positions and cos_sin must be given together", positions=rope["positions"])
    refused("positions and cos_sin must be given together", cos_sin=rope["cos_sin"])
    expect_refusal("of keys, and there are none", lambda: pack(cache, case.slots, v=x, **norm))
    refused("norm_epsilon", k_norm_weight=norm["k_norm_weight"])
    if case.device == "cuda":
        refused("k_norm_weight has 8 channels", k_norm_weight=norm["k_norm_weight"][:8], norm_epsilon=EPSILON)
        refused("must be float32 or bfloat16", k_norm_weight=norm["k_norm_weight"].half(), norm_epsilon=EPSILON)
        refused("k_norm_weight is on cpu", k_norm_weight=norm["k_norm_weight"].cpu(), norm_epsilon=EPSILON)
        refused("positions has 3 tokens", **rope | {"positions": rope["positions"][:3]})
        refused("positions is Float", **rope | {"positions": rope["positions"].float()})
        refused("cos_sin is Double", **rope | {"cos_sin": rope["cos_sin"].double()})
        refused("must be float32 or bfloat16", **rope | {"cos_sin": rope["cos_sin"].half()})
        refused("cos_sin is not contiguous", **rope | {"cos_sin": rope["cos_sin"][:, :32]})
        refused("rotary_dim must be a multiple of 8", **rope | {"cos_sin": rope["cos_sin"][:, :12].contiguous()})
        refused("rotary_dim must be a multiple of 8", **rope | {"cos_sin": table(500, 2 * cache.dim, torch.float32, case.device)})
        refused("interleaved pairs need cos_sin", interleaved=True)
        refused("k_finished is [2, ", k_finished=x[:2])
        refused("aligned", k_finished=torch.empty(x.numel() + 1, dtype=torch.bfloat16, device=case.device)[1:].view(x.shape))


def run(device):
    bf16, f32 = torch.bfloat16, torch.float32
    for dim, page in ((64, 4), (128, 16), (256, 64)):
        case = Case(prepared(device, dim, page))
        check_bytes(case, {}, False, False)  # finished rows alone: a copy
        for i, which in enumerate(((None, dim), (bf16,), (bf16, dim, False, bf16, torch.int32), (f32, dim - 24), (None, dim - 24, True, bf16),
                                   (f32, 16, True), (bf16, 16, False, f32, torch.int32), (bf16, dim, True, f32, torch.int32), (f32,))):
            for rotated in (False, True) if device == "cuda" else (i % 2 == 1,):
                check_bytes(case, case.options(*which), rotated, device == "cuda" or i < 2)
        check_any_rows(case, case.options(bf16, dim))
        check_any_rows(case, case.options(f32, dim // 2, False, bf16, torch.int32))
        print("dim", dim, "done", flush=True)
    check_refusals(case)


def main():
    library, device = sys.argv[1:]
    if device == "cuda" and not torch.cuda.is_available():
        print("skipped: needs an NVIDIA GPU")
        return 77
    torch.manual_seed(0)
    torch.ops.load_library(library)
    if device == "cpu":
        from oscar_kv import coded_cpu  # noqa: F401  (registers the reference)
    run(device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
