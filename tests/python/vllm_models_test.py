# SPDX-License-Identifier: MIT
"""Which models of apps/oscar/README.md vLLM serves with a set: vllm_models_test.py [--keep] [NAME…]

Each is a tiny one of tests/unit/model/parity with random weights, published as a checkpoint, which gets a set with short windows. vLLM
on the CPU serves it; its log-probabilities of the whole vocabulary are held against those by PackedCache in transformers, and by an exact
cache. If the start ends, vLLM starts without a set, too: that tells what we refuse from what vLLM does not run here.
--keep writes what was found to tests/bench/results, of which tests/bench/vllm_models_table.py makes the page.
"""
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import oscar_kv
from sample_sets import MODEL, PROJECT
from vllm_serving import PYTHON, ServedModel, main

sys.path[:0] = [str(PROJECT / "tests/unit/model/parity"), str(PROJECT / "tests/bench")]
import checkpoints
import parity  # ends with 77 if transformers is not installed
import provenance
import torch
import transformers
from tiny_models import longrope, rope

KEPT = PROJECT / "tests/bench/results/vllm_models.json"
SINK, RECENT, NEW = 16, 32, 16  # tokens of a set's windows, and that are generated
PROMPTS = (200, 150)
SIZES = {"hidden_size": 128, "head_dim": 32, "tie_word_embeddings": False}  # tied, logits have a spread of 11
IN_ALL_LAYERS = {"sliding_window": 128}
STATES = {"linear_key_head_dim": 64, "linear_value_head_dim": 64}
TEXT = "its text alone (`--language-model-only`)"
TWO_SIZES = {"head_dim": 32, "global_head_dim": 64}
# The sizes that vLLM's kernels have.
LATENT = {"head_dim": 64, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
# What vLLM asks published files for.
NOAUX = {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}
MINIMAX = {"rotary_dim": 16, "scoring_func": "sigmoid", "use_qk_norm": True, "qk_norm_type": "per_layer", "use_routing_bias": True}
TIED = {"tie_word_embeddings": True, "logit_scale": 0.09}  # vLLM ties always
YARN = rope(1e6, "yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=8.0, beta_slow=1.0, llama_4_scaling_beta=1e-6)
MULTIPLIERS = {"embedding_multiplier": 0.5, "attention_multiplier": 0.2, "residual_multiplier": 0.7, "logits_scaling": 0.5}
# Tiny models, what is said of them, and members of their own. Where vLLM computes something else than transformers without a set, too,
# members leave that out, which is said.
MODELS = [
    ("apertus", "", {}),
    ("cohere", "without biases, which vLLM leaves out", TIED | {"attention_bias": False}),
    ("cohere2", "windows longer than the texts: vLLM's are a token longer than transformers'", TIED | {"sliding_window": 400}),
    ("deepseek-v2", "", LATENT),
    ("deepseek-v3", "", LATENT | NOAUX),
    ("dots1", "", {}),
    ("ernie", "without biases, some of which vLLM leaves out", {"use_bias": False}),
    ("ernie-moe", "all experts chosen: vLLM chooses others here", {"moe_k": 8}),
    ("exaone4", "", {}),
    ("exaone4-sliding", "sliding windows in every second layer", {}),
    ("gemma1", "", {}),
    ("gemma2", "", {"tie_word_embeddings": True}),  # vLLM knows no other
    ("gemma3", "", {}),
    ("gemma4", "heads of two sizes, as published", TWO_SIZES),
    ("gemma4", "heads of one size", {}),
    ("gemma4-experts", "experts, heads of one size", {}),
    ("gemma4-layer-inputs", "layers that read the cache of others (E2B, E4B), heads of one size", {}),
    ("gemma4-unified", "heads of two sizes, as published", TWO_SIZES),
    ("glm", "", {}),
    ("glm4", "", {}),
    ("glm4-moe", "", {}),
    ("glm4-moe-lite", "", LATENT),
    ("gpt-oss", "", {}),
    ("granite", "", MULTIPLIERS),
    ("granite4", "without Mamba layers", MULTIPLIERS),
    ("hunyuan", "", {}),
    ("hunyuan-moe", "", {}),
    ("llama", "", {}),
    ("minimax-m2", "", MINIMAX),
    ("ministral3", "queries not scaled by position, which vLLM leaves out", YARN),
    ("mistral", "", {}),
    ("mistral-sliding", "sliding windows in all layers (7B v0.1)", IN_ALL_LAYERS),
    ("mixtral", "", {}),
    ("nemotron", "", {}),
    ("olmo2", "", {}),
    ("olmo3", "", {}),
    ("olmoe", "", {}),
    ("phi3", "sliding windows in all layers (Phi-3 mini)", IN_ALL_LAYERS),
    ("phi4-mini", "sliding windows in all layers, longer than all texts (Phi-4-mini)", longrope(512, 12) | {"sliding_window": 1024}),
    ("qwen2", "", {}),
    ("qwen2-sliding", "sliding windows in some layers", {}),
    ("qwen2.5-vl", TEXT, rope(1e6, mrope_section=[4, 6, 6])),
    ("qwen2-moe", "", {}),
    ("qwen3-yarn", "", {}),
    ("qwen3-moe", "", {}),
    ("qwen3-next", "every token to all experts", STATES | {"num_experts_per_tok": 8}),
    ("qwen3-vl", TEXT, {}),
    ("qwen3-vl-moe-byinput", TEXT, {}),
    ("qwen3.5", "", STATES),
    ("qwen3.5-moe", "", STATES),
    ("seedoss", "", {}),
    ("smollm3", "", {}),
    ("starcoder2", "sliding windows in all layers, as published", IN_ALL_LAYERS),
    ("starcoder2", "without sliding windows", {"sliding_window": None}),
]


class ModelsTest(ServedModel):
    def setUp(self):
        super().setUp()
        self.child, self.rows = None, []

    def built(self, name, members):
        """A checkpoint in a folder of its own, and the model of transformers with its weights."""
        place = Path(tempfile.mkdtemp(dir=self.folder), "model")
        built = parity.build(name, **SIZES | members).bfloat16()
        model = checkpoints.publish(name, built, place)
        # What vLLM asks some models for, though it gets token ids and no pictures.
        shutil.copy(MODEL / "tokenizer.json", place)
        (place / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
        if hasattr(model.config, "vision_config"):
            for kind in ("preprocessor", "video_preprocessor"):
                (place / f"{kind}_config.json").write_text('{"image_processor_type": "Qwen2VLImageProcessor", "video_processor_type": "Qwen2VLVideoProcessor"}')
        if model is built:
            model = type(model).from_pretrained(place, dtype=torch.float32).eval()
        if model.config.model_type == "phi3" and model.config.sliding_window > sum(PROMPTS):
            model.config.sliding_window = None  # which changes nothing, and PackedCache takes no other
        return place, model

    def answers(self, place, prompts, path):
        """(what vLLM says, its generated ids and log-probabilities, or None where it ends with an error); path: of the set, or None."""
        asked = place.with_name("asked.json")
        members = {"model": str(place), "max_model_len": 320, "max_num_seqs": 2, "enforce_eager": True, "dtype": "bfloat16", "max_logprobs": -1,
                   "language_model_only": True}
        asked.write_text(json.dumps({"members": members, "prompts": prompts, "tokens": NEW, "variables": {"OSCAR_KV_SET": str(path)} if path else {}}))
        if self.child is None:
            self.child = subprocess.Popen([PYTHON, "-B", PROJECT / "tests/python/vllm_answers.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                          env=self.environment() | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}, text=True)
            self.addCleanup(self.child.communicate)
            self.version = self.child.stdout.readline().strip()
        self.child.stdin.write(f"{asked}\n")
        self.child.stdin.flush()
        is_answered = self.child.stdout.readline().strip() == "0"
        return asked.with_suffix(".log").read_text(errors="replace"), np.load(asked.with_suffix(".npz")) if is_answered else None

    def difference_of(self, model, prompts, found, part):
        """Mean absolute difference of log-probabilities of the whole vocabulary to those by PackedCache, or by an exact cache."""
        differences = []
        for prompt, tokens, logs in zip(prompts, found["tokens"].tolist(), found["logs"]):
            cache = oscar_kv.PackedCache(part, model.config) if part else transformers.DynamicCache(config=model.config)
            with torch.no_grad():
                rows = [model(torch.tensor([ids]), past_key_values=cache, logits_to_keep=1).logits[0] for ids in (prompt, *([i] for i in tokens[:-1]))]
            differences.append(np.abs(torch.cat(rows).log_softmax(-1).numpy() - logs).mean())
        return round(float(np.mean(differences)), 4)

    def row_of(self, name, what, members):
        place, model = self.built(name, members)
        text, numbers = model.config.get_text_config(), np.random.default_rng(1)
        ids, path = place.with_name("ids.npy"), place.with_name("set")
        np.save(ids, numbers.integers(0, text.vocab_size, (8, 256)).astype(np.int32))
        prompts = [numbers.integers(0, text.vocab_size, count).tolist() for count in PROMPTS]
        # There is no coded part for latent attention.
        options = {"recipe": "oscar"} if "kv_lora_rank" in members else {"recipe": "coded", "sink": SINK, "recent": RECENT}
        oscar_kv.fit(path, model=place, tokens=ids, max_tokens=2048, device="cpu", **options)
        row = {"model_type": text.model_type, "architecture": type(model).__name__, "tiny": name, "what": what, "layers": text.num_hidden_layers}
        said, found = self.answers(place, prompts, path)
        if found is not None:
            part = oscar_kv.read_set(path)
            packed = sum(map(int, re.findall(r"is served in (\d+) layers?", said)))
            self.assertEqual(packed, len(part.layers))
            difference, exact = (self.difference_of(model, prompts, found, each) for each in (part, None))
            # Rounding to bfloat16 alone makes 0.004 to 0.03, and what the set changes is up to five times that.
            self.assertLess(difference, 0.2)
            self.assertLess(difference, exact * 2 / 3)
            return row | {"served": "yes", "packed": packed, "difference": difference, "exact": exact}
        other, found = self.answers(place, prompts, None)
        errors = re.findall(r"(?:[eE]rror: (?:the set \S+ cannot be served: )?(?:\S+/manifest.json: )?|\s(?=assert ))(.+)$",
                            other if found is None else said, re.MULTILINE)
        self.assertEqual(f"the set {path} cannot be served: " in said, found is not None, said[-3000:])
        return row | {"served": "not run by vLLM" if found is None else "refused", "reason": errors[-1]}

    def test_models(self):
        """Each is served, or not for the reason that is kept."""
        machine, kept = provenance.machine() | {"commit": provenance.commit()}, [] if KEEPS else json.loads(KEPT.read_text())["rows"]
        for name, what, members in CHOSEN:
            with self.subTest(name, what=what):
                row = self.row_of(name, what, members)
                self.rows.append(row)
                print(json.dumps(row), flush=True)
                if not KEEPS:
                    figures = {figure: row[figure] for figure in ("difference", "exact") if figure in row}
                    self.assertIn(row, [each | figures for each in kept])
        if not KEEPS and CHOSEN == MODELS:
            self.assertEqual(len(kept), len(MODELS))
        if KEEPS and len(self.rows) == len(MODELS):
            KEPT.write_text(json.dumps({"what": "tests/python/vllm_models_test.py --keep", "vllm": self.version, "machine": machine, "rows": self.rows}, indent=1) + "\n")


if __name__ == "__main__":
    KEEPS, NAMES = "--keep" in sys.argv, set(sys.argv[1:]) - {"--keep", "-v"}
    CHOSEN = [each for each in MODELS if each[0] in NAMES or not NAMES]
    if (KEEPS and NAMES) or NAMES - {each[0] for each in MODELS}:
        sys.exit("usage: vllm_models_test.py --keep, or names of tiny models")
    sys.argv = sys.argv[:1]
    main()
