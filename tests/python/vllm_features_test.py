# SPDX-License-Identifier: MIT
"""What a server in production does, by a real vLLM on the CPU that serves a set: vllm_features_test.py [FeaturesTest.test_…]"""
import http.client
import json
import re
import shutil
import signal
import time
import unittest
from pathlib import Path

import numpy as np
import oscar_kv
from safetensors import safe_open
from sample_sets import MODEL, PROJECT, sample_set
from vllm_serving import BF16_BYTES, GIB, IDS, ON_CUDA, TOKENS, ServedModel, main

LARGER = PROJECT.parent / "shared/models/qwen3-15m"  # 6 query heads, 2 KV heads
LARGER_TOKENS = PROJECT.parent / "shared/golden/qwen3-15m"
needs_larger = unittest.skipUnless(LARGER.is_dir(), f"there is no {LARGER}")
RANK = 8  # of the adapter
PROMPTS = [IDS[:700], IDS[5000:5040], IDS[9000:10000]]


def tune(model):
    """Adds to every projection of queries, keys and values what the adapter below adds; returns the adapter's tensors."""
    import torch

    numbers, tensors = torch.Generator().manual_seed(3), {}
    for i, layer in enumerate(model.model.layers):
        for name in ("q_proj", "k_proj", "v_proj"):
            weight = getattr(layer.self_attn, name).weight
            down = torch.randn(RANK, weight.shape[1], generator=numbers).bfloat16()
            up = (0.02 * torch.randn(weight.shape[0], RANK, generator=numbers)).bfloat16()
            with torch.no_grad():
                weight += up.to(weight) @ down.to(weight)  # lora_alpha is RANK: the scale is 1
            place = f"base_model.model.model.layers.{i}.self_attn.{name}"
            tensors |= {f"{place}.lora_A.weight": down, f"{place}.lora_B.weight": up}
    return tensors


