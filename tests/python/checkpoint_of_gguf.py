# SPDX-License-Identifier: MIT
"""A GGUF file of a Llama model as a checkpoint folder in bfloat16, for servers that read no GGUF."""
import json

import gguf
import numpy as np

PARTS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
         "ffn_down": "mlp.down_proj", **{f"attn_{x}": f"self_attn.{x}_proj" for x in "qkv"}, "attn_output": "self_attn.o_proj"}


def write_checkpoint(path, folder):
    import torch
    import transformers
    from safetensors.torch import save_file

    reader = gguf.GGUFReader(path)
    field = lambda name: reader.fields[f"llama.{name}"].contents()
    heads = {"attn_q": field("attention.head_count"), "attn_k": field("attention.head_count_kv")}
    tensors = {}
    for tensor in reader.tensors:
        weight = torch.from_numpy(np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))
        _, number, part, *_ = [*tensor.name.split("."), "", ""]
        if part in heads:  # GGUF has the channels that are turned together side by side
            weight = weight.unflatten(0, (heads[part], -1, 2)).transpose(1, 2).reshape(weight.shape)
        place = {"token_embd.weight": "embed_tokens", "output_norm.weight": "norm"}.get(tensor.name) or f"layers.{number}.{PARTS[part]}"
        tensors[f"model.{place}.weight"] = weight.bfloat16().contiguous()
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "tie_word_embeddings": True,
        "hidden_size": field("embedding_length"), "intermediate_size": field("feed_forward_length"), "num_hidden_layers": field("block_count"),
        "num_attention_heads": heads["attn_q"], "num_key_value_heads": heads["attn_k"], "vocab_size": field("vocab_size"),
        "max_position_embeddings": field("context_length"), "rms_norm_eps": field("attention.layer_norm_rms_epsilon"),
        "rope_theta": field("rope.freq_base"), "bos_token_id": 1, "eos_token_id": 2}))
    transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).backend_tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
