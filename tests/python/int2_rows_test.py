# SPDX-License-Identifier: MIT
"""Packed rows and attention over them, without a model: int2_rows_test.py [RowsTest.test_…]"""
import os
import sys
import unittest
from dataclasses import replace
from pathlib import Path

try:
    import numpy as np
    import torch
    from oscar_kv.int2_attend import Seen, attend
    from oscar_kv.int2_rows import SideRows
    from oscar_kv.rotation_set import Side
    from oscar_kv.row_codec import Layout, RowCodec
except ImportError as missing:
    print(f"skipped: {missing}; run scripts/setup.sh --tests")
    sys.exit(77)

sys.path.insert(0, str(Path(os.environ["OSCAR_PROJECT"]) / "scripts/reference"))
import row_codecs  # noqa: E402

torch.set_num_threads(1)
TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def manifest(name="minmax", levels=(4, 4)):
    return {"codec": {"name": name, "levels": list(levels), "group_size": 0}}


def side(heads, dim, centred=False, orthogonal=True, seed=0, clip=0.95):
    """Random matrices, one for each head."""
    rotation = torch.linalg.qr(random(heads, dim, dim, seed=seed))[0]
    if not orthogonal:
        rotation = rotation * torch.linspace(0.5, 2, dim)
    mean = random(heads, dim, seed=seed + 1) if centred else None
    return Side(rotation, torch.linalg.inv(rotation).transpose(-1, -2).contiguous(), mean, clip, None, None)


