# SPDX-License-Identifier: MIT
"""Tiny models of the real classes of Hugging Face transformers: (class of the model, its config's members)."""

COMMON = {"vocab_size": 160, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
          "num_key_value_heads": 2, "intermediate_size": 96, "max_position_embeddings": 512, "pad_token_id": None,
          "bos_token_id": None, "eos_token_id": None}


def rope(theta=10000.0, kind="default", **members):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **members}}


YARN = rope(kind="yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=8.0, beta_slow=1.0)
LLAMA3 = rope(500000.0, "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64)


def longrope(original, pairs):
    factors = [1 + 0.25 * i for i in range(pairs)]
    return rope(kind="longrope", short_factor=factors, long_factor=[2 * f for f in factors],
                original_max_position_embeddings=original) | {"original_max_position_embeddings": original}


MODELS = {
    "qwen2": ("Qwen2ForCausalLM", rope(1e6)),
    "qwen2-sliding": ("Qwen2ForCausalLM", rope(1e6) | {"use_sliding_window": True, "sliding_window": 24,
                                                       "max_window_layers": 1}),
    "qwen3-bias": ("Qwen3ForCausalLM", rope(1e6) | {"attention_bias": True, "head_dim": 32}),
    "qwen3-yarn": ("Qwen3ForCausalLM", YARN | {"head_dim": 32}),
    "llama": ("LlamaForCausalLM", LLAMA3 | {"tie_word_embeddings": True}),
    "llama-linear-bias": ("LlamaForCausalLM", rope(kind="linear", factor=2.0) | {"attention_bias": True,
                                                                                 "mlp_bias": True}),
    "llama-dynamic": ("LlamaForCausalLM", rope(kind="dynamic", factor=4.0)),
    "mistral": ("MistralForCausalLM", rope() | {"sliding_window": None, "head_dim": 32}),
    "mistral-sliding": ("MistralForCausalLM", rope() | {"sliding_window": 20}),
    "phi3": ("Phi3ForCausalLM", rope() | {"sliding_window": 30}),
    "phi4-mini": ("Phi3ForCausalLM", longrope(512, 6) | {"partial_rotary_factor": 0.75}),
    "phi4-mini-long": ("Phi3ForCausalLM", longrope(64, 6) | {"partial_rotary_factor": 0.75}),
    "glm": ("GlmForCausalLM", rope(partial_rotary_factor=0.5) | {"attention_bias": True, "head_dim": 32}),
    "glm4": ("Glm4ForCausalLM", rope(partial_rotary_factor=0.5) | {"attention_bias": True, "head_dim": 32}),
}

EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
GROUPED = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1,
           "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.5, "first_k_dense_replace": 1}
DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 24,
         "linear_conv_kernel_dim": 4, "head_dim": 32, "num_hidden_layers": 5,
         "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention",
                         "full_attention"]}
