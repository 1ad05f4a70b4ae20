# SPDX-License-Identifier: MIT
"""Figures of nothing, and verdicts that say more than was measured."""
import json

import torch

import edit
from harness import Fault

QUIET = ("--compare", "none", "--no-record")
ANY = (0, 1, 2, 3)


def not_accepted(folder, done):
    if "verdict: accepted" in done.text:
        return "the verdict is accepted"
    report = folder / "out.json"
    if report.exists() and json.loads(report.read_text()).get("verdict") == "accepted":
        return "the verdict in JSON is accepted"
    return None


def not_measured(folder, done):
    return not_accepted(folder, done) or (None if "verdict: not measured" in done.text else "the verdict is not not_measured")


def of_nothing():
    """Text that the windows hold whole: nothing is quantised."""
    cases = {
        "dump": ("--dump", "short"), "dump-limit": ("--dump", "short", "--max-output-error", "0.01"),
        "model": ("--model", "model", "--tokens", "tokens.npy", "--seq-len", "300", "--max-tokens", "600"),
        "model-kld": ("--model", "model", "--tokens", "tokens.npy", "--seq-len", "320", "--max-tokens", "640", "--max-kld",
                      "0.01"), "sink": ("--dump", "held", "--sink", "4096"),
        "recent": ("--dump", "held", "--recent", "100000"), "few": ("--dump", "held", "--max-tokens", "100"),
        "one-key": ("--dump", "held", "--recent", "535"), "one-layer": ("--dump", "short", "--layers", "1")
    }
    for name, more in cases.items():
        yield Fault(f"figures/nothing/{name}",
                    f"nothing, or next to nothing, is quantised: verify {' '.join(more)}",
                    ("verify", "set", *QUIET, *more, "--json", "out.json"), ("set", "short", "held", "model", "tokens.npy"),
                    None,
                    exits=ANY,
                    check=not_accepted)


def structure_only():
    for name in ("set", "rich", "pt1", "pt2", "pt3", "rich3"):
        yield Fault(f"figures/structure/{name}",
                    f"{name} is verified by its structure alone", ("verify", name, *QUIET), (name,),
                    None,
                    exits=(0,),
                    check=not_measured)
    yield Fault("figures/structure/publish",
                "a set that only its structure speaks for is published",
                ("publish", "fresh", "--zoo", "out", "--name", "me/m"), ("fresh",),
                None,
                says="error:",
                shell='"$1" verify fresh -q --compare none >/dev/null; exec "$@"',
                changes=("fresh/manifest.json",),
                control=False)
    yield Fault("figures/structure/fresh",
                "a set that was never verified is published", ("publish", "fresh", "--zoo", "out", "--name", "me/m"),
                ("fresh",),
                None,
                says="error:",
                control=False)


def rotation(make):
    def change(content):
        for layer in content["layers"].values():
            layer["rotation"] = make(layer["rotation"])
            layer.pop("eigenvalues", None)

    return lambda place: [edit.pt(place / "pt1" / name, change) for name in (edit.KEYS, edit.VALUES)]


def sets_of_nothing():
    random = torch.linalg.qr(torch.randn(128, 128, generator=torch.Generator().manual_seed(3)))[0]
    makes = {
        "identity": lambda matrix: torch.eye(128), "reversed": lambda matrix: torch.eye(128).flip(0),
        "zeros": lambda matrix: matrix * 0, "nan": lambda matrix: matrix * float("nan"),
        "scaled": lambda matrix: matrix * 1.01, "random": lambda matrix: random,
        "float16": lambda matrix: matrix.to(torch.float8_e4m3fn).float(),
        "singular": lambda matrix: matrix[:1].repeat(128, 1)
    }
    for name, make in makes.items():
        yield Fault(f"figures/set/{name}",
                    f"bare files hold matrices that are {name}", ("verify", "pt1", "--compare", "none"), ("pt1",),
                    rotation(make),
                    exits=(0, 1, 3) if name in ("random", "identity", "reversed") else (1, 3),
                    check=not_accepted)


