# SPDX-License-Identifier: MIT
"""What zoo/choosing/README.md shows is made as it should be: rows of both kernels' results, and pictures that anybody can read."""
import sys
import unittest
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests/bench"))
import choosing_page  # noqa: E402
import choosing_pictures  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"
INT2 = {"commit": "a" * 40, "gpu": "NVIDIA H200", "cases": [{"case": "B=1, 100K", "microseconds": 25.0, "bytes": 65e6, "bf16_microseconds": {"cudnn": 100.0}},
                                      {"case": "B=32, 32K", "microseconds": 200.0, "bytes": 700e6, "bf16_microseconds": {"cudnn": 900.0}}]}
# As bench_coded_attention.py writes it: rows of plans, then one row of peers for a case.
CODED = {"commit": "b" * 40, "gpu": "NVIDIA H100 80GB HBM3", "cases": [{"case": "B=1, 100K", "plan": "2 bits", "microseconds": 20.0, "bytes": 55e6, "layers": []},
                                       {"case": "B=1, 100K", "int2_microseconds": 25.0, "bf16_microseconds": {"cudnn": 99.0, "flash": 80.0}},
                                       {"case": "B=1, 100K, 2 query tokens", "plan": "2 bits", "microseconds": 30.0, "bytes": 55e6, "layers": []},
                                       {"case": "B=1, 100K, 2 query tokens", "bf16_microseconds": {"flash": 90.0}}]}


class ChoosingPageTests(unittest.TestCase):
    def test_rows_of_a_case_stand_together(self):
        text = choosing_page.decode_table({"int2_attention_h200.json": INT2, "coded_attention_h100.json": CODED})
        rows = [line for line in text.splitlines() if line.startswith("|")][2:]
        self.assertEqual(rows, ["| 1 sequence of 100K | INT2 | H200 | 65.0 | 25.0 | 100.0 | 4.0 | aaaaaaa |",
                                "| 1 sequence of 100K | coded, 2 bits | H100 | 55.0 | 20.0 | 80.0 | 4.0 | bbbbbbb |",
                                "| 1 sequence of 100K | INT2, in the run of the coded cache | H100 |  | 25.0 | 80.0 | 3.2 | bbbbbbb |",
                                "| 32 sequences of 32K | INT2 | H200 | 700.0 | 200.0 | 900.0 | 4.5 | aaaaaaa |",
                                "| 1 sequence of 100K, 2 query tokens | coded, 2 bits | H100 | 55.0 | 30.0 | 90.0 | 3.0 | bbbbbbb |"])
        self.assertNotIn("not kept", text)
        self.assertIn("not kept", choosing_page.decode_table({"int2_attention_h200.json": INT2}))

    def test_pictures_have_words_and_need_nothing_else(self):
        for name in ("bits_against_kld.svg", "plan_by_layer.svg"):
            text = (choosing_page.PAGE.parent / name).read_text()
            root = ElementTree.fromstring(text)
            named = root.attrib["aria-labelledby"].split()
            self.assertEqual([root.find(f"{SVG}{kind}").attrib["id"] for kind in ("title", "desc")], named)
            self.assertTrue(all(len(root.find(f"{SVG}{kind}").text) > 20 for kind in ("title", "desc")))
            self.assertIn("prefers-color-scheme:dark", root.find(f"{SVG}style").text)
            for reference in ("href", "url(", "@import", "<image", "<script"):
                self.assertNotIn(reference, text)

    def test_labels_keep_apart(self):
        heights = choosing_pictures.spread([100.0, 101.0, 102.0, 300.0])
        gaps = [b - a for a, b in zip(heights, heights[1:])]
        self.assertGreater(min(gaps), choosing_pictures.BETWEEN_LABELS - 0.1)
        self.assertEqual(heights[3], 300.0)


if __name__ == "__main__":
    unittest.main()
