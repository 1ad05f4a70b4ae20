# SPDX-License-Identifier: MIT
"""members_test.py COMPARE [FAMILY]: no member of a config.json changes a model in silence. For every family, as its class in
transformers reads the file and COMPARE (compare.cpp) does: from sizes alone; and with each member at another value than the
class's. They agree, or COMPARE refuses. Also, the table of defaults is the classes'. Exit status 77 without transformers."""
import dataclasses
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}; run scripts/setup.sh --tests")
    sys.exit(77)
from safetensors.torch import save_file
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

import parity

TABLE = Path(__file__).parents[4] / "lib/model/config/defaults.cpp"
TOKENS = 40
SIZES = {"vocab_size": 160, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 5, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 64, "moe_intermediate_size": 32, "num_experts": 8,
         "num_local_experts": 8, "n_routed_experts": 8, "moe_num_experts": 8, "num_experts_per_tok": 2, "moe_k": 2, "moe_topk": 2,
         "shared_expert_intermediate_size": 24, "shared_intermediate_size": 80, "kv_lora_rank": 32, "q_lora_rank": 24,
         "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16,
         "linear_value_head_dim": 24, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "sliding_window": 12,
         "n_shared_experts": 1, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1, "global_head_dim": 64,
         "hidden_size_per_layer_input": 12, "vocab_size_per_layer_input": 160, "top_k_experts": 2, "query_pre_attn_scalar": 24}
