# SPDX-License-Identifier: MIT
"""llama_cpp_test.py COMPARE [CASE…]: COMPARE (compare.cpp) finds llama.cpp's logits for GGUF files: for a tiny model of each
architecture, with every key of its metadata left out or at an unusual value. Where it would not, it refuses the file by the name
of the key. Exit status 77 without the packages."""
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
try:
    import llama_cpp
    import torch
    from gguf_parity import CASES, build
    from safetensors.torch import save_file
except ImportError as error:
    print(f"skipped: {error}; run scripts/setup.sh --tests")
    sys.exit(77)
from gguf import GGMLQuantizationType as Type

import gguf_files
from parity import Compare
from tiny_models import COMMON

REAL = Path(__file__).parents[4] / "out/real_model/smollm2.gguf"
TOKENS = 65
# COMPARE's own bound, 1e-4 of the largest logit, is what sums of 96 terms in six layers may lose in float32 (6 * 96 * 2^-24 = 3e-5)
# and a little. llama.cpp looks GELU up in a table of float16: of input and output, each is off by up to 2^-11.
GELU = 2 * 2**-11
# Matrices in Q4_1 meet activations in Q8_1 there, in steps of 1/127 of the largest of 32, which is 2.2 times the usual one: as noise
# of step / sqrt(12) in front of each of 7 * 30 matrices.
Q8 = 2.2 / 127 / 12**0.5 * (7 * 30)**0.5
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
# What is tried in every architecture; None: left out. The first ones must run in those of ALWAYS.
EVERYWHERE = [
    {}, YARN, {"rope.scaling.type": "linear", "rope.scaling.factor": 3.0}, {"rope.scaling.factor": 2.0, "rope.scaling.type": None},
    {"rope.scale_linear": 2.0, "rope.scaling.factor": None, "rope.scaling.type": None}, {"rope.freq_base": None}, {"rope.freq_base": 500.0},
    {"attention.layer_norm_rms_epsilon": 0.1}, {"rope.scaling.finetuned": True}, {"rope.scaling.type": "none", "rope.scaling.factor": 1.0},
    {"rope.dimension_count": None}, {"attention.sliding_window": 7}, {"attention.sliding_window": None}, {"final_logit_softcapping": None},
    {"attn_logit_softcapping": None}, {"attn_logit_softcapping": 3.0}, {"final_logit_softcapping": 20.0},
    {"attention.sliding_window_pattern": 3, "attention.sliding_window": 9}, {"rope.freq_base_swa": 70.0}, {"rope.dimension_count": 8},
    {"expert_used_count": 1}, YARN | {"rope.scaling.attn_factor": 0.7}, {"rope.scaling.attn_factor": 0.6},
    {"rope.scaling.type": "none", "rope.scaling.factor": 2.0}, {"rope.scaling.type": "longrope"}, {"rope.scaling.alpha": 3.0},
    {"attention.sliding_window": 0}, {"attention.scale": 0.3}, {"attention.causal": False}, {"attention.clamp_kqv": 0.4},
    {"attention.max_alibi_bias": 2.0}, {"logit_scale": 0.3}, {"residual_scale": 0.3}, {"embedding_scale": 2.0},
    {"expert_weights_scale": 2.0}, {"expert_weights_norm": True}, {"expert_weights_norm": False}, {"expert_gating_func": 2},
    {"rope.scaling.yarn_log_multiplier": 0.1}, YARN | {"rope.scaling.yarn_log_multiplier": 0.1},
    YARN | {"rope.scaling.yarn_ext_factor": 0.5}, {"use_parallel_residual": True}]
ALWAYS = 11
NAMES = list(CASES)[:list(CASES).index("attn-factor")]


def aborts(case, members):
    """Whether llama.cpp ends the process over it."""
    experts = any(word in case for word in ("mixtral", "moe", "gpt-oss"))
    return ("expert_used_count" in members and not experts) or (members.get("rope.dimension_count") and case[:3] not in ("phi", "glm"))


class Judge:
    def __init__(self, compare, folder):
        self.compare = Compare(compare)
        self.file, self.activations = folder / "model.gguf", folder / "golden.safetensors"

    def difference(self, file, tokens):
        """None if llama.cpp does not take the file; else 0 for "same", infinite for "refused", and a number; with the words."""
        try:
            with llama_cpp.Model(file) as model:
                logits = torch.from_numpy(model.logits(tokens))
        except ValueError as error:
            return None, str(error)
        save_file({"tokens": torch.tensor([tokens]), "logits": logits}, self.activations)
        answer = self.compare.ask(file, self.activations)
        words = answer.split(" ")
        return 0 if words[0] == "same" else float(words[-1]) if words[0] == "differs" else "refused", answer

    def wrong(self, case):
        architecture, model = build(case)
        tokens = torch.arange(TOKENS).mul(37).remainder(COMMON["vocab_size"]).tolist()
        for number, members in enumerate(EVERYWHERE):
            if aborts(case, members):
                continue
            # These llama.cpp does not read in any of the architectures; they count here, as in the model that a file was made from.
            unread = {"rope.scaling.yarn_beta_fast": None, "rope.scaling.yarn_beta_slow": None}
            gguf_files.write(self.file, architecture, model, Type.F32, members=unread | members)
            error, answer = self.difference(self.file, tokens)
            print(f"{case} {members}: {answer}")
            factors = case in ("llama", "phi4-mini")  # of each frequency, beside which no rule stands
            if error == "refused" and (number >= ALWAYS or (factors and "refused the metadata" in answer)):
                continue
            if error is not None and (error == "refused" or not error < (GELU if "gemma" in case else 1e-4)):
                yield f"{case} {members}: {answer}"


def main():
    torch.set_num_threads(1)
    wrong = []
    with tempfile.TemporaryDirectory(prefix="oscar-llama-cpp-") as folder:
        judge = Judge(sys.argv[1], Path(folder))
        for case in sys.argv[2:] or NAMES:
            wrong += judge.wrong(case)
        if REAL.exists():
            error, answer = judge.difference(REAL, [1, 4093, 198, *range(900, 1892, 16)])
            print(f"SmolLM2-135M: {answer}")
            wrong += [] if error is not None and error != "refused" and error < Q8 else [f"SmolLM2-135M: {answer}"]
        else:
            print(f"skipped: the real model, for there is no {REAL}; run scripts/real_model.sh")
    print("different:" if wrong else "all the same", *wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
