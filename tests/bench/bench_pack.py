# SPDX-License-Identifier: MIT
"""The write path of an INT2 cache on a GPU, as a part of bench_attention.py."""
import torch

from int2_library import PackArgs, Rows, call, time_graph


class PackCase:
    """A layer's keys or values: bfloat16 rows of 8 heads, pages of 64 tokens."""

    def __init__(self, library, tokens, dim, grid, clip, rotate):
        heads = 8
        self.int2, self.dim = library, dim
        self.x = torch.randn(tokens, heads, dim, device="cuda").bfloat16()
        self.rotation = torch.linalg.qr(torch.randn(heads, dim, dim, device="cuda"))[0].bfloat16().contiguous()
        pages = -(-tokens // 64)
        self.slots = torch.randperm(pages, device="cuda")[:, None] * 64 + torch.arange(64, device="cuda")
        self.slots = self.slots.reshape(-1)[:tokens].int().contiguous()
        self.codes = torch.zeros(pages, heads, 64, dim // 4, dtype=torch.uint8, device="cuda")
        self.params = torch.zeros(pages, heads, 64, 2, device="cuda")
        at = [Rows(t.data_ptr(), *(t.stride(i) * t.element_size() for i in (0, 2, 1))) for t in (self.codes, self.params)]
        self.args = PackArgs(num_tokens=tokens, num_kv_heads=heads, head_dim=dim, group_size=dim, param_dtype=0,
                             grid=grid, clip_ratio=clip, x=self.x.data_ptr(), x_token_stride=2 * heads * dim,
                             x_head_stride=2 * dim, rotation=self.rotation.data_ptr() if rotate else None,
                             rotation_head_stride=2 * dim * dim, slots=self.slots.data_ptr(), page_size=64,
                             codes=at[0], params=at[1])

    def run(self):
        call(self.int2, "oscar_int2_pack", self.args)

    def bytes(self):
        return self.x.numel() * 2 + self.x.shape[0] * 8 * (self.dim // 4 + 8)

    def decode_error(self):
        """|x^ - x R| / |x R|, of what was written."""
        pages, slots = self.slots.long() // 64, self.slots.long() % 64
        packed, params = self.codes[pages, :, slots], self.params[pages, :, slots].double()
        codes = torch.cat([packed >> shift & 3 for shift in (0, 2, 4, 6)], -1).double()
        decoded = (codes - params[..., 1:]) * params[..., :1]
        rows = self.x.double()
        if self.args.rotation:
            rows = torch.einsum("thd,hde->the", rows, self.rotation.double())
        return float((decoded - rows).norm() / rows.norm())


def bench_pack(library, rate):
    """A prefill tile of a layer's keys (bfloat16 rows read, codes and parameters written), and a flush of few tokens."""
    rows = []
    for name, tokens, grid, clip, rotate in (
            ("pack, min/max", 65536, 0, 0.0, False), ("pack, min/max, clip 0.96", 65536, 0, 0.96, False),
            ("pack, lsq", 65536, 1, 0.0, False), ("rotate and pack, min/max", 65536, 0, 0.0, True),
            ("rotate and pack, min/max, clip 0.96", 65536, 0, 0.96, True),
            ("rotate and pack, min/max, clip 0.92", 65536, 0, 0.92, True), ("rotate and pack, lsq", 65536, 1, 0.0, True),
            ("flush of 64 tokens, clip 0.96", 64, 0, 0.96, True)):
        sets = [PackCase(library, tokens, 128, grid, clip, rotate) for _ in range(4)]
        us, size = time_graph(lambda i: sets[i % 4].run(), 4), sets[0].bytes()
        tb = size / us / 1e6
        rows.append({"case": name, "tokens": tokens, "microseconds": us, "bytes": size, "tb_per_s": tb,
                     "fraction_of_copy_rate": tb / rate, "relative_error": sets[0].decode_error()})
        print(f"{name:36} {us:8.2f} us  {tb:5.2f} TB/s  {tb / rate:5.1%} of copy  error {rows[-1]['relative_error']:.4f}",
              flush=True)
    return rows