LATENT = {"num_key_value_heads": 4, "qk_rope_head_dim": 8}
PLAIN = {"num_local_experts": 0, "layer_types": ["full_attention"] * 5, "position_embedding_type": "rope", "mamba_n_heads": 8}
# Members without which a family does not run, or not here, or that make more of it matter.
NEEDED = {"granitemoehybrid": PLAIN, "deepseek_v2": LATENT, "deepseek_v3": LATENT, "glm4_moe_lite": LATENT | {"n_group": 1, "topk_group": 1},
          "gpt_oss": {"intermediate_size": 64}, "gemma3_text": {"num_hidden_layers": 7},
          "qwen2_5_vl_text": {"rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3]}}}
# Classes of a whole model with pictures, whose config has that of the language model inside.
OUTER = {"qwen2_5_vl_text": "Qwen2_5_VL", "qwen3_vl_text": "Qwen3VL", "qwen3_vl_moe_text": "Qwen3VLMoe"}
SEEING = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64, "deepstack_visual_indexes": [0]}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
NESTED = {"full_attention": YARN | {"rope_theta": 7e3}, "sliding_attention": {"rope_type": "default", "rope_theta": 500.0}}
TYPES = ["full_attention", "sliding_attention"] * 2
# Values that are tried in every family, whether its class has the member or not.
EVERYWHERE = {"is_causal": [False], "rope_theta": [777.0], "partial_rotary_factor": [0.5], "head_dim": [48], "attention_bias": [True],
              "mlp_bias": [True], "hidden_act": ["gelu", "relu", "gelu_new"], "sliding_window": [None, 6], "layer_types": [TYPES],
              "rope_parameters": [{"rope_type": "linear", "factor": 2.0, "rope_theta": 555.0}, YARN | {"attention_factor": 0.7},
                                  YARN | {"mscale": 0.7, "mscale_all_dim": 1.3, "beta_fast": 8.0}, YARN | {"truncate": False}, NESTED,
                                  {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                   "original_max_position_embeddings": 16}],
              "rope_scaling": [YARN, {"type": "linear", "factor": 2.0}, {"rope_type": "dynamic", "factor": 2.0},
                               YARN | {"rope_theta": 333.0, "llama_4_scaling_beta": 0.1}],
              "original_max_position_embeddings": [16], "sliding_window_pattern": [2], "rope_local_base_freq": [99.0],
              "attn_logit_softcapping": [3.0], "final_logit_softcapping": [2.0], "logit_scale": [0.3], "tie_word_embeddings": [True, False],
              "use_qk_norm": [True], "swiglu_limit": [0.2], "attention_chunk_size": [8], "num_kv_shared_layers": [1]}
BOTH = [{"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, "rope_scaling": YARN},
        {"rope_theta": 4e3, "rope_scaling": {"rope_type": "linear", "factor": 3.0}},
        {"use_sliding_window": True, "max_window_layers": 2, "sliding_window": 6}, {"use_sliding_window": True, "layer_types": TYPES}]
OWN = {"use_bidirectional_attention": [True, "all"], "mlp_only_layers": [[1]], "no_rope_layers": [[1, 0, 1, 1, 0]], "clip_qkv": [0.5],
       "topk_method": ["group_limited_greedy"], "mlp_layer_types": [["sparse", "dense", "sparse", "sparse", "dense"]],
       "position_embedding_type": [None, "rope"], "moe_layer_end_index": [3], "rotary_dim": [16], "n_group": [1], "topk_group": [1]}


def table():
    rows = re.findall(r'\{"(\w*)", R"\((.*?)\)"\}', TABLE.read_text(encoding="utf-8"), re.DOTALL)
    members = {name: json.loads(row) for name, row in rows}
    common = members.pop("")
    return {name: common | own for name, own in members.items()}


def harmless(name):
    """As the program has it: names that its check lets pass."""
    text = (TABLE.parent / "config_file.cpp").read_text(encoding="utf-8")
    listed = re.findall(r'"([^"]+)"', re.search(r"names\{(.*?)\};", text, re.DOTALL)[1])
    return name in listed or name.endswith(("_token_id", "dropout", "_pdrop")) or name.startswith(("_", "mamba_", "mtp_"))


def fields(family):
    base = {field.name for field in dataclasses.fields(transformers.PretrainedConfig)}
    return {field.name: field.default for field in dataclasses.fields(CONFIG_MAPPING[family])
            if field.name not in base and not harmless(field.name)}


def differences_of_tables():
    for family, members in table().items():
        rope = getattr(CONFIG_MAPPING[family], "default_theta", None)
        expected = fields(family) | ({"rope_theta": rope} if isinstance(rope, float) and not family.startswith("gemma4") else {})
        for name, value in expected.items():
            if name not in members:
                yield f"{family}: the table has no {name}, which is {value}"
            elif members[name] != value and (family not in OUTER or name != "tie_word_embeddings") and not (name == "rope_parameters" and value is None):
                yield f"{family}: {name} is {value}, in the table {members[name]}"


class Family:
    def __init__(self, name):
        self.name, self.fields = name, fields(name)
        self.sizes = {key: value for key, value in SIZES.items() if key in self.fields or (
            key == "global_head_dim" and name.startswith("gemma4"))} | NEEDED.get(name, {})
        if "kv_lora_rank" in self.fields:
            self.sizes.pop("head_dim", None)
        for key in ("num_experts", "top_k_experts", "moe_intermediate_size"):
            if name == "gemma4_text":
                del self.sizes[key]

    def outer(self, members):
        if self.name in OUTER:
            tied = {key: members[key] for key in ("tie_word_embeddings",) if key in members}
            return tied | {"model_type": self.name.removesuffix("_text"), "vision_config": SEEING, "text_config": members}
        return members

    def model(self, members):
        document = self.outer({"model_type": self.name, "dtype": "float32", "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
                               **members})
        config = CONFIG_MAPPING[document["model_type"]].from_dict(json.loads(json.dumps(document)))
        config._attn_implementation = "eager"
        kind = getattr(transformers, f"{OUTER[self.name]}ForConditionalGeneration") if self.name in OUTER else \
            MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
        torch.manual_seed(7)
        model = kind(config).eval()
        with torch.no_grad():
            for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
                parity.randomize(name, tensor)
        return document, model

    def publish(self, members, folder):
        """Writes checkpoint and activations; an error of transformers' says that it does not know such a model either."""
        document, model = self.model(members)
        tokens = torch.arange(TOKENS).mul(37).remainder(160).view(1, -1)
        golden, module = {"tokens": tokens}, sys.modules[type(model).__module__]
        original = module.eager_attention_forward
        try:
            model.save_pretrained(folder)
            parity.capture(model, golden)
            with torch.no_grad():
                golden["logits"] = model(tokens, use_cache=False).logits[0, ::16].float().contiguous()
        finally:
            module.eager_attention_forward = original
        if not all(torch.isfinite(tensor).all() for tensor in golden.values()):
            raise ValueError("not finite")
        (folder / "config.json").write_text(json.dumps(document))
        save_file({name: tensor.contiguous() for name, tensor in golden.items()}, folder / "golden.safetensors")

    def others(self):
        """{what: members} that differ from the class's."""
        for name, default in self.fields.items():
            if name in self.sizes and name not in EVERYWHERE and name not in OWN:
                continue
            values = [not default] if isinstance(default, bool) else [default * 2] if isinstance(default, float) else \
                [max(2, default // 2)] if isinstance(default, int) and name not in self.sizes else []
            for value in values + OWN.get(name, []) + ([2.5] if name.endswith("softcapping") else []):
                yield {name: value}
        for name, values in EVERYWHERE.items():
            for value in values:
                yield {name: value}
        yield from ({name: value} for name in ("rotary_dim", "full_attention_interval") for value in OWN.get(name, [3]))
        yield from BOTH


class Compare:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, folder):
        self.process.stdin.write(f"{folder} {folder}/golden.safetensors\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity(50)
    transformers.logging.disable_progress_bar()
    compare, wanted, wrong = Compare(sys.argv[1]), sys.argv[2:] or list(table()), list(differences_of_tables())
    counts = {"same": 0, "refused": 0, "unknown": 0}
    with tempfile.TemporaryDirectory(prefix="oscar-members-") as root:
        for name in wanted:
            family = Family(name)
            for number, members in enumerate([{}, *family.others()]):
                folder = Path(root, f"{name}-{number}")
                try:
                    family.publish(family.sizes | members, folder)
                except Exception as error:  # transformers refuses in many ways
                    counts["unknown"] += 1
                    if not members:
                        wrong.append(f"{name}: transformers does not run it: {error}")
                    continue
                answer = compare(folder)
                kind = answer.split(" ")[0]
                counts[kind] = counts.get(kind, 0) + 1
                if kind not in ("same", "refused") or (kind == "refused" and not members):
                    wrong.append(f"{name} {members}: {answer}")
                elif "-v" in sys.argv or kind == "refused":
                    print(f"{name} {members}: {answer}")
                subprocess.run(["rm", "-r", folder], check=True)
    print(*wrong, counts, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
