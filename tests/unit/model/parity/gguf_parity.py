# SPDX-License-Identifier: MIT
"""gguf_parity.py COMPARE: writes tiny models as GGUF files, and lets COMPARE (compare.cpp) run them against what Hugging Face
transformers makes of the weights that the files stand for. Exit status 77 if a package is not installed."""
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import gguf  # noqa: F401
    import torch
    from safetensors.torch import save_file
except ImportError as error:
    print(f"skipped: {error}; run scripts/setup.sh --tests")
    sys.exit(77)
from gguf import GGMLQuantizationType as Type

import gguf_files
import parity
from tiny_models import COMMON, MODELS

SWA, FULL = "sliding_attention", "full_attention"
FULL_MOE = {"mlp_only_layers": []}
# {case: (llama.cpp's name, model of tiny_models.py, members that differ, type of matrices)}
CASES = {
    "llama": ("llama", "llama", {}, Type.F32),
    "llama-bias": ("llama", "llama-linear-bias", {}, Type.BF16),
    "mixtral": ("llama", "mixtral", {}, Type.Q5_0),
    "qwen2": ("qwen2", "qwen2", {}, Type.F16),
    "qwen2-moe": ("qwen2moe", "qwen2-moe", FULL_MOE | {"norm_topk_prob": False}, Type.Q8_0),
    "qwen3": ("qwen3", "qwen3-yarn", {}, Type.Q4_1),
    "qwen3-moe": ("qwen3moe", "qwen3-moe", FULL_MOE, Type.Q4_0),
    "gemma2": ("gemma2", "gemma2", {"layer_types": [SWA, FULL] * 2, "query_pre_attn_scalar": 32}, Type.Q5_1),
    "gemma3": ("gemma3", "gemma3", {"layer_types": [SWA] * 5 + [FULL], "num_hidden_layers": 6, "query_pre_attn_scalar": 32},
               Type.BF16),
    "phi3": ("phi3", "phi3", {}, Type.Q8_0),
    "phi4-mini": ("phi3", "phi4-mini-long", {}, Type.F32),
    "glm4": ("glm4", "glm4", {}, Type.F16),
    "gpt-oss": ("gpt-oss", "gpt-oss", {"layer_types": [SWA, FULL, SWA]}, Type.MXFP4),
}


def same(case, compare, parts=1):
    architecture, name, members, wanted = CASES[case]
    MODELS[case] = (MODELS[name][0], MODELS[name][1] | members)
    model = parity.build(case)
    if not hasattr(model.config, "head_dim") or model.config.head_dim is None:
        model.config.head_dim = model.config.hidden_size // model.config.num_attention_heads
    golden = {"tokens": torch.randint(0, COMMON["vocab_size"], (1, parity.TOKENS))}
    with tempfile.TemporaryDirectory(prefix="oscar-gguf-") as folder:
        names = ["model.gguf"] if parts == 1 else [f"model-{i + 1:05}-of-{parts:05}.gguf" for i in range(parts)]
        for i, file in enumerate(names):
            stands_for = gguf_files.write(Path(folder, file), architecture, model, wanted, i + 1, parts)
        with torch.no_grad():
            gguf_files.put_back(architecture, model, stands_for)
        parity.capture(model, golden)
        with torch.no_grad():
            logits = model(golden["tokens"], use_cache=False).logits
        golden["logits"] = logits[0, ::16].contiguous()
        save_file(golden, f"{folder}/golden.safetensors")
        print(f"{case}{' in parts' if parts > 1 else ''}: ", end="", flush=True)
        return subprocess.run([compare, f"{folder}/{names[0]}", f"{folder}/golden.safetensors"], check=False).returncode == 0


def main():
    compare, chosen = sys.argv[1], sys.argv[2:] or list(CASES)
    torch.set_num_threads(1)
    done = [same(case, compare) for case in chosen]
    return 0 if all([*done, same(chosen[0], compare, parts=3)]) else 1


if __name__ == "__main__":
    sys.exit(main())