def wrong_models():
    """The set stays as it was: it is not the set that is wrong."""
    against = ("verify", "set", "--compare", "none", "--model", "model", "--tokens", "tokens.npy", "--max-tokens", "800")
    inputs = ("set", "model", "tokens.npy")
    changes = {
        "rope": lambda place: edit.json_file(place / "model/config.json", lambda config: config.update(rope_theta=5e5)),
        "epsilon": lambda place: edit.json_file(place / "model/config.json", lambda config: config.update(
            rms_norm_eps=1e-3)), "layers": lambda place: edit.json_file(
                place / "model/config.json", lambda config: config.update(num_hidden_layers=3)), "heads": lambda place: edit.
        json_file(place / "model/config.json", lambda config: config.update(num_attention_heads=6))
    }
    for name, plant in changes.items():
        yield Fault(f"figures/model/{name}",
                    f"a set is verified against a model with another config: {name}",
                    against,
                    inputs,
                    plant,
                    exits=(1, 2, 3),
                    control=False)

    def foreign_dump(place):
        edit.json_file(place / "held/manifest.json", lambda manifest: edit.put(manifest, "model.config_sha256", "0" * 64))

    yield Fault("figures/model/dump",
                "a set is verified on a dump of another model", ("verify", "set", "--compare", "none", "--dump", "held"),
                ("set", "held"),
                foreign_dump,
                exits=(1, 2, 3),
                control=False)


def limits():
    for option in ("--max-kld", "--max-output-error", "--max-softmax-kl", "--max-ppl-increase"):
        for value in ("1e999", "nan", "-1", "inf", "abc", ""):
            yield Fault(f"figures/limit{option[1:]}/{value or 'empty'}",
                        f"verify {option} {value!r}", ("verify", "set", *QUIET, "--model", "model", "--tokens", "tokens.npy",
                                                       "--max-tokens", "800", f"{option}={value}"),
                        ("set", "model", "tokens.npy"),
                        None,
                        exits=(2,),
                        says=f"error:[^$]*{option}",
                        instead=("verify", "set", *QUIET, "--model", "model", "--tokens", "tokens.npy", "--max-tokens",
                                 "800", f"{option}=0.5"))
    for option, data in {
            "--max-kld": ("--model", "model", "--tokens", "tokens.npy", "--max-tokens", "800"),
            "--max-output-error": ("--dump", "held")
    }.items():
        yield Fault(f"figures/exceeded{option[1:]}",
                    f"a figure is above {option}", ("verify", "set", *QUIET, *data, option, "1e-9"),
                    ("set", "held", "model", "tokens.npy"),
                    None,
                    exits=(3,),
                    says="verdict: rejected",
                    control=False)
    yield Fault("figures/unmeasured-limit",
                "a limit is given for what nothing measures",
                ("verify", "set", *QUIET, "--dump", "held", "--max-kld", "0.01"), ("set", "held"),
                None,
                exits=(2,),
                says="error:",
                control=False)
    yield Fault("figures/same-text",
                "--require-held-out on the text that the set was fitted on",
                ("verify", "set", *QUIET, "--dump", "dump", "--recent", "64", "--require-held-out"), ("set", "dump"),
                None,
                exits=(3,),
                says="verdict: rejected",
                control=False)


def rejected(place):
    edit.json_file(place / "set/manifest.json", lambda manifest: edit.put(manifest, "verification.verdict", "rejected"))


def told_of_rejected():
    yield Fault("figures/rejected/inspect",
                "a rejected set is inspected", ("inspect", "set"), ("set",),
                rejected,
                exits=ANY,
                check=lambda _, done: None if "rejected" in done.text else "inspect does not say that it was rejected")
    yield Fault("figures/rejected/publish", "a rejected set is published",
                ("publish", "set", "--zoo", "out", "--name", "me/m"), ("set",), rejected)
    yield Fault(
        "figures/unknown/publish", "a set with a verdict that does not exist is published",
        ("publish", "set", "--zoo", "out", "--name", "me/m"), ("set",), lambda place: edit.json_file(
            place / "set/manifest.json", lambda manifest: edit.put(manifest, "verification.verdict", "excellent")))


def faults():
    for group in (of_nothing, structure_only, sets_of_nothing, wrong_models, limits, told_of_rejected):
        yield from group()
