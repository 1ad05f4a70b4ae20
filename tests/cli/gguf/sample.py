# SPDX-License-Identifier: MIT
"""The sample model as a GGUF file, as llama.cpp's converter would write it."""
import json

import gguf
import numpy
import torch
from safetensors.torch import load_file

NAMES = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
         "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
         "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
KIND = gguf.GGMLQuantizationType


def tensor_name(name):
    if not name.startswith("model.layers."):
        return NAMES[name.removesuffix(".weight")] + ".weight"
    _, _, layer, part = name.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.weight"


def add_model(writer, config):
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config.get("rope_theta") or config["rope_parameters"]["rope_theta"])


def add_tokenizer(writer, tokenizer):
    added = {token["content"] for token in tokenizer["added_tokens"]}
    names = {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    names |= {id: token for token, id in tokenizer["model"]["vocab"].items()}
    tokens = [names[id] for id in sorted(names)]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if token in added else gguf.TokenType.NORMAL for token in tokens])
    writer.add_token_merges(merges)


def write_sample(path, model, kind=KIND.BF16, architecture="qwen3", tokenizer=True, more=(), metadata=(), parts=1, part=1):
    """model: the checkpoint's folder. more: further tensors by name; metadata: (key, value, gguf.GGUFValueType) in the place of
    what the tokenizer has. The file, or one part of it."""
    config, weights = json.loads((model / "config.json").read_text()), {}
    for file in sorted(model.glob("*.safetensors")):
        weights |= load_file(file)
    writer = gguf.GGUFWriter(path, architecture)
    add_model(writer, config)
    if tokenizer:
        add_tokenizer(writer, json.loads((model / "tokenizer.json").read_text(encoding="utf-8")))
    for key, value, kind_of_value in metadata:
        writer.kv_data[0].pop(key, None)
        writer.add_key_value(key, value, kind_of_value)
    if parts > 1:
        writer.add_uint16("split.no", part - 1)
        writer.add_uint16("split.count", parts)
    tensors = {tensor_name(name): weight.to(torch.float32).numpy() for name, weight in weights.items()} | dict(more)
    for i, (name, values) in enumerate(tensors.items()):
        own = KIND.F32 if values.ndim == 1 or values.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] else kind
        if i % parts == part - 1:
            writer.add_tensor(name, gguf.quants.quantize(numpy.ascontiguousarray(values), own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
