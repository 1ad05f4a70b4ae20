# SPDX-License-Identifier: MIT
"""Links between two GPUs, by NCCL: the bytes of one process, and the end of every wait for a rank that is gone, stands still or
cannot be reached. Skipped on machines with fewer GPUs."""
import array
import shutil
import signal
import subprocess
import time
import unittest

from ranks_case import DATA, RanksCase, torch_variables

MODEL = ("--model", DATA / "qwen3-2m", "--tokens", DATA / "golden/qwen3-2m/tokens_calib.npy", "--seq-len", "1024")


def gpus():
    if shutil.which("nvidia-smi") is None:
        return 0
    return subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout.count("GPU ")


@unittest.skipIf(gpus() < 2, "this machine has not two GPUs")
class LinksTest(RanksCase):
    def variables(self, rank, size, port):
        log = self.folder / f"nccl_{port}_{rank}"
        return {**torch_variables(rank, size, port), "OSCAR_DEVICE": "auto", "NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": str(log)}

    def start_linked(self, out, *options, **more):
        return self.start(*MODEL, "--max-tokens", "30000", "--out", out, *options, variables=self.variables, **more)

    def wait_for_nccl(self, rank, text, seconds=60):
        """Until NCCL says so in this rank's log."""
        log = self.folder / f"nccl_{self.port}_{rank}"
        deadline = time.monotonic() + seconds
        while not log.exists() or text not in log.read_text(errors="replace"):
            self.assertLess(time.monotonic(), deadline, f"NCCL did not say {text!r}")
            time.sleep(0.001)

    def write_long_text(self, tokens=2_000_000):
        """Token ids for some seconds of two GPUs' time."""
        header = "{'descr': '<i4', 'fortran_order': False, 'shape': (%d,), }" % tokens
        header = header.ljust(117) + "\n"  # so that the data begin at a multiple of 64
        ids = array.array("i", (i * 7 % 2000 for i in range(tokens)))
        magic = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little")
        (self.folder / "long.npy").write_bytes(magic + header.encode() + ids.tobytes())

    def stop_mid_way(self, out, *options):
        """Two ranks, of which rank 1 stands still while hidden states go to and fro: rank 0 waits for what it should send."""
        self.write_long_text()
        processes = self.start("--model", DATA / "qwen3-2m", "--tokens", "long.npy", "--max-tokens", "0", "--seq-len", "1024",
                               "--out", out, *options, variables=self.variables)
        for rank in 0, 1:
            self.wait_for_nccl(rank, "Init COMPLETE")
        time.sleep(1)  # for the other link, and the first sequences
        processes[1].send_signal(signal.SIGSTOP)
        time.sleep(1)
        self.assertEqual([process.poll() for process in processes], [None, None])
        return processes

    def expect_end(self, process, code, said, seconds):
        since = time.monotonic()
        codes, errors = self.finish([process])
        self.assertEqual(codes, [code], errors)
        self.assertRegex(errors[0], said)
        self.assertLess(time.monotonic() - since, seconds)

    def test_linked_ranks_write_the_bytes_of_one_gpu(self):
        one = self.start(*MODEL, "--max-tokens", "30000", "--out", "one", size=1, variables=self.variables)
        self.assertEqual(self.finish(one)[0], [0])
        codes, errors = self.finish(self.start_linked("linked"))
        self.assertEqual(codes, [0, 0], errors)
        self.wait_for_nccl(1, "Init COMPLETE", seconds=1)
        self.expect_same("one", "linked")

    def test_a_link_that_does_not_open_ends_the_wait_by_the_name_of_the_other_end(self):
        processes = self.start_linked("closed", "--join-timeout", "6", "--rank-timeout", "60")
        self.wait_for_nccl(1, "Init START")
        processes[1].send_signal(signal.SIGSTOP)
        self.expect_end(processes[0], 1, rf"rank 1 \(.*process {processes[1].pid}\) did not open in time", 20)

    def test_a_rank_killed_while_links_open_is_named(self):
        processes = self.start_linked("opening", "--rank-timeout", "3")
        self.wait_for_nccl(1, "Init START")
        processes[1].kill()
        self.expect_end(processes[0], 1, rf"rank 1 \(.*process {processes[1].pid}\)", 30)

    def test_a_rank_without_the_network_named_is_told_to_all(self):
        variables = self.variables
        self.variables = lambda *place: {**variables(*place), "NCCL_SOCKET_IFNAME": "nosuch0"}
        codes, errors = self.finish(self.start_linked("nowhere"))
        self.assertEqual(codes, [1, 1], errors)
        self.assertIn("NCCL", "".join(errors))

    def test_a_rank_on_the_cpu_beside_one_on_a_gpu_is_refused(self):
        variables = lambda *place: {**torch_variables(*place), "OSCAR_DEVICE": ("auto", "cpu")[place[0]]}
        codes, errors = self.finish(self.start("--dump", "dump", "--out", "mixed", variables=variables))
        self.assertEqual(codes, [1, 1], errors)
        self.assertIn("rank 1 has other data or options than rank 0: device", errors[0])

    def test_a_rank_killed_in_the_middle_of_a_layer_is_named(self):
        processes = self.stop_mid_way("middle", "--rank-timeout", "3")
        processes[1].kill()
        self.expect_end(processes[0], 1, rf"rank 1 \(.*process {processes[1].pid}\)", 30)

    def test_one_interrupt_ends_a_rank_that_waits_for_another(self):
        processes = self.stop_mid_way("interrupted", "--rank-timeout", "60")
        processes[0].send_signal(signal.SIGINT)
        self.expect_end(processes[0], 130, "interrupted", 15)


if __name__ == "__main__":
    unittest.main()
