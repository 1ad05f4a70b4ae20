# SPDX-License-Identifier: MIT
"""oscar fit --recipe coded by several processes: the bytes of one, of sets and statistics, also after all of them were killed."""
import signal
import unittest

from ranks_case import DATA, RanksCase

CODED = ("--recipe", "coded")
WINDOWS = ("--sink", "16", "--recent", "64")
# Two blocks of sums: a third rank has no text.
TEXT = ("--model", DATA / "qwen3-2m", "--tokens", DATA / "golden/qwen3-2m/tokens_calib.npy", "--max-tokens", "10240", "--seq-len", "320", *WINDOWS)


class CodedRanksTest(RanksCase):
    def test_a_dump_is_dealt_by_layers(self):
        self.run_alone("fit", *CODED, "--dump", "dump", *WINDOWS, "--save-stats", "sums", "--out", "alone")
        codes, errors = self.finish(self.start(*CODED, "--dump", "dump", *WINDOWS, "--save-stats", "sums_3", "--out", "by_3", size=3))
        self.assertEqual(codes, [0, 0, 0], errors)
        self.expect_same("sums", "sums_3")
        self.expect_same("alone", "by_3")
        self.assertEqual(list(self.folder.glob("*.partial")), [])
        codes, errors = self.finish(self.start(*CODED, "--stats", "sums", "--out", "never"))
        self.assertEqual(codes, [2, 2], errors)
        self.assertIn("adds statistics up in one process", errors[0])

    def test_ranks_share_the_text_of_a_model(self):
        self.run_alone("fit", *CODED, *TEXT, "--out", "one")
        fit = (*CODED, *TEXT, "--out", "shared")
        processes = self.start(*fit)
        self.wait_for("shared.partial/layer_1.safetensors")
        for process in processes:
            process.send_signal(signal.SIGKILL)
        self.finish(processes)
        self.assertLessEqual({"layer_costs", "layer_0", "layer_1"}, self.kept("shared.partial"))
        codes, errors = self.finish(self.start(*fit, "--resume", size=3))
        self.assertEqual(codes, [0, 0, 0], errors)
        self.expect_same("one", "shared")
        self.assertEqual(list(self.folder.glob("*.partial")), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
