# SPDX-License-Identifier: MIT
"""A real language model in a real vLLM on the CPU, SmolLM2-135M-Instruct of 30 layers: vllm_real_model_test.py [RealModelTest.test_…]

Model and texts are those that scripts/real_model.sh --fetch-only leaves in out/real_model; exit status 77 without them. The set is
fitted here, on 1,280 tokens and with short windows, so that short prompts are read from packed rows; serve-check must tell it from rotations.
"""
import sys
import tempfile
from pathlib import Path

import numpy as np
import oscar_kv
from checkpoint_of_gguf import write_checkpoint
from vllm_serving import GIB, PROJECT, ServedModel, main

REAL = PROJECT / "out/real_model"
GGUF = REAL / "smollm2.gguf"
CALIBRATION, HELD_OUT = (REAL / "texts/smollm2" / name for name in ("calibrate_8k.npy", "documentation_measure.npy"))
BF16_BYTES = 30 * 2 * 3 * 64 * 2  # of one token: layers, keys and values, KV heads, channels
# The coded set has few bits, since what one of 2.25 bits changes is less than what a server's bfloat16 arithmetic does.
RECIPES = {"rotations": {"recipe": "oscar"}, "coded": {"recipe": "coded", "bits": 1.5}}


class RealModelTest(ServedModel):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory(prefix="oscar-real-")
        cls.addClassCleanup(temporary.cleanup)
        cls.sets, cls.checkpoint = Path(temporary.name), Path(temporary.name) / "smollm2"
        write_checkpoint(GGUF, cls.checkpoint)
        dump = cls.sets / "dump"
        oscar_kv.run("dump", "--model", cls.checkpoint, "--tokens", CALIBRATION, "--seq-len", "320", "--sequences", "4", "--out", dump, "--device", "cpu")
        for name, options in RECIPES.items():
            oscar_kv.fit(cls.sets / name, dump=dump, sink=32, recent=64, device="cpu", **options)

    def serve(self, name=None):
        """A server with this set; name: None serves bfloat16."""
        self.served(model=self.checkpoint, **({"OSCAR_KV_SET": str(self.sets / name)} if name else {}))

    def says(self, name, status):
        """serve-check of one of our sets; status: with which it must end."""
        found = self.check(self.sets / name, status, "--prompts", "3", "--needles", "1", "--prompt-tokens", "192", "--generate", "48",
                           tokens=HELD_OUT)
        print("figure:", name, {key: found[key] for key in ("agreement", "measured_kl", "predicted_kl", "positions", "reasons")}, flush=True)

    def assert_reads(self, name):
        """Generated tokens have about the log-probabilities of PackedCache with this set; an exact cache's are farther away."""
        ids = np.load(HELD_OUT).reshape(-1).tolist()
        prompts = [ids[:200], ids[9000:9320]]
        answers = self.complete_all(prompts, 16)
        own, exact = (self.difference(prompts, answers, path) for path in (self.sets / name, None))
        self.assertLess(own, 0.1)
        self.assertLess(own, 0.8 * exact)

    def test_bfloat16(self):
        self.serve()
        self.assertAlmostEqual(self.cache_tokens(), GIB / BF16_BYTES, delta=1024)
        self.says("rotations", 3)
        self.says("coded", 3)

    def test_a_coded_set(self):
        self.serve("coded")
        self.assertRegex(self.said(), r"is served in 30 layers at 1\.[45]\d\d bits")
        self.assertGreater(self.cache_tokens(), 10 * GIB / BF16_BYTES)
        self.assert_reads("coded")
        self.says("rotations", 3)
        self.says("coded", 0)


if __name__ == "__main__":
    if not (GGUF.is_file() and HELD_OUT.is_file()):
        print(f"skipped: {REAL} lacks the model or its texts; run scripts/real_model.sh --fetch-only")
        sys.exit(77)
    main()
