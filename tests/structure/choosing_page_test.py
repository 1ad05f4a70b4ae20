# SPDX-License-Identifier: MIT
"""What zoo/choosing/README.md shows is made as it should be: rows of both kernels' results stand together."""
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests/bench"))
import choosing_page  # noqa: E402

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


if __name__ == "__main__":
    unittest.main()
