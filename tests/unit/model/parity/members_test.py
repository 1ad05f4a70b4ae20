# SPDX-License-Identifier: MIT
"""members_test.py COMPARE [FAMILY …] [--each]: no member of a config.json changes a model in silence. For every family, as its
class in transformers reads the file and COMPARE (compare.cpp) does: as the class writes it, and with each member at another value
than the class's. They agree, or COMPARE refuses and names the member. Members are tried some at a time; alone where those do not
agree, or all with --each. Published files are read with one warning at most. Exit status 77 without transformers."""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import class_members  # which ends the test without transformers
import torch
import transformers
from safetensors.torch import save_file
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

import parity
from class_members import OUTER
from tiny_models import SEEING

TOKENS, TOGETHER = 40, 6
TABLE = class_members.table()
SIZES = {"vocab_size": 160, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 5, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 64, "moe_intermediate_size": 32, "num_experts": 8,
         "num_local_experts": 8, "n_routed_experts": 8, "moe_num_experts": 8, "num_experts_per_tok": 2, "moe_k": 2, "moe_topk": 2,
         "shared_expert_intermediate_size": 24, "shared_intermediate_size": 80, "kv_lora_rank": 32, "q_lora_rank": 24,
         "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16,
         "linear_value_head_dim": 24, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "sliding_window": 12,
         "n_shared_experts": 1, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1, "global_head_dim": 64,
         "hidden_size_per_layer_input": 12, "vocab_size_per_layer_input": 160, "query_pre_attn_scalar": 24}