class RowsTest(unittest.TestCase):
    def test_codecs_equal_the_formulas_in_numpy(self):
        x = (random(2, 3, 40, 128) * 3).bfloat16().float()
        for grid in ("minmax", "lsq", "lloyd-max"):
            for levels, group, param in ((4, 0, "float32"), (4, 32, "float16"), (5, 0, "bfloat16"), (8, 64, "float32")):
                if grid == "lloyd-max" and levels != 4:
                    continue
                clip = 0.0 if grid == "lsq" else 0.92
                codec = RowCodec(grid, levels, group, clip, TYPES[param])
                packed, params = codec.encode(x)
                expected = row_codecs.quantized(x.numpy(), row_codecs.Codec(grid, levels, group, clip, "sort", param))
                np.testing.assert_allclose(codec.decode(packed, params, 128).numpy(), expected, atol=2e-6)

    def test_clip_ratios_of_heads(self):
        x = random(1, 3, 20, 64)
        ratios = torch.tensor([0.0, 0.9, 0.7])
        whole = RowCodec("minmax", 4, 0, ratios, torch.float32)
        together = whole.decode(*whole.encode(x), 64)
        for head, ratio in enumerate(ratios.tolist()):
            alone = RowCodec("minmax", 4, 0, ratio, torch.float32)
            self.assertTrue(torch.equal(together[:, head], alone.decode(*alone.encode(x[:, head:head + 1]), 64)[:, 0]))

    def test_any_levels_are_packed_as_the_program_packs_them(self):
        for levels, row_bytes in ((2, 16), (3, 26), (4, 32), (5, 38), (8, 48), (16, 64), (17, 80), (256, 128)):
            codes = (random(3, 2, 5, 128).abs() * 1e4).long() % levels
            layout = Layout.of(levels, 128)
            packed = layout.pack(codes)
            self.assertEqual((packed.dtype, packed.shape[-1]), (torch.uint8, row_bytes), levels)
            self.assertTrue(torch.equal(layout.unpack(packed, 128), codes), levels)
        int2 = Layout.of(4, 8).pack(torch.tensor([0, 1, 1, 0, 2, 0, 3, 3]))  # channels i, i + 2, i + 4, i + 6
        self.assertEqual(int2.tolist(), [0 | 1 << 2 | 2 << 4 | 3 << 6, 1 | 0 << 2 | 0 << 4 | 3 << 6])
        fives = Layout.of(5, 4).pack(torch.tensor([4, 3, 2, 1]))  # 4 + 5 * 3 + 25 * 2 = 69 in 7 bits, then 1
        self.assertEqual(fives.tolist(), [69 | 128, 0])

    def rows(self, tokens, calls, **options):
        """A side fed in calls of so many tokens, with 4 first and 8 last ones in windows."""
        held = SideRows(manifest(levels=options.pop("levels", (256, 256))), "key", 0, side(2, 64, **options), 4, 8)
        native = random(1, 2, tokens, 64, seed=5)
        held.begin(native)
        for part in native.split(calls, 2):
            held.append(part)
            read = held.read()
            held.evict()
        return native, read, held

    def test_native_rows_come_back_in_order(self):
        for options in ({}, {"centred": True, "orthogonal": False}):
            native, read, held = self.rows(40, 7, clip=0, **options)
            self.assertLess(float((read - native).norm() / native.norm()), 0.02, options)
            self.assertEqual(held.codes.length, 40 - 8 + 1 - 4)
            self.assertEqual(held.window(held.codes.length).shape[2], 4 + 7)

    def test_history_and_windows_are_where_they_belong(self):
        native, read, _ = self.rows(40, 1, levels=(2, 2))
        error = (read - native).norm(dim=-1) / native.norm(dim=-1)
        exact = error.amax((0, 1)) < 0.02
        self.assertEqual(exact.tolist(), [token < 4 or token > 39 - 8 for token in range(40)])

    def attended(self, calls, mask=None):
        """Outputs of 30 tokens in calls of so many, by attend() and by native rows."""
        key = SideRows(manifest(), "key", 0, side(2, 64, centred=True, orthogonal=False), 4, 8)
        value = SideRows(manifest(), "value", 0, side(2, 64, seed=7), 4, 8)
        q, k, v = random(2, 6, 30, 64, seed=1), random(2, 2, 30, 64, seed=2), random(2, 2, 30, 64, seed=3)
        key.begin(k), value.begin(v)
        outs, natives, first = [], [], 0
        for qs, ks, vs in zip(*(x.split(calls, 2) for x in (q, k, v))):
            key.append(ks), value.append(vs)
            seen = Seen.by(key), Seen.by(value)
            native = key.read(), value.read()
            key.evict(), value.evict()
            part = None if mask is None else mask[:, :, first:first + qs.shape[2], :key.length]
            outs.append(attend(qs, *seen, part, 0.2))
            first += qs.shape[2]
            causal = torch.ones(qs.shape[2], key.length).tril(key.length - qs.shape[2]).bool()
            natives.append(torch.nn.functional.scaled_dot_product_attention(
                qs, *native, attn_mask=causal if part is None else causal & part, scale=0.2, enable_gqa=True))
        return torch.cat(outs, 2), torch.cat(natives, 2)

    def assert_near(self, a, b, limit=0.01):
        self.assertLess(float((a - b).norm() / b.norm()), limit)

    def test_attention_equals_attention_over_native_rows(self):
        self.assert_near(*self.attended(1))

    def test_attention_does_not_depend_on_how_many_tokens_come_at_once(self):
        one = self.attended(1)[0]
        for calls in (5, 30):
            out, native = self.attended(calls)
            self.assert_near(out, one)
        self.assertGreater(float((native - one).norm() / one.norm()), 0.05)  # a prompt at once sees itself exactly

    def test_attention_leaves_padding_out(self):
        mask = torch.ones(2, 1, 30, 30).tril().bool()
        mask[1, :, :, :6] = False
        out, native = self.attended(1, mask)
        self.assert_near(out[0], native[0])
        self.assert_near(out[1, :, 6:], native[1, :, 6:])
        self.assertGreater(float((out[1, :, 6:] - self.attended(1)[0][1, :, 6:]).norm()), 1)

    def test_refuses_rows_of_another_shape(self):
        held = SideRows(manifest(), "key", 3, side(2, 64), 4, 8)
        with self.assertRaisesRegex(ValueError, "layer 3: key rows of 2 heads of 32 do not fit 2 matrices of 64 x 64"):
            held.begin(random(1, 2, 0, 32))
        with self.assertRaisesRegex(ValueError, "of 4 heads of 64 do not fit"):
            held.begin(random(1, 4, 0, 64))
        ratios = replace(side(2, 64), head_clip_ratios=torch.tensor([0.9]))
        with self.assertRaisesRegex(ValueError, "layer 3: key clip ratios of 1 heads for 2"):
            SideRows(manifest(), "key", 3, ratios, 4, 8).begin(random(1, 2, 0, 64))


if __name__ == "__main__":
    unittest.main()
