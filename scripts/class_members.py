# SPDX-License-Identifier: MIT
"""class_members.py [--write]: what transformers' config classes know, as lib/model/config/class_members.json has it: for each
model_type the members that can change what a model computes, with the values that they have where a file leaves them out; and
which names are one thing. Without --write it tells what differs; exit status 77 without transformers."""
import ast
import dataclasses
import importlib
import inspect
import json
import re
import sys
import textwrap
from pathlib import Path

try:
    import transformers
except ImportError as error:
    print(f"skipped: {error}; run scripts/setup.sh --tests")
    sys.exit(77)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

CONFIG = Path(__file__).parents[1] / "lib/model/config"
TABLE = CONFIG / "class_members.json"
# Types whose class is that of another, or which only code beside their files knows.
SAME_CLASS = {"gemma3": "gemma3_text", "kimi_k2": "deepseek_v3", "qwen2_5_vl": "qwen2_5_vl_text"}
# Classes of a whole model with pictures, which has the head, and whose config has that of the language model inside.
OUTER = {"qwen2_5_vl_text": "Qwen2_5_VL", "qwen3_vl_text": "Qwen3VL", "qwen3_vl_moe_text": "Qwen3VLMoe"}
# What code that all models share reads, and what a config class takes though it is no member of it.
ALL = {"head_dim": None, "is_causal": True, "original_max_position_embeddings": None, "per_layer_config": None, "rope_scaling": None}
NO_MEMBERS = {None, "rope_scaling", "rope_theta", "rope_local_base_freq", "partial_rotary_factor", "dtype", "torch_dtype"}
# Members that published files carry beside those of the class, with the only value that transformers runs.
ROUTED = {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1}
LATENT = {"qk_head_dim": None}  # which the class computes
HUNYUAN = {"use_qk_norm": True, "norm_type": "rms", "use_rotary_pos_emb": True}
PUBLISHED = {
    "cohere2": {"order_of_interleaved_layers": "local_attn_first", "position_embedding_type": "rope_gptj", "rotary_pct": 1,
                "use_embedding_sharing": True, "use_gated_activation": True, "use_parallel_block": True},
    "deepseek_v2": LATENT | ROUTED | {"scoring_func": "softmax", "topk_method": "greedy"}, "deepseek_v3": LATENT | ROUTED,
    "dots1": {name: value for name, value in ROUTED.items() if name != "scoring_func"},  # its files name another, which nothing reads
    "glm4_moe_lite": LATENT | ROUTED,
    "granitemoehybrid": {"normalization_function": "rmsnorm"}, "hunyuan_v1_dense": HUNYUAN,
    "hunyuan_v1_moe": HUNYUAN | {"use_mixed_mlp_moe": True, "moe_intermediate_size": None}, "llama": {"is_llama_config": True},
    "minimax_m2": {"scoring_func": "sigmoid", "use_qk_norm": True, "qk_norm_type": "per_layer", "use_routing_bias": True},
    "phi3": {"full_attn_mod": 1, "interpolate_factor": 1}, "qwen3_5_text": {"attn_output_gate": True},
    "qwen3_5_moe_text": {"attn_output_gate": True}} | {name: {"tie_word_embeddings": False} for name in OUTER}
# Names of training, generation and publishing, and of what lies outside the layers. Those of Mamba go with layers that are refused.
HARMLESS = """*_token_id *_token_index *dropout *_pdrop _* mamba_* mtp_* architectures auto_map aux_loss_alpha cache_implementation
    chunk_size_feed_forward do_sample dtype ep_size id2label init_method initializer_range is_encoder_decoder label2id max_length
    max_sequence_length mm_tokens_per_image model_max_length model_type mrope_interleaved mrope_section num_mtp_layers
    num_nextn_predict_layers output_attentions output_hidden_states output_router_logits pretraining_tp problem_type quantization_config
    repetition_penalty return_dict rope_type router_aux_loss_coef router_jitter_noise seq_aux temperature time_step_limit tokenizer_class
    top_p torch_dtype transformers.js_config transformers_version type unsloth_fixed unsloth_version use_cache vision_config""".split()


def harmless(name):
    return any(name.endswith(entry[1:]) if entry[0] == "*" else name.startswith(entry[:-1]) if entry[-1] == "*" else name == entry
               for entry in HARMLESS)


