# SPDX-License-Identifier: MIT
"""Writes tiny models of Hugging Face transformers as GGUF files, by the conventions that llama.cpp reads: its names, rows of q
and k in turns for interleaved RoPE, 1 added to Gemma's norms, factors of RoPE as tensors."""
import re

import gguf
import torch
from gguf import GGMLQuantizationType as Type

LAYER = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.qkv_proj": "attn_qkv", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
         "self_attn.k_norm": "attn_k_norm", "self_attn": "attn_sinks", "post_attention_layernorm": "ffn_norm",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate_up_proj": "ffn_up",
         "mlp.gate": "ffn_gate_inp", "mlp.router": "ffn_gate_inp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
         "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
         "mlp.shared_expert.down_proj": "ffn_down_shexp", "pre_feedforward_layernorm": "ffn_norm",
         "post_feedforward_layernorm": "post_ffw_norm", "post_self_attn_layernorm": "post_attention_norm",
         "post_mlp_layernorm": "post_ffw_norm"}
OUTSIDE = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}


def turned(weight, heads):
    rows = weight.shape[0] // heads
    return weight.unflatten(0, (heads, 2, rows // 2)).transpose(1, 2).reshape(weight.shape)


def expert_stacks(name, weight, turns):
    """gate, up and down, (count, out, in) each, of the stacks of transformers; turns: gpt-oss, by input, gate and up in turns."""
    if turns and not name.endswith("bias"):
        weight = weight.transpose(1, 2)
    kind = "bias" if name.endswith("bias") else "weight"
    if "down_proj" in name:
        return {f"ffn_down_exps.{kind}": weight}
    half = weight.shape[1] // 2
    gate, up = (weight[:, ::2], weight[:, 1::2]) if turns else (weight[:, :half], weight[:, half:])
    return {f"ffn_gate_exps.{kind}": gate, f"ffn_up_exps.{kind}": up}


def in_layer(architecture, config, part, kind, weight):
    if ".experts." in part + ".":
        return expert_stacks(part, weight, architecture == "gpt-oss")
    if part.endswith("self_attn") and kind == "sinks":
        return {"attn_sinks.weight": weight}
    name = LAYER[part]
    if architecture in ("gemma2", "gemma3", "gpt-oss") and part == "post_attention_layernorm":
        name = "post_attention_norm"
    if architecture == "llama" and name in ("attn_q", "attn_k"):
        weight = turned(weight, config.num_attention_heads if name == "attn_q" else config.num_key_value_heads)
    if name == "ffn_gate_inp_shexp":
        weight = weight.reshape(-1)
    return {f"{name}.{kind}": weight}


def place_of(name):
    """The layer, part and kind of a name; stacks of experts have no kind."""
    layer, rest = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", name).groups()
    return (layer, rest.replace("_bias", ".bias"), "") if "experts" in rest else (layer, *rest.rsplit(".", 1))


def tensors_of(architecture, model):
    """{name in GGUF: float32 tensor}."""
    out = {}
    for name, weight in model.state_dict().items():
        weight = weight.float()
        if architecture.startswith("gemma") and name.endswith("norm.weight"):
            weight = weight + 1
        if name in OUTSIDE:
            if name != "lm_head.weight" or not model.config.tie_word_embeddings:
                out[OUTSIDE[name]] = weight
            continue
        layer, part, kind = place_of(name)
        for inside, tensor in in_layer(architecture, model.config, part, kind, weight).items():
            out[f"blk.{layer}.{inside}"] = tensor
    return out


def rope_members(writer, architecture, model, rope, tensors):
    kind, dim = rope["rope_type"], int(model.config.head_dim * rope.get("partial_rotary_factor", 1))
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(dim)
    if kind == "llama3":
        plain = rope["rope_theta"] ** -(torch.arange(0, dim, 2).float() / dim)
        tensors["rope_freqs.weight"] = plain / model.model.rotary_emb.inv_freq
    elif kind == "longrope":
        tensors["rope_factors_long.weight"] = torch.tensor(rope["long_factor"])
        tensors["rope_factors_short.weight"] = torch.tensor(rope["short_factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_float32(f"{architecture}.rope.scaling.attn_factor", model.model.rotary_emb.attention_scaling)
    elif kind != "default":
        writer.add_string(f"{architecture}.rope.scaling.type", kind)
        writer.add_rope_scaling_factor(rope["factor"])
        if kind == "yarn":
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
            writer.add_float32(f"{architecture}.rope.scaling.yarn_beta_fast", rope["beta_fast"])
            writer.add_float32(f"{architecture}.rope.scaling.yarn_beta_slow", rope["beta_slow"])


def add_sizes(writer, config):
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)


def add_metadata(writer, architecture, model, tensors):
    config = model.config
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(config.vocab_size)
    add_sizes(writer, config)
    writer.add_value_length(config.head_dim)
    rope = config.rope_parameters
    rope_members(writer, architecture, model, rope.get("full_attention", rope), tensors)
    experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(getattr(config, "moe_intermediate_size", config.intermediate_size))
    if getattr(config, "shared_expert_intermediate_size", None):
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)


def stored_as(name, tensor, wanted):
    """The type of a tensor in a file of type `wanted`: vectors, routers and factors stay in float32."""
    whole = tensor.ndim > 1 and tensor.shape[-1] % 32 == 0 and "gate_inp" not in name
    if wanted == Type.MXFP4:
        return Type.MXFP4 if "_exps.weight" in name else Type.F32
    return wanted if whole else Type.F32


def edit(writer, architecture, members):
    """Members of metadata in place of the usual ones; None takes one out."""
    for name, value in members.items():
        writer.kv_data[0].pop(f"{architecture}.{name}", None)
        if value is not None:
            add = {list: writer.add_array, str: writer.add_string, bool: writer.add_bool, float: writer.add_float32}
            add.get(type(value), writer.add_uint32)(f"{architecture}.{name}", value)


def finish(writer, part, parts):
    if parts > 1:
        writer.add_uint16("split.no", part - 1)
        writer.add_uint16("split.count", parts)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write(path, architecture, model, wanted, part=1, parts=1, members=(), without=()):
    """Writes the file, or one of several parts; every n-th tensor, but those whose name has an ending `without`. What the tensors
    stand for is returned."""
    writer = gguf.GGUFWriter(path, architecture)
    tensors = tensors_of(architecture, model)
    add_metadata(writer, architecture, model, tensors)
    edit(writer, architecture, dict(members))
    stands_for = {}
    for i, (name, tensor) in enumerate(tensors.items()):
        kind = stored_as(name, tensor, wanted)
        data = gguf.quants.quantize(tensor.contiguous().numpy(), kind)
        stands_for[name] = torch.tensor(gguf.quants.dequantize(data, kind)).reshape(tensor.shape)
        if i % parts == part - 1 and not name.endswith(tuple(without)):
            writer.add_tensor(name, data, raw_dtype=kind)
    finish(writer, part, parts)
    return stands_for


def put_back(architecture, model, stands_for):
    """The model gets the weights that the file stands for."""
    config, state = model.config, model.state_dict()
    for name, weight in state.items():
        value = weight.float()
        if name in OUTSIDE:
            value = stands_for.get(OUTSIDE[name], stands_for["token_embd.weight"])
        else:
            layer, part, kind = place_of(name)
            inside = {key: stands_for[f"blk.{layer}.{key}"] for key in in_layer(architecture, config, part, kind, value)}
            if not kind:
                value = join_stacks(part, list(inside.values()), architecture == "gpt-oss")
            else:
                (key, value), = inside.items()
                if architecture == "llama" and key.startswith(("attn_q.", "attn_k.")):
                    heads = config.num_attention_heads if key.startswith("attn_q.") else config.num_key_value_heads
                    rows = value.shape[0] // heads
                    value = value.unflatten(0, (heads, rows // 2, 2)).transpose(1, 2).reshape(value.shape)
        if architecture.startswith("gemma") and name.endswith("norm.weight"):
            value = value - 1
        weight.copy_(value.reshape(weight.shape))


def join_stacks(name, parts, turns):
    bias = name.endswith("bias")
    if len(parts) == 1:
        return parts[0] if bias or not turns else parts[0].transpose(1, 2)
    joined = torch.stack(parts, 2).flatten(1, 2) if turns else torch.cat(parts, 1)
    return joined if bias or not turns else joined.transpose(1, 2)
