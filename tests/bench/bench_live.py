# SPDX-License-Identifier: MIT
"""Times live fits, `oscar fit --model`, on random weights of real shapes; prints and keeps a JSON document.

bench_live.py [PART...] [--binary build/oscar] [--device cuda] [--tokens 30000] [--layers 36] [--work /dev/shm] [--disk FOLDER]
              [--out FILE] [--repeats 3]
  qwen3-8b   36 layers in bfloat16, files in memory (--work): seconds of the fit after start-up, bytes of weights a second,
             peak GPU memory beside what L3 allows
  glm-4.7    3 layers with 160 experts in float8 each: the same
  cold       weights of 20 layers of Qwen3-8B on a disk (--disk), read for the first time, beside dd on the same files
  model-alone  peak GPU memory of a dump of Qwen3-8B's shape, which fits nothing
  small      the sample model: what a run takes of a GPU's memory without any weights to speak of
Times are those of the program's own --json: its start-up (libraries, the GPU) is not in them, and given apart.
"""
import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy
import torch
from safetensors.torch import save_file

sys.dont_write_bytecode = True
import gpu_machine  # noqa: E402  (beside this file)

ROOT = Path(__file__).parents[2]
COMMON = {"rms_norm_eps": 1e-6, "hidden_act": "silu", "max_position_embeddings": 40960, "torch_dtype": "bfloat16",
          "tie_word_embeddings": False, "head_dim": 128, "num_key_value_heads": 8,
          "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
QWEN = {**COMMON, "model_type": "qwen3", "hidden_size": 4096, "num_attention_heads": 32, "intermediate_size": 12288,
        "vocab_size": 151936}
GLM = {**COMMON, "model_type": "glm4_moe", "hidden_size": 5120, "num_attention_heads": 96, "intermediate_size": 12288,
       "vocab_size": 151552, "n_routed_experts": 160, "num_experts_per_tok": 8, "moe_intermediate_size": 1536,
       "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 0, "routed_scaling_factor": 2.5,
       "norm_topk_prob": True, "use_qk_norm": True, "attention_bias": True, "partial_rotary_factor": 0.5,
       "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}


def random(*shape):
    return (torch.randn(shape) / shape[-1] ** 0.5).to(torch.bfloat16)


def qwen_layer():
    hidden, inner, queries, keys = 4096, 12288, 4096, 1024
    one = torch.ones(hidden, dtype=torch.bfloat16)
    return {"input_layernorm.weight": one, "post_attention_layernorm.weight": one.clone(),
            "self_attn.q_proj.weight": random(queries, hidden), "self_attn.k_proj.weight": random(keys, hidden),
            "self_attn.v_proj.weight": random(keys, hidden), "self_attn.o_proj.weight": random(hidden, queries),
            "self_attn.q_norm.weight": one[:128].clone(), "self_attn.k_norm.weight": one[:128].clone(),
            "mlp.gate_proj.weight": random(inner, hidden), "mlp.up_proj.weight": random(inner, hidden),
            "mlp.down_proj.weight": random(hidden, inner)}


def float8(name, rows, columns):
    """A matrix whose elements are float8 and whose blocks share a scale."""
    scales = torch.full((-(-rows // 128), -(-columns // 128)), columns ** -0.5)
    return {f"{name}.weight": torch.randn(rows, columns).to(torch.float8_e4m3fn), f"{name}.weight_scale_inv": scales}


def glm_layer():
    hidden, inner, queries, keys = 5120, 1536, 96 * 128, 1024
    one = torch.ones(hidden, dtype=torch.bfloat16)
    layer = {"input_layernorm.weight": one, "post_attention_layernorm.weight": one.clone(),
             "self_attn.q_norm.weight": one[:128].clone(), "self_attn.k_norm.weight": one[:128].clone(),
             "mlp.gate.weight": random(160, hidden), "mlp.gate.e_score_correction_bias": torch.zeros(160)}
    for part, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
        layer |= float8(f"self_attn.{part}", rows, hidden) | {f"self_attn.{part}.bias": torch.zeros(rows).bfloat16()}
    layer |= float8("self_attn.o_proj", hidden, queries)
    one_expert = {"gate_proj": float8("x", inner, hidden), "up_proj": float8("x", inner, hidden),
                  "down_proj": float8("x", hidden, inner)}
    for expert in [*(f"experts.{e}" for e in range(160)), "shared_experts"]:
        for part, tensors in one_expert.items():
            layer |= {f"mlp.{expert}.{part}{name[1:]}": tensor.clone() for name, tensor in tensors.items()}
    return layer


def write_model(folder, config, layer, layers):
    """A shard per layer, all with the same values, and one for the rest."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))
    table = random(config["vocab_size"], config["hidden_size"])
    rest = {"model.embed_tokens.weight": table, "model.norm.weight": torch.ones(config["hidden_size"]).bfloat16(),
            "lm_head.weight": table[:1].expand_as(table).contiguous()}
    shards = {"rest.safetensors": rest}
    weight_map = {}
    for index in range(layers):
        shards[f"layer-{index}.safetensors"] = {f"model.layers.{index}.{name}": tensor for name, tensor in layer.items()}
    for file, tensors in shards.items():
        save_file(tensors, folder / file)
        weight_map |= {name: file for name in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def layer_bytes(layer, *without):
    return sum(t.numel() * t.element_size() for name, t in layer.items() if not any(word in name for word in without))


class Bench:
    def __init__(self, options, work):
        self.options, self.work = options, work
        self.out = work / "set"

    def write_tokens(self, vocabulary):
        generator = numpy.random.default_rng(0)
        numpy.save(self.work / "tokens.npy", generator.integers(0, vocabulary, self.options.tokens, dtype=numpy.int32))

    def fit(self, model, vocabulary):
        self.write_tokens(vocabulary)
        shutil.rmtree(self.out, ignore_errors=True)
        command = [self.options.binary, "fit", "--recipe", "oscar", "--model", model, "--tokens", self.work / "tokens.npy",
                   "--out", self.out, "--max-tokens", 0, "--device", self.options.device, "--quiet", "--json"]
        begin = time.perf_counter()
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - begin
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        return {**json.loads(done.stdout)["seconds"], "process": seconds}

    def repeated(self, model, vocabulary, read_bytes):
        runs = [self.fit(model, vocabulary) for _ in range(self.options.repeats)]
        result = {"runs": runs, "fit_seconds": statistics.median(run["fit"] for run in runs)}
        result["startup_seconds"] = statistics.median(run["startup"] for run in runs)
        result["weights_gb"] = read_bytes / 1e9
        result["weights_gb_per_s"] = read_bytes / 1e9 / result["fit_seconds"]
        return result

    def memory(self, model, vocabulary, allowed=None):
        if self.options.device == "cpu":
            return {}
        with gpu_machine.peak_gpu_memory() as peak:
            self.fit(model, vocabulary)
        result = {"peak_gpu_memory_gb": peak[0] / 1e9}
        return result if allowed is None else {**result, "two_layers_activations_qkv_gb": allowed / 1e9}

    def qwen3_8b(self):
        layer = qwen_layer()
        model = self.work / "qwen"
        write_model(model, QWEN, layer, self.options.layers)
        whole = layer_bytes(layer)
        read = (self.options.layers - 1) * whole + layer_bytes(layer, "mlp", "o_proj")
        tokens = self.options.tokens
        activations = 2 * tokens * 4096 + 4096 * (2 * 12288 * 2 + 4 * 4096 * 4)  # hidden states; what one sequence needs
        result = self.repeated(model, QWEN["vocab_size"], read)
        result |= self.memory(model, QWEN["vocab_size"], 2 * whole + activations + 2 * tokens * 128 * 48)
        shutil.rmtree(model)
        return {**result, "target_fit_seconds": 2.5}

    def glm_4_7(self):
        layer = glm_layer()
        model = self.work / "glm"
        write_model(model, GLM, layer, 4)
        read = 3 * layer_bytes(layer)
        result = self.repeated(model, GLM["vocab_size"], read)
        result |= self.memory(model, GLM["vocab_size"], 2 * layer_bytes(layer) + 2 * self.options.tokens * (5120 + 128 * 112))
        shutil.rmtree(model)
        return result

    def cold(self):
        layer = qwen_layer()
        model = Path(self.options.disk or self.work) / "oscar-cold"
        shutil.rmtree(model, ignore_errors=True)
        write_model(model, QWEN, layer, 21)
        files = sorted(model.glob("layer-*.safetensors"))
        os.sync()
        dd = []
        for file in files[:3]:
            begin = time.perf_counter()
            subprocess.run(["dd", f"if={file}", "of=/dev/null", "bs=16M", "iflag=direct"], check=True, capture_output=True)
            dd.append(file.stat().st_size / 1e9 / (time.perf_counter() - begin))
        runs = []
        for _ in range(self.options.repeats):
            for file in model.iterdir():
                with open(file, "rb") as opened:
                    os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            runs.append(self.fit(model, QWEN["vocab_size"])["fit"])
        read = 20 * layer_bytes(layer) + layer_bytes(layer, "mlp", "o_proj")
        shutil.rmtree(model)
        rate = read / 1e9 / statistics.median(runs)
        return {"disk_gb_per_s": statistics.median(dd), "fit_seconds": runs, "weights_gb_per_s": rate,
                "share_of_disk": rate / statistics.median(dd), "target_share_of_disk": 0.85}

    def small(self):
        return self.memory(ROOT / "tests/data/qwen3-2m", 2048)

    def model_alone(self):
        """The model's part of a GPU's memory: a dump fits nothing, so the fit's kernels and buffers are not there."""
        model = self.work / "qwen"
        write_model(model, QWEN, qwen_layer(), 4)
        self.write_tokens(QWEN["vocab_size"])
        command = [self.options.binary, "dump", "--model", model, "--tokens", self.work / "tokens.npy", "--out", self.out,
                   "--max-tokens", "0", "--device", self.options.device, "--quiet", "--force"]
        with gpu_machine.peak_gpu_memory() as peak:
            subprocess.run([str(word) for word in command], check=True)
        shutil.rmtree(model)
        return {"peak_gpu_memory_gb": peak[0] / 1e9}


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["small", "model-alone", "qwen3-8b", "glm-4.7", "cold"])
    parser.add_argument("--binary", type=Path, default=ROOT / "build/oscar")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--work", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--disk", type=Path)
    parser.add_argument("--out", type=Path)
    for name, default in (("tokens", 30000), ("layers", 36), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


def main():
    options = parse_options()
    result = {"machine": gpu_machine.describe(), "tokens": options.tokens, "layers": options.layers, "device": options.device}
    if options.device != "cpu":
        result["gpu"] = torch.cuda.get_device_name()
    with tempfile.TemporaryDirectory(dir=options.work, prefix="oscar-live-") as folder:
        bench = Bench(options, Path(folder))
        for part in options.parts:
            try:
                result[part] = getattr(bench, part.replace("-", "_").replace(".", "_"))()
            except (OSError, RuntimeError) as error:
                result[part] = {"error": str(error)}
            with contextlib.suppress(AttributeError):
                options.out.write_text(json.dumps(result, indent=1) + "\n")
            print(json.dumps({part: result[part]}, indent=1), flush=True)
    return 1 if any("error" in result[part] for part in options.parts) else 0


if __name__ == "__main__":
    sys.exit(main())