GEMMA = {"sliding_window": 20, "num_hidden_layers": 4, "head_dim": 32, "query_pre_attn_scalar": 24,
         "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]}
GEMMA4 = {"sliding_window": 20, "num_hidden_layers": 4, "head_dim": 16, "global_head_dim": 32, "final_logit_softcapping": 20.0,
          "hidden_size_per_layer_input": 0, "layer_types": ["sliding_attention", "full_attention", "sliding_attention",
                                                            "full_attention"]}
GEMMA4_E = GEMMA4 | {"num_hidden_layers": 8, "layer_types": ["sliding_attention", "full_attention"] * 4, "num_kv_shared_layers": 4,
                     "hidden_size_per_layer_input": 12, "vocab_size_per_layer_input": 160, "use_double_wide_mlp": True}
GRANITE = {"embedding_multiplier": 6.0, "attention_multiplier": 0.05, "residual_multiplier": 0.4, "logits_scaling": 4.0}
LATENT = {"kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12,
          "num_key_value_heads": 4}

SEEING = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64, "deepstack_visual_indexes": [0]}
OLMO3_ROPE = {"rope_parameters": {"full_attention": YARN["rope_parameters"], "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}
SLIDING = {"sliding_window": 20, "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention", "sliding_attention",
                                                                         "full_attention"]}

MODELS |= {
    "seedoss": ("SeedOssForCausalLM", rope() | {"attention_bias": True, "head_dim": 32}),
    "olmo2": ("Olmo2ForCausalLM", rope(5e5)),
    "olmo3": ("Olmo3ForCausalLM", OLMO3_ROPE | SLIDING),
    "exaone4": ("Exaone4ForCausalLM", rope() | {"sliding_window": None, "sliding_window_pattern": None,
                                                "layer_types": ["full_attention"] * 3}),
    "exaone4-sliding": ("Exaone4ForCausalLM", rope() | SLIDING | {"sliding_window_pattern": 2}),
    "smollm3": ("SmolLM3ForCausalLM", rope() | {"no_rope_layers": [1, 0, 1], "tie_word_embeddings": True}),
    "dots1": ("Dots1ForCausalLM", rope() | GROUPED | {"head_dim": 32, "norm_topk_prob": True}),
    "qwen2-moe": ("Qwen2MoeForCausalLM", rope(1e6) | EXPERTS | {"shared_expert_intermediate_size": 24, "mlp_only_layers": [1]}),
    "qwen2.5-vl": ("Qwen2_5_VLForConditionalGeneration", {"vision_config": SEEING, "text_config": COMMON | {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}}}),
    "qwen3-vl": ("Qwen3VLForConditionalGeneration", {"vision_config": SEEING, "text_config": COMMON | {
        "head_dim": 32, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [6, 5, 5]}}}),
    "qwen3-moe": ("Qwen3MoeForCausalLM", rope(1e6) | EXPERTS | {"head_dim": 32, "mlp_only_layers": [1]}),
    "mixtral": ("MixtralForCausalLM", rope(1e6) | {"num_local_experts": 6, "num_experts_per_tok": 2}),
    "glm4-moe": ("Glm4MoeForCausalLM", rope(partial_rotary_factor=0.5) | GROUPED | {
        "use_qk_norm": True, "attention_bias": True, "head_dim": 32}),
    "minimax-m2": ("MiniMaxM2ForCausalLM", rope(5e6, partial_rotary_factor=0.5) | {
        "num_local_experts": 8, "num_experts_per_tok": 3, "head_dim": 32}),
    "gpt-oss": ("GptOssForCausalLM", YARN | {"rope_parameters": {**YARN["rope_parameters"], "truncate": False},
                                             "num_local_experts": 6, "num_experts_per_tok": 2, "head_dim": 32,
                                             "sliding_window": 20, "intermediate_size": 64}),
    "gemma2": ("Gemma2ForCausalLM", rope() | GEMMA),
    "gemma3": ("Gemma3ForCausalLM", GEMMA | {"rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}),
    "gemma4": ("Gemma4ForCausalLM", GEMMA4 | {"attention_k_eq_v": False}),
    "gemma4-unified": ("Gemma4UnifiedForCausalLM", {k: v for k, v in GEMMA4.items() if k != "hidden_size_per_layer_input"}),
    "gemma4-experts": ("Gemma4ForCausalLM", GEMMA4 | {"attention_k_eq_v": True, "num_global_key_value_heads": 1,
                                                      "enable_moe_block": True, "num_experts": 8, "top_k_experts": 2,
                                                      "moe_intermediate_size": 32}),
    "gemma4-layer-inputs": ("Gemma4ForCausalLM", GEMMA4_E),
    "gemma4-shared-projection": ("Gemma4ForCausalLM", GEMMA4 | {"attention_k_eq_v": True, "num_global_key_value_heads": 1}),
    "qwen3-next": ("Qwen3NextForCausalLM", rope(1e6, partial_rotary_factor=0.25) | EXPERTS | DELTA | {
        "shared_expert_intermediate_size": 24, "mlp_only_layers": [2]}),
    "qwen3.5": ("Qwen3_5ForCausalLM", rope(1e6, partial_rotary_factor=0.25) | DELTA),
    "qwen3.5-moe": ("Qwen3_5MoeForCausalLM", rope(1e6, partial_rotary_factor=0.25) | EXPERTS | DELTA | {
        "shared_expert_intermediate_size": 24}),
    "deepseek-v3": ("DeepseekV3ForCausalLM", rope(
        kind="yarn", factor=4.0, original_max_position_embeddings=64, mscale=0.7, mscale_all_dim=1.0,
        beta_fast=8, beta_slow=1) | GROUPED | LATENT | {"q_lora_rank": 24}),
    "deepseek-v3-plain": ("DeepseekV3ForCausalLM", rope() | GROUPED | LATENT | {"q_lora_rank": None}),
}

MODELS |= {
    "apertus": ("ApertusForCausalLM", LLAMA3 | {"hidden_act": "xielu", "head_dim": 32}),
    "cohere": ("CohereForCausalLM", rope() | {"logit_scale": 0.25, "attention_bias": True}),
    "cohere2": ("Cohere2ForCausalLM", rope() | SLIDING | {"logit_scale": 0.25, "head_dim": 32}),
    "deepseek-v2": ("DeepseekV2ForCausalLM", YARN | LATENT | GROUPED | {"q_lora_rank": None, "topk_method": "greedy"}),
    "deepseek-v2-groups": ("DeepseekV2ForCausalLM", rope() | LATENT | GROUPED | {"q_lora_rank": 24,
                                                                                "topk_method": "group_limited_greedy"}),
    "ernie": ("Ernie4_5ForCausalLM", rope(5e5) | {"use_bias": True, "head_dim": 32}),
    "ernie-moe": ("Ernie4_5_MoeForCausalLM", rope(5e5) | {"moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 32,
                                                         "moe_num_shared_experts": 2, "moe_layer_start_index": 1}),
    "gemma1": ("GemmaForCausalLM", rope() | {"head_dim": 32}),
    "glm4-moe-lite": ("Glm4MoeLiteForCausalLM", rope() | LATENT | {**GROUPED, "n_group": 1, "topk_group": 1} | {
        "q_lora_rank": 24, "mlp_layer_types": ["dense", "sparse", "sparse"]}),
    "granite": ("GraniteForCausalLM", rope() | GRANITE),
    "granite4": ("GraniteMoeHybridForCausalLM", rope() | GRANITE | {
        "num_local_experts": 0, "shared_intermediate_size": 80, "layer_types": ["full_attention"] * 3,
        "position_embedding_type": "rope", "mamba_n_heads": 8}),
    "hunyuan": ("HunYuanDenseV1ForCausalLM", rope(kind="dynamic", alpha=50.0, factor=1.0) | {"head_dim": 32}),
    "hunyuan-moe": ("HunYuanMoEV1ForCausalLM", rope() | {"num_experts": 8, "moe_topk": 2, "head_dim": 32}),
    "ministral3": ("Ministral3ForCausalLM", rope(
        1e6, "yarn", factor=4.0, original_max_position_embeddings=64, mscale=1.0, mscale_all_dim=1.0, beta_fast=8.0,
        beta_slow=1.0, llama_4_scaling_beta=0.1) | {"head_dim": 32}),
    "nemotron": ("NemotronForCausalLM", rope(partial_rotary_factor=0.5) | {"head_dim": 32}),
    "olmoe": ("OlmoeForCausalLM", rope() | EXPERTS | {"norm_topk_prob": False}),
    "qwen3-vl-moe": ("Qwen3VLMoeForConditionalGeneration", {"vision_config": SEEING, "text_config": COMMON | EXPERTS | {
        "head_dim": 32, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [6, 5, 5]}}}),
    "starcoder2": ("Starcoder2ForCausalLM", rope() | {"use_bias": True, "sliding_window": 40}),
}

# Blocks of float8 scales are 128 wide: sizes that a block does not divide.
WIDE = {"hidden_size": 192, "intermediate_size": 160, "head_dim": 48}

MODELS["qwen3-vl-moe-byinput"] = MODELS["qwen3-vl-moe-fp8stacks"] = MODELS["qwen3-vl-moe"]
MODELS |= {
    "qwen3-fp8": ("Qwen3ForCausalLM", rope(1e6) | WIDE),
    "llama-fp8tensor": ("LlamaForCausalLM", LLAMA3 | WIDE),
    "qwen3-moe-fp8rows": ("Qwen3MoeForCausalLM", rope(1e6) | EXPERTS | WIDE),
    "gpt-oss-mxfp4": ("GptOssForCausalLM", MODELS["gpt-oss"][1]),
    "gemma4-layer-inputs-fp8": ("Gemma4ForCausalLM", GEMMA4_E | {"hidden_size_per_layer_input": 20}),
    "gemma4-layer-inputs-fp8rows": ("Gemma4ForCausalLM", GEMMA4_E),
}