class FeaturesTest(ServedModel):
    def adapter(self):
        import torch
        import transformers
        from safetensors.torch import save_file

        folder = self.folder / "adapter"
        folder.mkdir()
        save_file(tune(transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)), folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text(json.dumps({
            "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": RANK, "lora_dropout": 0.0, "bias": "none",
            "target_modules": ["q_proj", "k_proj", "v_proj"], "base_model_name_or_path": str(MODEL)}))
        return folder

    def abort(self, prompt):
        """A request whose client goes away after its first words."""
        request = {"model": str(self.model), "prompt": prompt, "max_tokens": 400, "stream": True, "ignore_eos": True}
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        line.request("POST", "/v1/completions", json.dumps(request), {"Content-Type": "application/json"})
        self.assertIn(b"data:", line.getresponse().readline())
        self.assertEqual(self.metric("vllm:num_requests_running"), 1)
        line.close()
        last = time.monotonic() + 60
        while self.metric("vllm:num_requests_running") and time.monotonic() < last:
            time.sleep(0.2)
        self.assertEqual(self.metric("vllm:num_requests_running"), 0)

    def test_preemption_drafts_aborts_and_adapters(self):
        """A cache that is too small for what runs at once, tokens that n-grams draft, a client that goes away, and LoRA."""
        path = sample_set("coded")
        self.served("--max-model-len", "1024", "--num-gpu-blocks-override", "40", "--enable-lora", "--max-lora-rank", str(RANK),
                    "--lora-modules", f"tuned={self.adapter()}", "--speculative-config",
                    '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}',
                    OSCAR_KV_SET=str(path))
        self.assertIn("is served in 4 layers", self.said())
        self.abort(IDS[30000:30400])
        prompts = [IDS[i:i + 250] for i in (0, 5000, 9000, 20000)]  # which the cache holds, but not 250 tokens more of each
        answers = self.complete_all(prompts, 250)
        self.assertGreater(self.metric("vllm:num_preemptions_total"), 0)
        self.assertGreater(self.metric("vllm:spec_decode_num_accepted_tokens_total"), 20)
        self.assertLess(self.difference(prompts, answers, path), 0.05)
        tuned = [self.complete(IDS[:250], 120, "tuned")]
        self.assertLess(self.difference(prompts[:1], tuned, path, tune), 0.05)
        self.assertGreater(self.difference(prompts[:1], tuned, path), 0.2)

    def eagle(self, third=False):
        """The draft of EAGLE, or of EAGLE-3: one layer of random weights, for the sample model."""
        import torch
        from safetensors.torch import save_file

        config = json.loads((MODEL / "config.json").read_text())
        hidden, wide, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
        heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"], "v_proj": config["num_key_value_heads"]}
        states, inputs = (3, 2) if third else (2, 1)  # that become one, and that projections have
        shapes = {"fc": (hidden, states * hidden), "layers.0.self_attn.o_proj": (hidden, heads["q_proj"] * dim), "layers.0.mlp.down_proj": (hidden, wide)}
        shapes |= {f"layers.0.self_attn.{name}": (count * dim, inputs * hidden) for name, count in heads.items()}
        shapes |= {f"layers.0.mlp.{name}_proj": (wide, hidden) for name in ("gate", "up")}
        (self.folder / "eagle").mkdir()
        (self.folder / "eagle/config.json").write_text(json.dumps(config | {
            "architectures": ["LlamaForCausalLMEagle3" if third else "LlamaForCausalLM"], "draft_vocab_size": config["vocab_size"],
            "eagle_aux_hidden_state_layer_ids": [1, 2, 3], "model_type": "llama", "num_hidden_layers": 1}))
        norms = ("layers.0.post_attention_layernorm", *("layers.0.input_layernorm", "layers.0.hidden_norm", "norm") * third)
        tensors = {f"{name}.weight": 0.05 * torch.randn(shape) for name, shape in shapes.items()} | {f"{name}.weight": torch.ones(hidden) for name in norms}
        if third:
            tensors["lm_head.weight"] = 0.05 * torch.randn(config["vocab_size"], hidden)
        save_file({name: x.bfloat16() for name, x in tensors.items()}, self.folder / "eagle/model.safetensors")
        return self.folder / "eagle"

    def check_drafts(self, layers, **speculative):
        """Drafts keep vLLM's cache, so the model's layers alone are packed; what is generated is what PackedCache says."""
        path = sample_set("coded")
        self.served("--max-num-batched-tokens", "512", "--speculative-config", json.dumps(speculative | {"num_speculative_tokens": 3}), OSCAR_KV_SET=str(path))
        self.assertIn("is served in 4 layers", self.said())
        for hits in (0, 1152):  # then of 700 and 1,000 tokens, which are there, those of whole blocks up to the last 255
            self.assertLess(self.difference(PROMPTS, self.complete_all(PROMPTS, 100), path), 0.05)
            self.assertEqual(self.metric("vllm:prefix_cache_hits_total"), hits)
        accepted, drafted = (self.metric(f"vllm:spec_decode_num_{kind}_tokens_total") for kind in ("accepted", "draft"))
        tokens = self.cache_tokens()
        print("figure: accepted", accepted, "of", drafted, "tokens of a GiB", tokens, flush=True)
        bytes_of_packed = GIB / 3_728_256  # of a token, as the test of a coded set has it
        self.assertLess(abs(tokens * (bytes_of_packed + layers * BF16_BYTES / 4) / GIB - 1), 0.01)
        return accepted / drafted

    def test_a_model_that_drafts(self):
        """The model itself, with an exact cache: most of what it drafts is taken."""
        self.assertGreater(self.check_drafts(4, method="draft_model", model=str(MODEL)), 0.8)

    def test_a_layer_that_drafts(self):
        self.check_drafts(1, method="eagle", model=str(self.eagle()))

    def test_a_layer_that_drafts_of_several_states(self):
        self.check_drafts(1, method="eagle3", model=str(self.eagle(third=True)))

    def test_keys_before_rope(self):
        """At half the bits, with requests that come again after others have taken their blocks' copies."""
        path = sample_set("coded", keys="before-rope", bits=1.25)
        self.served("--max-num-batched-tokens", "256", OSCAR_KV_SET=str(path))
        found = self.difference(PROMPTS, self.complete_all(PROMPTS, 100), path)
        self.assertLess(found, 0.05)
        for i in range(11000, 17000, 1000):
            self.complete(IDS[i:i + 900], 1)
        answers = self.complete_all(PROMPTS, 100)
        self.assertGreater(self.metric("vllm:prefix_cache_hits_total"), 1000)
        self.assertLess(self.difference(PROMPTS, answers, path), 0.05)
        self.check(path, 0, "--min-agreement", "0.8")
        self.check(sample_set("coded"), 3)

    def fitted(self, model, text, tokens=4096, **others):
        """A set for a model that the zoo has none for, or of a dump."""
        source = {} if "dump" in others else {"model": model, "tokens": text, "max_tokens": tokens}
        oscar_kv.fit(self.folder / "set", recipe="coded", device="cpu", **source, **others)
        return self.folder / "set"

    def hybrid(self, name, change=lambda attention: None, **others):
        """Random weights; layers of another kind among those that read the whole text. change: of each layer's attention."""
        import torch
        import transformers

        torch.manual_seed(5)
        model_class = getattr(transformers, f"{name}ForCausalLM")
        model = model_class(model_class.config_class(
            vocab_size=2048, hidden_size=192, intermediate_size=512, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2048,
            initializer_range=0.08, bos_token_id=0, eos_token_id=0, pad_token_id=0, **{"sliding_window": 128} | others))
        for layer in model.model.layers:
            if hasattr(layer, "self_attn"):
                change(layer.self_attn)
        model.bfloat16().save_pretrained(self.folder / "hybrid")
        shutil.copy(MODEL / "tokenizer.json", self.folder / "hybrid")
        return self.folder / "hybrid"

    def check_hybrid(self, model, *options, most=0.06, **source):
        """What is served is near a cache of two packed layers with short windows, by `most`, and nearer than to an exact cache."""
        path = self.fitted(model, TOKENS.with_name("tokens_calib.npy"), sink=16, recent=64, **source)
        self.served("--max-num-batched-tokens", "512", *options, model=model, OSCAR_KV_SET=str(path))
        self.assertEqual(sum(map(int, re.findall(r"is served in (\d) layers", self.said()))), 2)
        print("figure: tokens of a GiB:", self.cache_tokens(), flush=True)
        answers = self.complete_all(PROMPTS)
        found = self.difference(PROMPTS, answers, path)
        self.assertLess(found, most)
        self.assertLess(found, self.difference(PROMPTS, answers, None))
        self.assertLess(self.difference(PROMPTS, self.complete_all(PROMPTS), path), most)  # of prefixes that are there
        self.assertGreater(self.metric("vllm:prefix_cache_hits_total"), 600)

    def check_tokens_after_the_next(self, model, layer, draft, beside, norms, joins, copies, **others):
        """A checkpoint with a layer that drafts (MTP), one of the model's again. layer, draft, beside: what names of its tensors begin with, and of
        those beside it: of norms, of what joins two states, and of copies of the model's tensors."""
        import torch
        from safetensors.torch import load_file, save_file

        tensors = load_file(model / "model.safetensors")
        added = {draft + name.removeprefix(layer): x.clone() for name, x in tensors.items() if name.startswith(layer)}
        added |= {f"{beside}{name}.weight": torch.ones(192).bfloat16() for name in norms} | {f"{beside}{joins}.weight": torch.eye(192).repeat(1, 2).bfloat16()}
        added |= {f"{beside}{name}.weight": tensors[f"{of}.weight"].clone() for name, of in copies.items()}
        save_file(tensors | added, model / "model.safetensors", {"format": "pt"})
        self.check_hybrid(model, "--speculative-config", '{"method": "mtp", "num_speculative_tokens": 1}', **others)
        self.assertGreater(self.metric("vllm:spec_decode_num_draft_tokens_total"), 60)

    def test_layers_for_tokens_after_the_next(self):
        """GLM-4.5, whose numbers of layers that draft are behind the model's. Queries are small, or rounding would choose what they see."""
        model = self.hybrid("Glm4Moe", lambda attention: attention.q_proj.weight.data.mul_(0.3), sliding_window=None, num_hidden_layers=2, head_dim=64,
                            n_routed_experts=2, num_experts_per_tok=2, n_group=1, topk_group=1, moe_intermediate_size=64, n_shared_experts=1,
                            first_k_dense_replace=1, num_nextn_predict_layers=1)
        self.check_tokens_after_the_next(model, "model.layers.1.", "model.layers.2.", "model.layers.2.", ("enorm", "hnorm", "shared_head.norm"), "eh_proj",
                                         {"embed_tokens": "model.embed_tokens", "shared_head.head": "lm_head"})

    def test_layers_that_draft_with_numbers_of_the_model(self):
        """EXAONE MoE, here without experts and with a set of what transformers computes. Queries are small, or rounding would choose what they see."""
        import torch
        import transformers

        model = self.hybrid("ExaoneMoe", lambda attention: attention.q_norm.weight.data.fill_(0.1), num_hidden_layers=4, head_dim=64, first_k_dense_replace=4,
                            num_nextn_predict_layers=1, layer_types=["full_attention", "sliding_attention"] * 2)
        observed = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        with oscar_kv.observe(observed, self.folder / "dump"), torch.no_grad():
            observed(torch.tensor(np.load(TOKENS.with_name("tokens_calib.npy")).reshape(-1)[:4096].reshape(4, -1)).long())
        self.check_tokens_after_the_next(model, "model.layers.0.", "mtp.layers.0.", "mtp.", ("norm", "pre_fc_norm_hidden", "pre_fc_norm_embedding"), "fc", {},
                                         dump=self.folder / "dump", most=0.15)  # one code that rounding turns: .05 and .09 of the same prompts

    def test_layers_with_sliding_windows(self):
        """Two of six read the whole text, as in Gemma 3."""
        self.check_hybrid(self.hybrid("Gemma3", num_hidden_layers=6, head_dim=128, query_pre_attn_scalar=128,
                                      layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2))
        self.assertRegex(self.said(), r"layers? at 2\.\d+ bits a value")

    def test_sinks(self):
        """gpt-oss, whose sinks get some half of what their heads see; all experts run, so that rounding does not choose them."""
        rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 512, "truncate": False}
        self.check_hybrid(self.hybrid("GptOss", lambda attention: attention.sinks.data.normal_(6), num_hidden_layers=4, head_dim=64,
                                      num_local_experts=2, num_experts_per_tok=2, rope_parameters=rope))

    def test_soft_caps(self):
        """Gemma 2, whose scores have a spread that its cap cuts."""
        self.check_hybrid(self.hybrid("Gemma2", num_hidden_layers=4, head_dim=64, query_pre_attn_scalar=4, attn_logit_softcapping=4.0))

    def test_layers_that_read_the_cache_of_another(self):
        """Gemma 4: the last four of eight layers have no keys. Queries are small, or rounding would choose what they see."""
        self.check_hybrid(self.hybrid("Gemma4", lambda attention: attention.q_norm.weight.data.fill_(0.2), num_hidden_layers=8, head_dim=64,
                                      global_head_dim=64, num_kv_shared_layers=4, hidden_size_per_layer_input=16,
                                      vocab_size_per_layer_input=2048, layer_types=["sliding_attention", "full_attention"] * 4))

    def check_linear_attention(self, name, **others):
        """Blocks of packed tokens are as large as a state, as are vLLM's of 256 tokens, which pads states by 91 %."""
        sizes = {f"linear_{kind}": size for kind, size in (("num_key_heads", 2), ("num_value_heads", 4), ("key_head_dim", 64), ("value_head_dim", 64))}
        # Outputs of attention are doubled, which gates halve.
        self.check_hybrid(self.hybrid(name, lambda attention: attention.o_proj.weight.data.mul_(2), num_hidden_layers=4, head_dim=64,
                                      layer_types=["linear_attention", "full_attention"] * 2, **sizes, **others),
                          *(("--gdn-prefill-backend", "triton") if ON_CUDA else ()))  # FlashInfer's is compiled when it is asked for
        wide = not ON_CUDA and "avx512_bf16" in Path("/proc/cpuinfo").read_text(encoding="ascii")  # there vLLM has states in float32
        self.assertGreater(int(re.search(r"a block has (\d+) tokens", self.said())[1]), 640 if wide else 320)
        self.assertGreater(self.cache_tokens(), 2_500_000)  # 838,860 in bfloat16
        self.assertIn("blocks of 16 tokens; decode steps", self.said())

    def test_qwen3_next(self):
        self.check_linear_attention("Qwen3Next", num_experts=2, num_experts_per_tok=2, moe_intermediate_size=64,
                                    shared_expert_intermediate_size=64)

    def test_qwen3_5(self):
        self.check_linear_attention("Qwen3_5")

    def check_two_ranks(self, path):
        self.served("--tensor-parallel-size", "2", model=LARGER, OSCAR_KV_SET=str(path))
        self.assertIn("is served in 6 layers", self.said())
        self.assertEqual(self.metric("oscar_kv_layers"), 6)
        ids = np.load(LARGER_TOKENS / "tokens_eval.npy").reshape(-1).tolist()
        prompts = [ids[:700], ids[5000:5040], ids[9000:10000]]
        self.assertLess(self.difference(prompts, self.complete_all(prompts), path), 0.025)

    @needs_larger
    def test_tensor_parallelism(self):
        """Two ranks, each with one of two KV heads."""
        self.check_two_ranks(self.fitted(LARGER, LARGER_TOKENS / "tokens_calib.npy"))

    @needs_larger
    def test_tensor_parallelism_of_uneven_heads(self):
        """A set of scope layer: the rank whose heads take fewer bits has as much room as the other."""
        path = self.fitted(LARGER, LARGER_TOKENS / "tokens_calib.npy", tokens=1024, scope="layer")
        with safe_open(path / "coded.safetensors", "np") as file:
            levels = [file.get_tensor(name) for name in file.keys() if name.endswith("levels")]
        bits = sum(np.log2(x.astype(float)).sum(-1) for x in levels)
        self.assertNotEqual(*bits.tolist())
        self.check_two_ranks(path)

    @needs_larger
    def test_observed_tensor_parallelism(self):
        """Each of two ranks keeps rows of its KV head; joined, they are those of our own dump."""
        model, found = self.in_float32(LARGER), self.folder / "rows"
        self.served("--tensor-parallel-size", "2", "--dtype", "float32", "--max-num-batched-tokens", "256", model=model,
                    OSCAR_OBSERVE=str(found))
        ids = np.load(LARGER_TOKENS / "tokens_eval.npy").reshape(-1)
        prompts = np.stack([ids[:600], ids[9000:9600]]).astype(np.int32)
        self.complete_all(prompts.tolist())
        self.server.send_signal(signal.SIGTERM)
        self.server.wait(100)
        self.assertEqual(len(list(found.iterdir())), 2, self.said()[-2000:])
        self.assertLess(self.rows_beside_a_dump(found, model, prompts)[1], 2e-5)
        self.assertEqual(oscar_kv.run("inspect", found)["facts"]["ranks"], 2)


if __name__ == "__main__":
    main()
