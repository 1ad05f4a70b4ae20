# SPDX-License-Identifier: MIT
"""gguf_parity.py COMPARE: writes tiny models as GGUF files, and lets COMPARE (compare.cpp) run them against what Hugging Face
transformers makes of the weights that the files stand for. Exit status 77 if a package is not installed."""
import math
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

BASES = dict(MODELS)
SWA, FULL = "sliding_attention", "full_attention"
FULL_MOE = {"mlp_only_layers": []}
YARN = MODELS["qwen3-yarn"][1]["rope_parameters"]


def yarn(factor):
    return {"rope_parameters": YARN | {"attention_factor": factor}}


# {case: (llama.cpp's name, model of tiny_models.py, members that differ, type of matrices[, metadata that differs[, endings of
# tensors that are left out, and are zero in the model]])}: what files say in other ways than today's converter, or leave out.
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
    "phi3": ("phi3", "phi3", {"sliding_window": None}, Type.Q8_0, {"attention.sliding_window": 30}),
    "phi4-mini": ("phi3", "phi4-mini-long", {}, Type.F32),
    "glm4": ("glm4", "glm4", {}, Type.F16),
    "gpt-oss": ("gpt-oss", "gpt-oss", {"layer_types": [SWA, FULL, SWA], "rope_parameters": YARN}, Type.MXFP4),
    "attn-factor": ("qwen3", "qwen3-yarn", yarn(0.7 * (1 + 0.1 * math.log(4))), Type.F32, {"rope.scaling.attn_factor": 0.7}),
    "yarn-attn-factor": ("qwen3", "qwen3-yarn", yarn(0.8), Type.F32, {"rope.scaling.yarn_attn_factor": 0.8}),
    "output-bias": ("llama", "llama-linear-bias", {}, Type.F32, {}, ("_q.bias", "_k.bias", "_v.bias", "ffn_up.bias", "gate.bias")),
    "query-bias": ("llama", "llama-linear-bias", {}, Type.F32, {}, ("_k.bias", "_output.bias", "ffn_down.bias")),
    "head-counts": ("llama", "llama", {}, Type.F32, {"attention.head_count": [4] * 3, "attention.head_count_kv": [2] * 3}),
    "gemma2-left-out": ("gemma2", "gemma2", {"layer_types": [SWA, FULL] * 2, "query_pre_attn_scalar": 32}, Type.F32,
                        {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "gemma3-no-window": ("gemma3", "gemma3", {"layer_types": [FULL] * 4, "query_pre_attn_scalar": 32}, Type.F32,
                         {"attention.sliding_window": None}),
    "gemma3-pattern": ("gemma3", "gemma3", {"layer_types": [SWA, FULL] * 2, "query_pre_attn_scalar": 32}, Type.F32,
                       {"attention.sliding_window_pattern": 2}),
    "gemma3-list": ("gemma3", "gemma3", {"layer_types": [SWA, FULL, FULL, SWA], "query_pre_attn_scalar": 32}, Type.F32,
                    {"attention.sliding_window_pattern": [True, False, False, True]}),
}


def build(case):
    """llama.cpp's name of the architecture, and the model."""
    architecture, name, members = CASES[case][:3]
    MODELS[case] = (BASES[name][0], BASES[name][1] | members)
    model = parity.build(case)
    model.config.head_dim = getattr(model.config, "head_dim", None) or model.config.hidden_size // model.config.num_attention_heads
    return architecture, model


def same(case, compare, parts=1):
    wanted, more = CASES[case][3], CASES[case][4:]
    without = more[1] if len(more) > 1 else ()
    architecture, model = build(case)
    zero = {"_q.": "q_proj.", "_k.": "k_proj.", "_v.": "v_proj.", "_output.": "o_proj.", "ffn_up.": "up_proj.", "gate.": "gate_proj.",
            "ffn_down.": "down_proj."}
    with torch.no_grad():
        for ending in without:
            for parameter, tensor in model.named_parameters():
                tensor.mul_(0 if parameter.endswith(zero[ending.removesuffix("bias")] + "bias") else 1)
    golden = {"tokens": torch.randint(0, COMMON["vocab_size"], (1, parity.TOKENS))}
    with tempfile.TemporaryDirectory(prefix="oscar-gguf-") as folder:
        names = ["model.gguf"] if parts == 1 else [f"model-{i + 1:05}-of-{parts:05}.gguf" for i in range(parts)]
        for i, file in enumerate(names):
            stands_for = gguf_files.write(Path(folder, file), architecture, model, wanted, i + 1, parts, *more)
        with torch.no_grad():
            gguf_files.put_back(architecture, model, stands_for)
        parity.capture(model, golden)
        with torch.no_grad():
            logits = model(golden["tokens"], use_cache=False).logits
        golden["logits"] = logits[0, ::16].contiguous()
        save_file(golden, f"{folder}/golden.safetensors")
        model.save_pretrained(folder)
        told = [compare.ask(place, "-").split(" warning")[0] for place in (folder, f"{folder}/{names[0]}")]
        if (told[0] == told[1]) == (case == "gemma3-no-window"):  # which no config.json can tell
            print(f"{case}: {told}")
            return False
        return compare.whole(f"{case}{' in parts' if parts > 1 else ''}", f"{folder}/{names[0]}", f"{folder}/golden.safetensors",
                             "which has no windows in this architecture, every layer sees all" if case == "phi3" else "")


def main():
    compare, chosen = parity.Compare(sys.argv[1], "--replace-attention"), sys.argv[2:] or list(CASES)
    torch.set_num_threads(1)
    done = [same(case, compare) for case in chosen]
    return 0 if all([*done, same(chosen[0], compare, parts=3)]) else 1


if __name__ == "__main__":
    sys.exit(main())
