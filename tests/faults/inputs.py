# SPDX-License-Identifier: MIT
"""The sound inputs that faults are planted in, made once by oscar itself: prepare(folder, binary, project)."""
import json
import os
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import torch

TOKENS = ("--sequences", "3", "--seq-len", "400")


class Maker:
    def __init__(self, folder, binary, project):
        self.folder, self.binary = folder, binary
        self.model = project / "tests/data/qwen3-2m"
        self.golden = project / "tests/data/golden/qwen3-2m"

    def oscar(self, *arguments):
        done = subprocess.run([self.binary, *map(str, arguments)], cwd=self.folder, capture_output=True, text=True,
                              timeout=120, check=False, env={**os.environ, "HOME": str(self.folder), "OSCAR_DEVICE": "cpu",
                                                             "OSCAR_CACHE": str(self.folder / ".cache")})
        if done.returncode:
            raise SystemExit(f"oscar {' '.join(map(str, arguments))}: exit {done.returncode}\n{done.stderr}")

    def plain_inputs(self):
        """A model, tokens, text, keys: what users bring."""
        (self.folder / "model").mkdir()
        for name in ("config.json", "model-00001-of-00001.safetensors", "model.safetensors.index.json", "tokenizer.json"):
            (self.folder / "model" / name).write_bytes((self.model / name).read_bytes())
        (self.folder / "tokens.npy").write_bytes((self.golden / "tokens_calib.npy").read_bytes())
        (self.folder / "needles.npy").write_bytes((self.golden / "tokens_passkey.npy").read_bytes())
        for name, source in (("needles", "tokens_passkey"), ("answers", "passkey_answer_len")):
            (self.folder / f"{name}.npy").write_bytes((self.golden / f"{source}.npy").read_bytes())
        rows = numpy.load(self.folder / "tokens.npy").reshape(-1)[:900].reshape(3, 300).tolist()
        (self.folder / "tokens.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (self.folder / "text.txt").write_text("The quick brown fox jumps over the lazy dog. It was a cold day.\n" * 60)
        for key in ("key", "other"):
            subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", f"{key}.pem"], cwd=self.folder, check=True,
                           capture_output=True)
            subprocess.run(["openssl", "pkey", "-in", f"{key}.pem", "-pubout", "-out", f"{key}.pub"], cwd=self.folder,
                           check=True, capture_output=True)

    def dumps(self):
        calibration = ("--model", "model", "--tokens", "tokens.npy")
        self.oscar("dump", *calibration, *TOKENS, "--out", "dump")
        self.oscar("dump", *calibration, *TOKENS, "--format", "h5", "--layers", "0,1", "--out", "dump_h5")
        self.oscar("dump", *calibration, *TOKENS, "--format", "safetensors", "--layers", "0,1", "--out", "dump_st")
        self.oscar("dump", "--model", "model", "--tokens", self.golden / "tokens_eval.npy", "--sequences", "2", "--seq-len",
                   "600", "--out", "held")
        self.oscar("dump", *calibration, "--sequences", "2", "--seq-len", "300", "--out", "short")
        # As servers write them: three chunks, no manifest.
        for layer in range(2):
            for kind in ("q", "k", "v", "seq_lens"):
                whole = torch.load(self.folder / f"dump/layer_{layer}/{kind}/1.pt", weights_only=True)
                target = self.folder / f"served/layer_{layer}/{kind}"
                target.mkdir(parents=True)
                for chunk in range(3):
                    part = whole[chunk:chunk + 1] if kind == "seq_lens" else whole[400 * chunk:400 * (chunk + 1)]
                    torch.save(part.clone(), target / f"{chunk + 1}.pt")

    def sets(self):
        self.oscar("fit", "--dump", "dump", "--recipe", "oscar", "--out", "set")
        self.oscar("fit", "--dump", "dump", "--recipe", "stretch", "--center", "--out", "rich")
        self.oscar("fit", "--dump", "dump", "--recipe", "coded", "--sink", "16", "--recent", "48", "--out", "coded")
        self.oscar("convert", "set", "fresh")
        for name in ("set", "rich", "coded"):
            self.oscar("verify", name, "--dump", "held", "--compare", "none")
        self.oscar("fit", "--dump", "dump", "--recipe", "oscar", "--save-stats", "stats")

    def conversions(self):
        for kind in ("h5", "safetensors"):
            self.oscar("convert", "set", f"set.{kind}")
        for version in (1, 2, 3):
            self.oscar("convert", "set", f"pt{version}", "--to", "pt", "--pt-version", version)
        self.oscar("convert", "rich", "rich3", "--to", "pt")
        (self.folder / "mla").mkdir()
        latent, _ = torch.linalg.qr(torch.randn(64, 64, generator=torch.Generator().manual_seed(1)))
        for layer in (0, 1):
            torch.save({"rotation": latent, "mean": torch.zeros(64)}, self.folder / f"mla/layer_{layer}.pt")
        self.model_gguf()
        self.oscar("convert", "set", "set.gguf", "--into", "model.gguf")

    def model_gguf(self):
        import gguf
        writer = gguf.GGUFWriter(self.folder / "model.gguf", "qwen3")
        writer.add_block_count(4)
        writer.add_key_length(128)
        writer.add_array("tokenizer.ggml.tokens", ["a", "bc"])
        writer.add_tensor("token_embd.weight", numpy.ones((3, 96), dtype=numpy.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def interrupted_fit(self):
        """A live fit that ended behind its second layer, as --resume finds it, and the set that it would have given."""
        fit = ("fit", "--model", "model", "--tokens", "tokens.npy", "--sequences", "8", "--seq-len", "1024", "--recipe", "oscar", "--clip",
               "0.96,0.92", "--threads", "1", "--resume", "--quiet", "--out")
        self.oscar(*fit, "whole")
        for _ in range(10):
            with subprocess.Popen([self.binary, *fit, "going"], cwd=self.folder, stderr=subprocess.DEVNULL) as process:
                kept = self.folder / "going.partial"
                # Hidden states are kept now and then only, so any will do; of the layers the first two are looked for.
                while process.poll() is None and not (list(kept.glob("hidden_*.safetensors")) and
                                                      (kept / "layer_1.safetensors").exists()):
                    time.sleep(0.005)
                process.send_signal(signal.SIGINT)
            if kept.exists():
                return
            shutil.rmtree(self.folder / "going")
        raise SystemExit("the fit was never interrupted in time")

    def zoo(self):
        self.oscar("publish", "set", "--zoo", "zoo", "--name", "me/m", "--sign", "key.pem")


def prepare(folder, binary, project):
    maker = Maker(Path(folder), binary, project)
    maker.plain_inputs()
    maker.dumps()
    maker.sets()
    maker.interrupted_fit()
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(maker.conversions), pool.submit(maker.zoo)]:
            done.result()