def taken_beside(config_class):
    """Names that the class takes from a file without having them as members, with what it puts in their place."""
    for call in ast.walk(ast.parse(inspect.getsource(sys.modules[config_class.__module__]))):
        if not isinstance(call, ast.Call) or ast.unparse(call.func) not in ("kwargs.get", "kwargs.pop"):
            continue
        name, other = [argument.value if isinstance(argument, ast.Constant) else None for argument in [*call.args, None][:2]]
        if name not in NO_MEMBERS:
            yield name, other


def rope_members(config_class):
    """The stretched RoPE that a class has where a file tells none, its base, and the share of a head that turns."""
    told = config_class(rope_theta=777.0).rope_parameters
    theta = config_class.default_theta
    members = {"rope_theta": theta["global"], "rope_local_base_freq": theta["local"]} if isinstance(theta, dict) else {"rope_theta": theta}
    own = {name: value for name, value in told.items() if value != 777.0 and name != "max_position_embeddings"}
    nested = "full_attention" in told and not isinstance(theta, dict) and config_class.model_type != "olmo3"
    stretched = nested or own.get("rope_type", "default") != "default"
    modeling = importlib.import_module(config_class.__module__.replace("configuration_", "modeling_"))
    if "partial_rotary_factor" in inspect.getsource(modeling) and "full_attention" not in told:
        members["partial_rotary_factor"] = own.pop("partial_rotary_factor", None)
    return members | {"rope_parameters": own if stretched else None}


def members_of(model_type):
    config_class = CONFIG_MAPPING[model_type]
    base = {field.name for field in dataclasses.fields(transformers.PretrainedConfig)}
    fields = {field.name: field.default for field in dataclasses.fields(config_class)
              if field.name not in base and not harmless(field.name)}
    members = ALL | dict(taken_beside(config_class)) | fields | rope_members(config_class) | PUBLISHED.get(model_type, {})
    return {name: members[name] for name in sorted(members)}


def same_names(model_type):
    """{name that a file may have: member of the class}"""
    config_class = CONFIG_MAPPING[model_type]
    fields = {field.name for field in dataclasses.fields(config_class)}
    pairs = [(name, other) if other in fields else (other, name) for name, other in config_class.attribute_map.items()]
    if "qk_rope_head_dim" in fields:
        pairs.append(("head_dim", "qk_rope_head_dim"))
    return {name: member for name, member in pairs if not harmless(member)}


def model_types():
    code = "".join((CONFIG / name).read_text() for name in ("families_dense.cpp", "families_experts.cpp"))
    return sorted(set(re.findall(r'Family\{"(\w+)"', code)))


def table():
    own = [name for name in model_types() if name not in SAME_CLASS]
    return {"harmless": HARMLESS, "same_class": SAME_CLASS, "same_name": {name: same_names(name) for name in own if same_names(name)},
            "members": {name: members_of(name) for name in own}}


def as_text(document):
    parts = []
    for part, content in document.items():
        rows = [json.dumps(content)] if part != "members" else [
            "{\n" + ",\n".join(f'  "{name}": {json.dumps(members)}' for name, members in content.items()) + "\n}"]
        parts += [f'"{part}": {row}' for row in rows]
    lines = ("{\n" + ",\n".join(parts) + "\n}").split("\n")
    return "\n".join(textwrap.fill(line, 138, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False,
                                   replace_whitespace=False) if line.strip() else line for line in lines) + "\n"


def differences():
    """Lines that say what the file and the installed transformers do not agree on."""
    kept, now = json.loads(TABLE.read_text(encoding="utf-8")), table()
    for part in now:
        for name in sorted({*kept[part], *now[part]}) if kept[part] != now[part] else ():
            if (name in kept[part]) != (name in now[part]) or part != "harmless" and kept[part].get(name) != now[part].get(name):
                yield f"{TABLE.name}, {part}: {name} differs; class_members.py --write writes the file anew"


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["--write"]):
        sys.exit("usage: class_members.py [--write]")
    if sys.argv[1:]:
        TABLE.write_text(as_text(table()), encoding="utf-8")
    sys.exit("\n".join(differences()) or 0)
