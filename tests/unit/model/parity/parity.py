# SPDX-License-Identifier: MIT
"""parity.py COMPARE [BEGIN]: makes random checkpoints of the models of tiny_models.py, or of those whose names begin so, runs them
with Hugging Face transformers in fp32, and lets COMPARE (compare.cpp) run them and compare. Exit status 77 if transformers is not
installed."""
import math
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

import checkpoints
from tiny_models import COMMON, MODELS

transformers.logging.disable_progress_bar()
TOKENS = 272  # more than one block of queries and several chunks of the delta rule


class Compare:
    """COMPARE as a process that answers one line after the other."""

    def __init__(self, program, *options):
        self.process = subprocess.Popen([program, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, model, activations):
        self.process.stdin.write(f"{model} {activations}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def whole(self, name, model, activations, told=""):
        """Whether keys, queries, values and logits are the same, with the model's attention and with ours; prints it. told: a warning."""
        answer = self.ask(model, activations)
        print(f"{name}: {answer}", flush=True)
        found = re.match(r"same in (\d+) tensors", answer)
        return bool(found) and int(found[1]) >= 8 and told in answer


def build(name, **others):
    """others: members of the language model in place of those of tiny_models.py."""
    architecture, members = MODELS[name]
    members = members | ({"text_config": members["text_config"] | others} if "text_config" in members else others)
    model_class = getattr(transformers, architecture)
    config = model_class.config_class(**{**COMMON, **members})
    config._attn_implementation = "eager"
    torch.manual_seed(sum(name.encode()))
    return randomized(model_class(config))


def randomized(model):
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            randomize(name, tensor)
    return model.eval()


def randomize(name, tensor):
    """Values at which every part of a model matters; the library's own start is nearly linear."""
    if "inv_freq" in name or "embed_scale" in name or tensor.ndim == 0:
        return
    if tensor.ndim == 1:
        tensor.add_(torch.randn_like(tensor) * 0.3)
    else:
        tensor.copy_(torch.randn_like(tensor) / math.sqrt(tensor.shape[-1]))
    if "embed_tokens" in name:
        tensor.mul_(math.sqrt(tensor.shape[-1]))


def latent_rows(layer, q, k, v):
    """What the cache of latent attention holds, and queries as they meet it, from the rows of all heads (H, T, d)."""
    nope, latent = layer.qk_nope_head_dim, layer.latent
    reader = layer.kv_b_proj.weight.view(q.shape[0], -1, latent.shape[-1])[:, :nope]
    return {"q": torch.cat((q[..., :nope] @ reader, q[..., nope:]), -1),
            "k": torch.cat((latent, k[:1, :, nope:]), -1), "v": latent}


def capture(model, out):
    """Lets the model's own attention function report what it gets; queries carry what scores are scaled by."""
    module = sys.modules[type(model).__module__]
    original = module.eager_attention_forward
    for layer in model.modules():
        if hasattr(layer, "kv_a_layernorm"):
            layer.kv_a_layernorm.register_forward_hook(
                lambda _norm, _inputs, latent, layer=layer: setattr(layer, "latent", latent))

    def report(layer, query, key, value, *args, **members):
        rows = {"q": query[0], "k": key[0], "v": value[0]}
        if hasattr(layer, "kv_b_proj"):
            rows = latent_rows(layer, **rows)
        rows["q"] = rows["q"] * (members["scaling"] * math.sqrt(rows["q"].shape[-1]))
        for part, tensor in rows.items():
            out[f"layer_{layer.layer_idx}.{part}"] = tensor.transpose(0, 1).clone(memory_format=torch.contiguous_format)
        return original(layer, query, key, value, *args, **members)

    module.eager_attention_forward = report
    return original


def activations(model, tokens):
    """What attention gets for these tokens, and every 16th row of logits."""
    golden = {"tokens": tokens}
    original = capture(model, golden)
    try:
        with torch.no_grad():
            golden["logits"] = model(tokens, use_cache=False).logits[0, ::16]
    finally:
        sys.modules[type(model).__module__].eager_attention_forward = original
    return {name: tensor.contiguous() for name, tensor in golden.items()}


def same(name, compare):
    model = build(name)
    tokens = torch.randint(0, COMMON["vocab_size"], (1, TOKENS))
    with tempfile.TemporaryDirectory(prefix="oscar-parity-") as folder:
        model = checkpoints.publish(name, model, Path(folder))
        save_file(activations(model, tokens), f"{folder}/golden.safetensors")
        return compare.whole(name, folder, f"{folder}/golden.safetensors")


def main():
    torch.set_num_threads(1)
    compare = Compare(sys.argv[1], "--replace-attention")
    names = [name for name in MODELS if name.startswith(sys.argv[2] if len(sys.argv) > 2 else "")]
    return 0 if names and all([same(name, compare) for name in names]) else 1


if __name__ == "__main__":
    sys.exit(main())
