# SPDX-License-Identifier: MIT
"""What happens when one of several processes fails, dies, stands still or does not come: the others end by its name, in time,
and only its share is lost."""
import shutil
import signal
import subprocess
import time
import unittest

from ranks_case import BINARY, DATA, ON_CPU, TORCHRUN, RanksCase, free_port


class FailuresTest(RanksCase):
    def stop_rank_1(self, out, *options):
        """Two ranks, of which rank 1 stands still with one of its two layers done."""
        for _ in range(5):
            processes = self.start("--dump", "dump", "--out", out, *options)
            self.wait_for(f"{out}.partial/layer_1.safetensors")
            processes[1].send_signal(signal.SIGSTOP)
            if not (self.folder / f"{out}.partial/layer_3.safetensors").exists():
                return processes
            for process in processes:
                process.kill()
                process.communicate()
        self.fail("rank 1 was too fast five times")

    def test_a_rank_that_fails_is_named_with_its_reason(self):
        self.addCleanup(self.spoil(1))
        codes, errors = self.finish(self.start("--dump", "dump", "--out", "failed"))
        self.assertEqual(codes, [1, 1])
        self.assertRegex(errors[0], r"rank 1 \(.*\) failed: q has NaN or Inf \(.*layer_1/q/1.pt")
        self.assertIn("--resume", errors[0])
        self.assertFalse((self.folder / "failed").exists())

    def test_a_killed_rank_ends_the_job_and_loses_only_its_share(self):
        processes = self.stop_rank_1("killed", "--rank-timeout", "3")
        processes[1].kill()
        since = time.monotonic()
        codes, errors = self.finish(processes)
        self.assertEqual(codes[0], 1, errors)
        self.assertRegex(errors[0], rf"rank 1 \(.*process {processes[1].pid}\) shows no sign of life")
        self.assertLess(time.monotonic() - since, 30)
        self.assertEqual(self.kept("killed.partial"), {"layer_0", "layer_1", "layer_2"})
        for layer in (0, 1, 2):
            self.addCleanup(self.spoil(layer))  # nobody may read these again
        codes, errors = self.finish(self.start("--dump", "dump", "--out", "killed", "--resume"))
        self.assertEqual(codes, [0, 0], errors)
        self.doCleanups()
        self.run_alone("fit", "--dump", "dump", "--recipe", "oscar", "--out", "unbroken")
        self.expect_same("unbroken", "killed")

    def test_ranks_notice_that_rank_0_is_gone(self):
        processes = self.stop_rank_1("headless")
        processes[0].kill()
        processes[1].send_signal(signal.SIGCONT)
        codes, errors = self.finish(processes)
        self.assertEqual(codes[1], 1, errors)
        self.assertRegex(errors[1], rf"\Aoscar: error: rank 0 \(.*process {processes[0].pid}\) is gone\n  try: .*\n\Z")

    def test_a_job_that_torchrun_is_told_to_end_keeps_finished_layers(self):
        """As Slurm does before it takes the machines away."""
        if not TORCHRUN.exists():
            self.skipTest("no torchrun; scripts/setup.sh --tests installs it")
        for attempt in range(5):
            out = f"preempted_{attempt}"
            job = subprocess.Popen([TORCHRUN, "--no-python", "--nproc-per-node", "2", "--master-port", free_port(), BINARY, "fit",
                                    "--dump", "dump", "--recipe", "oscar", "--threads", "1", "--out", out], cwd=self.folder,
                                   stderr=subprocess.PIPE, text=True, env=ON_CPU)
            self.wait_for(f"{out}.partial/layer_0.safetensors")
            job.send_signal(signal.SIGTERM)
            errors = job.communicate(timeout=60)[1]
            if job.returncode != 0:
                break
        self.assertNotEqual(job.returncode, 0, errors)
        self.assertFalse((self.folder / out).exists())
        kept = self.kept(f"{out}.partial")
        self.assertIn("layer_0", kept)
        for layer in kept:
            self.addCleanup(self.spoil(int(layer[len("layer_"):])))  # nobody may read these again
        codes, errors = self.finish(self.start("--dump", "dump", "--out", out, "--resume", size=3))
        self.assertEqual(codes, [0, 0, 0], errors)
        self.doCleanups()
        self.run_alone("fit", "--dump", "dump", "--recipe", "oscar", "--out", "not_preempted")
        self.expect_same("not_preempted", out)

    def test_rank_0_without_room_on_its_disk_is_named_with_its_reason(self):
        little_room = ["bash", "-c", 'trap "" XFSZ; ulimit -f 8; exec "$@"', "bash"]
        codes, errors = self.finish(self.start("--dump", "dump", "--out", "full", through={0: little_room}))
        self.assertEqual(codes[0], 1, errors)
        self.assertRegex(errors[0], r"cannot write: File too large\n.*full.partial/")
        if codes[1] != 0:  # it may have been done before
            self.assertRegex(errors[1], r"rank 0 \(.*\) failed: cannot write: File too large \(full.partial/")
        codes, errors = self.finish(self.start("--dump", "dump", "--out", "full", "--resume"))
        self.assertEqual(codes, [0, 0], errors)
        self.run_alone("fit", "--dump", "dump", "--recipe", "oscar", "--out", "not_full")
        self.expect_same("not_full", "full")

    def test_what_is_left_of_another_fit_is_refused_or_replaced(self):
        mend = self.spoil(3)
        self.addCleanup(mend)
        codes, errors = self.finish(self.start("--dump", "dump", "--out", "stale"))
        self.assertEqual(codes, [1, 1], errors)
        self.assertLessEqual({"layer_0", "layer_1"}, self.kept("stale.partial"))
        mend()
        codes, errors = self.finish(self.start("--dump", "dump", "--clip", "off", "--out", "stale", "--resume"))
        self.assertEqual(codes, [1, 1], errors)
        for error in errors:
            self.assertIn("what is left of an earlier fit is of another: recipe differ", error)
        codes, errors = self.finish(self.start("--dump", "dump", "--clip", "off", "--out", "stale"))
        self.assertEqual(codes, [0, 0], errors)
        self.run_alone("fit", "--dump", "dump", "--recipe", "oscar", "--clip", "off", "--out", "not_stale")
        self.expect_same("not_stale", "stale")

    def test_ranks_that_read_different_kinds_of_input_are_refused(self):
        model = ["--model", DATA / "qwen3-2m", "--tokens", DATA / "golden/qwen3-2m/tokens_calib.npy", "--sequences", "1",
                 "--seq-len", "450"]
        since = time.monotonic()
        codes, errors = self.finish(self.start("--out", "kinds", of_rank={0: model, 1: ["--dump", "dump"]}))
        self.assertEqual(codes, [1, 1], errors)
        self.assertIn("rank 1 has other data or options than rank 0: input", errors[0])
        self.assertLess(time.monotonic() - since, 20)

    def test_ranks_with_different_options_are_refused(self):
        codes, errors = self.finish(self.start("--dump", "dump", "--out", "mixed", of_rank={1: ["--clip", "off"]}))
        self.assertEqual(codes, [1, 1])
        self.assertIn("rank 1 has other data or options than rank 0: recipe", errors[0])

    def test_ranks_that_compute_in_different_types_are_refused(self):
        model = ["--model", DATA / "qwen3-2m", "--tokens", DATA / "golden/qwen3-2m/tokens_calib.npy", "--sequences", "1",
                 "--seq-len", "450", "--out", "types"]
        codes, errors = self.finish(self.start(*model, of_rank={1: ["--model-dtype", "bfloat16"]}))
        self.assertEqual(codes, [1, 1], errors)
        self.assertIn("rank 1 has other data or options than rank 0: model_dtype", "".join(errors))

    def test_ranks_with_another_text_or_model_are_refused_by_what_differs(self):
        tokens = DATA / "golden/qwen3-2m/tokens_calib.npy"
        other = self.folder / "other/qwen3-2m"  # of the same name
        shutil.copytree(DATA / "qwen3-2m", other)
        weights, = other.glob("*.safetensors")
        values = weights.read_bytes()
        middle = len(values) // 2
        weights.write_bytes(values[:middle] + bytes(65536) + values[middle + 65536:])
        common = ["--seq-len", "450", "--out", "others"]
        first = ["--model", DATA / "qwen3-2m", "--tokens", tokens, "--sequences", "2"]
        for second, said in ((["--model", DATA / "qwen3-2m", "--tokens", tokens, "--sequences", "1"], "calibration"),
                             (["--model", other, "--tokens", tokens, "--sequences", "2"], "weights")):
            codes, errors = self.finish(self.start(*common, of_rank={0: first, 1: second}))
            self.assertEqual(codes, [1, 1], errors)
            self.assertRegex("".join(errors), f"rank 1 has other data or options than rank 0: {said}")
            self.assertFalse((self.folder / "others").exists())

    def test_a_rank_that_dies_while_ranks_share_a_text_ends_the_job_by_its_name(self):
        text = ["--model", DATA / "qwen3-2m", "--tokens", DATA / "golden/qwen3-2m/tokens_calib.npy", "--sequences", "12",
                "--seq-len", "2048", "--max-tokens", "0", "--clip", "0.96,0.92"]  # three blocks
        processes = self.start(*text, "--out", "died", "--rank-timeout", "3")
        self.wait_for("died.partial/layer_0.safetensors")
        processes[1].send_signal(signal.SIGKILL)
        since = time.monotonic()
        codes, errors = self.finish(processes)
        self.assertEqual(codes[0], 1, errors)
        self.assertRegex(errors[0], rf"rank 1 \(.*process {processes[1].pid}\) shows no sign of life")
        self.assertLess(time.monotonic() - since, 60)
        self.assertIn("layer_0", self.kept("died.partial"))
        codes, errors = self.finish(self.start(*text, "--out", "died", "--resume", size=3))
        self.assertEqual(codes, [0, 0, 0], errors)
        self.run_alone("fit", *text, "--recipe", "oscar", "--out", "not_died")
        self.expect_same("not_died", "died")

    def test_a_rank_that_stands_still_ends_the_job_and_itself(self):
        processes = self.stop_rank_1("still", "--rank-timeout", "2")
        since = time.monotonic()
        codes, errors = self.finish(processes[:1])
        self.assertLess(time.monotonic() - since, 30)
        self.assertRegex(errors[0], rf"rank 1 \(.*process {processes[1].pid}\) shows no sign of life")
        processes[1].send_signal(signal.SIGCONT)
        codes, errors = self.finish(processes[1:])
        self.assertEqual(codes, [1], errors)
        self.assertRegex(errors[0], "rank 0 .*is gone|rank 0 .*does not answer|rank 1 .*shows no sign of life")

    def test_a_slow_rank_delays_nobody_else_and_changes_nothing(self):
        """It stands still, as on a disk that does not answer, until the other has done all of its share."""
        processes = self.stop_rank_1("slow")
        self.wait_for("slow.partial/layer_2.safetensors")
        processes[1].send_signal(signal.SIGCONT)
        codes, errors = self.finish(processes)
        self.assertEqual(codes, [0, 0], errors)
        self.run_alone("fit", "--dump", "dump", "--recipe", "oscar", "--out", "not_slow")
        self.expect_same("not_slow", "slow")

    def test_a_rank_killed_when_its_work_is_done_and_not_yet_fetched_loses_nothing(self):
        """Rank 0, which keeps the store, stands still meanwhile; what was sent to it may yet arrive."""
        processes = self.start("--dump", "dump", "--out", "late", "--rank-timeout", "3")
        self.wait_for("late.partial/layer_0.safetensors")
        processes[0].send_signal(signal.SIGSTOP)
        self.wait_for("late.partial/layer_3.safetensors")
        processes[1].kill()
        processes[0].send_signal(signal.SIGCONT)
        codes, errors = self.finish(processes)
        if codes[0] != 0:
            self.assertRegex(errors[0], rf"rank 1 \(.*process {processes[1].pid}\) shows no sign of life")
            self.assertEqual(self.kept("late.partial"), {"layer_0", "layer_1", "layer_2", "layer_3"})
            for layer in range(4):
                self.addCleanup(self.spoil(layer))
            codes, errors = self.finish(self.start("--dump", "dump", "--out", "late", "--resume"))
            self.assertEqual(codes, [0, 0], errors)
            self.doCleanups()
        self.run_alone("fit", "--dump", "dump", "--recipe", "oscar", "--out", "not_late")
        self.expect_same("not_late", "late")

    def test_a_rank_that_dies_before_all_have_met_is_named_in_time(self):
        processes = self.start("--dump", "dump", "--out", "unmet", "--rank-timeout", "2", size=3, only=(0, 1))
        self.wait_for_ranks(2)  # the third never comes
        self.assertEqual([process.poll() for process in processes], [None, None])
        processes[1].kill()
        since = time.monotonic()
        codes, errors = self.finish(processes)
        self.assertEqual(codes[0], 1, errors)
        self.assertRegex(errors[0], rf"rank 1 \(.*process {processes[1].pid}\) shows no sign of life")
        self.assertLess(time.monotonic() - since, 20)

    def test_rank_0_that_dies_before_all_have_met_is_noticed_at_once(self):
        processes = self.start("--dump", "dump", "--out", "unmet_0", size=3, only=(0, 1))
        self.wait_for_ranks(2)
        processes[0].kill()
        since = time.monotonic()
        codes, errors = self.finish(processes)
        self.assertEqual(codes[1], 1, errors)
        self.assertRegex(errors[1], "rank 0 .*is gone")
        self.assertLess(time.monotonic() - since, 10)

    def test_a_rank_that_does_not_come_is_named_after_the_time_given(self):
        since = time.monotonic()
        codes, errors = self.finish(self.start("--dump", "dump", "--out", "alone", "--join-timeout", "2", size=3, only=(0, 1)))
        self.assertEqual(codes, [1, 1], errors)
        for error in errors:
            self.assertIn("rank 2 did not come", error)
        self.assertLess(time.monotonic() - since, 20)

    def test_what_only_rank_0_can_find_wrong_is_told_to_all(self):
        (self.folder / "there").mkdir()
        (self.folder / "there/something").write_text("else")
        since = time.monotonic()
        codes, errors = self.finish(self.start("--dump", "dump", "--out", "there"))
        self.assertEqual(codes, [2, 1], errors)
        self.assertRegex(errors[1], r"rank 0 \(.*\) failed: .*there")
        self.assertLess(time.monotonic() - since, 20)


if __name__ == "__main__":
    unittest.main()