# Members without which a family does not run, or not here, or that make more of it matter.
LATENT = {"num_key_value_heads": 4}
NEEDED = {"granitemoehybrid": {"num_local_experts": 0, "layer_types": ["full_attention"] * 5, "position_embedding_type": "rope",
                               "mamba_n_heads": 8},
          "deepseek_v2": LATENT, "deepseek_v3": LATENT, "glm4_moe_lite": LATENT | {"n_group": 1, "topk_group": 1},
          "gpt_oss": {"intermediate_size": 64}, "gemma3_text": {"num_hidden_layers": 7},
          "gemma4_text": {"num_hidden_layers": 7, "top_k_experts": 2}, "gemma4_unified_text": {"num_hidden_layers": 7},
          "hunyuan_v1_moe": {"moe_intermediate_size": None},
          "qwen2_5_vl_text": {"rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3]}}}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
NESTED = {"full_attention": YARN | {"rope_theta": 7e3}, "sliding_attention": {"rope_type": "default", "rope_theta": 500.0}}
PLAIN = {"rope_type": "default", "rope_theta": 1e4}
TYPES = ["full_attention", "sliding_attention"] * 4  # as many as there are layers
# Values that are tried in every family, whether its class has the member or not.
EVERYWHERE = [{name: value} for name, values in {
    "is_causal": [False], "per_layer_config": [{"1": {"num_key_value_heads": 4}}, {"0": {"sliding_window": 5}}], "rope_theta": [777.0],
    "partial_rotary_factor": [0.5], "head_dim": [48], "attention_bias": [True], "mlp_bias": [True], "layer_types": [TYPES],
    "hidden_act": ["gelu", "relu", "gelu_new", "swish", "mish"], "hidden_activation": ["gelu"], "sliding_window": [None, 6],
    "rope_parameters": [{"rope_type": "linear", "factor": 2.0, "rope_theta": 555.0}, YARN | {"attention_factor": 0.7}, NESTED, LLAMA3,
                        YARN | {"mscale": 0.7, "mscale_all_dim": 1.3, "beta_fast": 8.0}, YARN | {"truncate": False}, PLAIN | {"factor": 3.0}],
    "rope_scaling": [YARN, {"type": "linear", "factor": 2.0}, {"rope_type": "dynamic", "factor": 2.0}, LLAMA3,
                     YARN | {"rope_theta": 333.0, "llama_4_scaling_beta": 0.1}],
    "original_max_position_embeddings": [16], "sliding_window_pattern": [2], "rope_local_base_freq": [99.0],
    "attn_logit_softcapping": [3.0], "final_logit_softcapping": [2.0], "logit_scale": [0.3], "tie_word_embeddings": [True, False],
    "use_qk_norm": [True], "swiglu_limit": [0.2], "attention_chunk_size": [8], "num_kv_shared_layers": [1], "rotary_dim": [16],
    "full_attention_interval": [3], "num_local_experts": [4], "num_experts": [4]}.items() for value in values]
BOTH = [{"rope_parameters": PLAIN, "rope_scaling": YARN}, {"rope_theta": 4e3, "rope_scaling": {"rope_type": "linear", "factor": 3.0}},
        {"use_sliding_window": True, "max_window_layers": 2, "sliding_window": 6}, {"use_sliding_window": True, "layer_types": TYPES}]
OWN = {"use_bidirectional_attention": [True, "all"], "mlp_only_layers": [[1]], "no_rope_layers": [[1, 0, 1, 1, 0]], "clip_qkv": [0.5],
       "topk_method": ["group_limited_greedy"], "mlp_layer_types": [["sparse", "dense", "sparse", "sparse", "dense"]],
       "position_embedding_type": [None], "moe_layer_end_index": [3], "n_group": [1], "topk_group": [1], "q_lora_rank": [None],
       "norm_topk_prob": [True, False], "num_global_key_value_heads": [1], "n_shared_experts": [None],
       "first_k_dense_replace": [0], "moe_num_shared_experts": [0], "attn_logit_softcapping": [None], "final_logit_softcapping": [None]}


class Family:
    def __init__(self, name):
        self.name, self.members = name, TABLE["members"][name]
        self.sizes = {key: value for key, value in SIZES.items() if key in self.members and (key != "head_dim" or self.members[key])} | NEEDED.get(name, {})
        if "kv_lora_rank" in self.members:
            self.sizes.pop("head_dim", None)

    def document(self, members):
        own = {"model_type": self.name, "dtype": "float32", "pad_token_id": None, "bos_token_id": None, "eos_token_id": None, **members}
        if self.name not in OUTER:
            return own
        tied = {key: own[key] for key in ("tie_word_embeddings",) if key in own}
        return tied | {"model_type": self.name.removesuffix("_text"), "vision_config": SEEING, "text_config": own}

    def publish(self, members, folder):
        """Writes a checkpoint, its config.json as the class does, and activations. Throws what transformers does."""
        document = self.document(members)
        config = CONFIG_MAPPING[document["model_type"]].from_dict(json.loads(json.dumps(document)))
        config._attn_implementation = "eager"
        kind = getattr(transformers, f"{OUTER[self.name]}ForConditionalGeneration") if self.name in OUTER else \
            MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
        torch.manual_seed(7)
        model = kind(config).eval()
        with torch.no_grad():
            for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
                parity.randomize(name, tensor)
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
        save_file({name: tensor.contiguous() for name, tensor in golden.items()}, folder / "golden.safetensors")

    def others(self):
        """Members that differ from the class's, some of which the class may not know."""
        for name, default in self.members.items():
            values = [not default] if isinstance(default, bool) else [default * 2] if isinstance(default, float) else \
                [max(2, default // 2)] if isinstance(default, int) and name not in self.sizes else []
            values += ["another"] if isinstance(default, str) else []
            yield from ({name: value} for value in values + OWN.get(name, []))
        for members in EVERYWHERE + BOTH:
            layers = self.sizes["num_hidden_layers"]
            yield members | {name: types[:layers] for name, types in members.items() if types is TYPES}


class Judge:
    def __init__(self, program, root):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.folder, self.wrong, self.counts = Path(root), [], {}

    def ask(self, activations):
        self.process.stdin.write(f"{self.folder} {activations}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def read(self, document):
        (self.folder / "config.json").write_text(json.dumps(document))
        return self.ask("-")

    def run(self, family, members):
        """None: transformers does not know such a model."""
        try:
            family.publish(family.sizes | members, self.folder)
        except Exception:  # in many ways
            return None
        if members:
            self.read(family.document(family.sizes | members))
        return self.ask(self.folder / "golden.safetensors")

    def count(self, what, complaint=None):
        self.counts[what] = self.counts.get(what, 0) + 1
        if complaint:
            self.wrong.append(complaint)

    def refuses(self, family, members):
        """Whether the file alone is refused, which must name a member of the class."""
        answer = self.read(family.document(family.sizes | members))
        if not answer.startswith("refused"):
            return False
        named = any(name in answer for name in [*members, *family.members, "RoPE"])
        self.count("refused", None if named else f"{family.name} {members}: {answer}")
        return True

    def judge(self, family, together):
        """members of several cases, as one; where that is not the same, of half of them"""
        answer = self.run(family, {name: value for members in together for name, value in members.items()})
        if answer and answer.startswith("same"):
            self.count("same", None)
        elif len(together) > 1:
            self.judge(family, together[::2])
            self.judge(family, together[1::2])
        else:
            self.count("differs" if answer else "unknown", answer and f"{family.name} {together[0]}: {answer}")


def groups(cases, size):
    """Cases whose members differ in name, and rope's apart from each other."""
    waiting = list(cases)
    while waiting:
        group, names = [], set()
        for members in waiting:
            own = {"rope" if "rope" in name else name for name in members}
            if len(group) < size and not own & names:
                group.append(members)
                names |= own
        waiting = [members for members in waiting if not any(members is taken for taken in group)]
        yield group


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity(50)
    transformers.logging.disable_progress_bar()
    wanted = [name for name in sys.argv[2:] if name != "--each"] or list(TABLE["members"])
    with tempfile.TemporaryDirectory(prefix="oscar-members-") as root:
        judge = Judge(sys.argv[1], root)
        judge.wrong += class_members.differences()
        for name in wanted:
            family = Family(name)
            if judge.run(family, {}) != "same":  # as the class writes it, without a warning
                judge.wrong.append(f"{name}: {judge.ask(judge.folder / 'golden.safetensors')}")
            accepted = [members for members in family.others() if not judge.refuses(family, members)]
            for together in groups(accepted, 1 if "--each" in sys.argv else TOGETHER):
                judge.judge(family, together)
        for name, document in json.loads(Path(__file__).with_name("published_configs.json").read_text()).items():
            answer = judge.read(document)
            if not answer.startswith("read") or answer.count("warning:") > 1:
                judge.wrong.append(f"{name}, as published: {answer}")
    print(*judge.wrong, judge.counts, sep="\n")
    return 1 if judge.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
