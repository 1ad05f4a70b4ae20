# SPDX-License-Identifier: MIT
"""members_test.py COMPARE [FAMILY …] [--each]: no member of a config.json changes a model in silence. For every family, as its
class in transformers reads the file and COMPARE (compare.cpp) does: as the class writes it, and with each member at another value
than the class's. They agree, or COMPARE refuses and names the member. Members are tried some at a time; alone where those do not
agree, or all with --each. Published files are read with one warning at most. README's table
calls none refused that was accepted, and none read that was always refused. Exit status 77 without transformers."""
import itertools
import json
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[4] / "scripts"))
import class_members  # which ends the test without transformers
import torch
import transformers
from safetensors.torch import save_file
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

import parity
from class_members import OUTER
from tiny_models import SEEING

TOKENS, TOGETHER = 40, 12
TABLE = class_members.table()
README = (Path(__file__).parents[4] / "apps/oscar/README.md").read_text(encoding="utf-8")
# Tried are, in every family: "everywhere", whether its class has the member or not, and "together"; "own" where its class has it; and
# what "in_family" has for it.
# "needed" makes a family run here, or more of it matter. "layer_types" are repeated for all layers.
TRIED = json.loads(Path(__file__).with_name("members.json").read_text(encoding="utf-8"))


class Family:
    def __init__(self, name):
        self.name, self.members = name, TABLE["members"][name]
        known = [key for key in TRIED["sizes"] if key in self.members and (key != "head_dim" or self.members[key])]
        self.sizes = {key: TRIED["sizes"][key] for key in known} | TRIED["needed"].get(name, {})

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
        model = parity.randomized(kind(config))
        model.save_pretrained(folder)
        golden = parity.activations(model, torch.arange(TOKENS).mul(37).remainder(160).view(1, -1))
        if not all(torch.isfinite(tensor).all() for tensor in golden.values()):
            raise ValueError("not finite")
        save_file(golden, folder / "golden.safetensors")

    def others(self):
        """Members that differ from the class's, some of which the class may not know."""
        for name, default in self.members.items():
            values = [not default] if isinstance(default, bool) else [default * 2] if isinstance(default, float) else \
                [max(2, default // 2)] if isinstance(default, int) and name not in self.sizes else []
            values += ["another"] if isinstance(default, str) else []
            yield from ({name: value} for value in values + TRIED["own"].get(name, []))
        for members in TRIED["everywhere"] + TRIED["together"] + TRIED["in_family"].get(self.name, []):
            layers = self.sizes["num_hidden_layers"]
            yield members | {name: (types * layers)[:layers] for name, types in members.items() if name == "layer_types"}


class Judge:
    def __init__(self, program, root):
        self.compare = parity.Compare(program)
        self.folder, self.wrong, self.counts = Path(root), [], Counter()

    def read(self, document):
        (self.folder / "config.json").write_text(json.dumps(document))
        return self.compare.ask(self.folder, "-")

    def run(self, family, members):
        """Nothing: transformers does not know such a model."""
        try:
            family.publish(family.sizes | members, self.folder)
        except Exception:  # in many ways
            return ""
        if members:
            self.read(family.document(family.sizes | members))
        return self.compare.ask(self.folder, self.folder / "golden.safetensors")

    def refuses(self, family, members):
        """Why the file alone is refused, which must name a member of the class; nothing: it is not."""
        answer = self.read(family.document(family.sizes | members))
        refused = answer.startswith("refused")
        self.counts["refused"] += refused
        if refused and not any(name in answer for name in [*members, *family.members, "RoPE", "layer type"]):
            self.wrong.append(f"{family.name} {members}: {answer}")
        return answer if refused else ""

    def judge(self, family, together):
        """members of several cases, as one; where that is not the same, of half of them"""
        answer = self.run(family, {name: value for members in together for name, value in members.items()})
        self.counts[answer.split(" ")[0]] += len(together) if answer.startswith("same") or len(together) == 1 else 0
        if not answer.startswith("same") and len(together) > 1:
            self.judge(family, together[::2])
            self.judge(family, together[1::2])
        elif answer and not answer.startswith("same"):
            self.wrong.append(f"{family.name} {together[0]}: {answer}")


def groups(cases, size):
    """Some cases at a time, whose members differ in name, and one of rope."""
    by_name = {}
    for members in cases:
        name = next(iter(members))
        by_name.setdefault("rope" if "rope" in name or len(members) > 1 else name, []).append(members)
    for row in itertools.zip_longest(*by_name.values()):
        row = [members for members in row if members]
        yield from (row[start:start + size] for start in range(0, len(row), size))


def told_otherwise(family, accepted, refusals):
    """Members that README's row calls refused, although another value than the class's was accepted, or read, although each was refused."""
    row = re.search(rf"^\| `{family.name}` \| (.*) \| (.*) \|$", README, re.MULTILINE)
    if not row:
        return [f"README: no row of {family.name}"]
    read, refused = (set(re.findall(r"`(\w+)`", column)) for column in row.groups())
    taken = {key for members in accepted for key, value in members.items() if value != family.members.get(key)}
    unread = {name for refusal in refusals for name in re.findall(r'^refused "(\w+)": .* in this model', refusal)}
    return [f"README: {family.name} accepts {key}" for key in refused & taken] + [
        f"README: {family.name} refuses {key}" for key in read & unread - taken]


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity(50)
    wanted = [name for name in sys.argv[2:] if name != "--each"] or list(TABLE["members"])
    with tempfile.TemporaryDirectory(prefix="oscar-members-") as root:
        judge = Judge(sys.argv[1], root)
        judge.wrong += class_members.differences()
        for name in wanted:
            family = Family(name)
            answer = judge.run(family, {})
            if not answer.startswith("same") or "warning:" in answer:  # as the class writes it, without a warning
                judge.wrong.append(f"{name}: {answer or 'transformers makes no such model'}")
            answers = [(members, judge.refuses(family, members)) for members in family.others()]
            accepted = [members for members, refusal in answers if not refusal]
            judge.wrong += told_otherwise(family, accepted, [refusal for _, refusal in answers])
            for together in groups(accepted, 1 if "--each" in sys.argv else TOGETHER):
                judge.judge(family, together)
        for name, document in json.loads(Path(__file__).with_name("published_configs.json").read_text()).items():
            answer = judge.read(document)
            if not answer.startswith("read") or answer.count("warning:") > 1:
                judge.wrong.append(f"{name}, as published: {answer}")
    print(*judge.wrong, dict(judge.counts), sep="\n")
    return 1 if judge.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
