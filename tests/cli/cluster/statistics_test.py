# SPDX-License-Identifier: MIT
"""oscar fit --save-stats by several processes: the bytes of one, layers dealt; what a failure leaves."""
import signal
import subprocess
import unittest

from ranks_case import BINARY, DATA, ON_CPU, TORCHRUN, RanksCase, free_port

MODEL = ("--model", DATA / "qwen3-2m", "--tokens", DATA / "golden/qwen3-2m/tokens_calib.npy", "--seq-len", "1024")


class StatisticsTest(RanksCase):
    SEQUENCES = ("--sequences", "6", "--seq-len", "2048")  # three blocks a layer

    def test_both_passes_of_ranks_have_the_bytes_of_one_process(self):
        self.run_alone("fit", "--dump", "dump", "--save-stats", "first_1")
        self.run_alone("fit", "--dump", "dump", "--stats", "first_1", "--save-stats", "second_1")
        for size in (2, 3, 5):  # of four layers: some ranks get one more, or none
            codes, errors = self.finish(self.start("--dump", "dump", "--save-stats", f"first_{size}", size=size))
            self.assertEqual(codes, [0] * size, errors)
            self.expect_same("first_1", f"first_{size}")
            codes, errors = self.finish(self.start("--dump", "dump", "--stats", "first_1", "--save-stats", f"second_{size}",
                                                   size=size))
            self.assertEqual(codes, [0] * size, errors)
            self.expect_same("second_1", f"second_{size}")
        self.assertEqual(list(self.folder.glob("*.partial")), [])

    def test_ranks_without_a_layer_change_nothing(self):
        options = ["--dump", "dump", "--layers", "2", "--key-objective", "fisher", "--center", "--target", "any"]
        self.run_alone("fit", *options, "--save-stats", "layer_1")
        codes, errors = self.finish(self.start(*options, "--save-stats", "layer_3", size=3))
        self.assertEqual(codes, [0, 0, 0], errors)
        self.expect_same("layer_1", "layer_3")

    def test_torchrun(self):
        if not TORCHRUN.exists():
            self.skipTest("no torchrun; scripts/setup.sh --tests installs it")
        self.run_alone("fit", "--dump", "dump", "--save-stats", "alone")
        done = subprocess.run([TORCHRUN, "--no-python", "--nproc-per-node", "2", "--master-port", free_port(), BINARY, "fit",
                               "--dump", "dump", "--save-stats", "together"], cwd=self.folder, capture_output=True, text=True,
                              timeout=240, env=ON_CPU)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("2 ranks", done.stderr)
        self.expect_same("alone", "together")

    def test_a_killed_rank_loses_only_its_share(self):
        processes = self.start("--dump", "dump", "--save-stats", "killed", "--rank-timeout", "3")
        self.wait_for("killed.partial/layer_1.safetensors")  # rank 1's first
        processes[1].send_signal(signal.SIGKILL)
        codes, errors = self.finish(processes)
        self.assertEqual(codes[0], 1, errors)
        self.assertRegex(errors[0], rf"rank 1 \(.*process {processes[1].pid}\) shows no sign of life")
        kept = self.kept("killed.partial")
        self.assertLessEqual({"layer_0", "layer_1"}, kept)  # each rank keeps what it has made
        for layer in kept:
            self.addCleanup(self.spoil(int(layer[len("layer_"):])))  # nobody may read these again
        codes, errors = self.finish(self.start("--dump", "dump", "--save-stats", "killed", "--resume"))
        self.assertEqual(codes, [0, 0], errors)
        self.doCleanups()
        self.run_alone("fit", "--dump", "dump", "--save-stats", "unbroken")
        self.expect_same("unbroken", "killed")

    def test_both_passes_of_ranks_that_run_a_model_have_the_bytes_of_one_process(self):
        text = [*MODEL, "--sequences", "14", "--max-tokens", "0"]  # two blocks
        self.run_alone("fit", *text, "--save-stats", "live_1")
        self.run_alone("fit", *text, "--stats", "live_1", "--save-stats", "again_1")
        for size in (2, 3):  # each with a block, or one without text
            codes, errors = self.finish(self.start(*text, "--save-stats", f"live_{size}", size=size))
            self.assertEqual(codes, [0] * size, errors)
            self.expect_same("live_1", f"live_{size}")
            codes, errors = self.finish(self.start(*text, "--stats", "live_1", "--save-stats", f"again_{size}", size=size))
            self.assertEqual(codes, [0] * size, errors)
            self.expect_same("again_1", f"again_{size}")
        self.assertEqual(list(self.folder.glob("*.partial")), [])

    def test_ranks_that_run_a_model_go_on_in_another_number(self):
        text = [*MODEL, "--sequences", "8", "--layers", "0,1,3"]
        processes = self.start(*text, "--save-stats", "halted", "--rank-timeout", "3")
        self.wait_for("halted.partial/layer_1.safetensors")
        processes[1].kill()
        codes, errors = self.finish(processes)
        self.assertEqual(codes[0], 1, errors)
        self.assertRegex(errors[0], rf"rank 1 \(.*process {processes[1].pid}\) shows no sign of life")
        self.assertEqual(self.kept("halted.partial"), {"layer_0", "layer_1"})
        kept = self.folder / "halted.partial/layer_0.safetensors"
        kept.write_bytes(b"damaged")  # and so made again
        codes, errors = self.finish(self.start(*text, "--save-stats", "halted", "--resume", size=3))
        self.assertEqual(codes, [0, 0, 0], errors)
        self.assertIn("halted.partial/layer_0.safetensors, kept by an earlier run, is made again", errors[0])
        self.run_alone("fit", *text, "--save-stats", "not_halted")
        self.expect_same("not_halted", "halted")

    def test_one_process_goes_on_too(self):
        mend = self.spoil(3)
        self.addCleanup(mend)
        fit = ["fit", "--dump", "dump", "--resume", "--save-stats", "resumed"]
        done = subprocess.run([BINARY, *fit], cwd=self.folder, capture_output=True, text=True, env=ON_CPU)
        self.assertEqual(done.returncode, 1)
        self.assertIn("layer_3", done.stderr)
        self.assertEqual(self.kept("resumed.partial"), {"layer_0", "layer_1", "layer_2"})
        mend()
        done = subprocess.run([BINARY, *fit, "--value-objective", "vtv"], cwd=self.folder, capture_output=True, text=True,
                              env=ON_CPU)
        self.assertEqual(done.returncode, 1)
        self.assertIn("is of another: recipe differ", done.stderr)
        self.addCleanup(self.spoil(0))
        self.run_alone(*fit)
        self.doCleanups()
        self.run_alone("fit", "--dump", "dump", "--save-stats", "at_once")
        self.expect_same("at_once", "resumed")
        self.assertFalse((self.folder / "resumed.partial").exists())

    def test_what_several_processes_do_not_share_is_refused(self):
        self.run_alone("fit", "--dump", "dump", "--layers", "0", "--save-stats", "some")
        for options, said in ((["--stats", "some", "--save-stats", "sum"], "is the work of one process"),
                              (["--dump", "dump", "--save-stats", "some"], "there is such a file already")):
            codes, errors = self.finish(self.start(*options))
            self.assertEqual(codes, [2, 2], errors)
            self.assertIn(said, errors[0])


if __name__ == "__main__":
    unittest.main()
