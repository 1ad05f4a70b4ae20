# SPDX-License-Identifier: MIT
"""Figures of nothing, and verdicts that say more than was measured."""
import json

import torch

import edit
from harness import Fault, table

QUIET = ("--compare", "none", "--no-record")
ANY = (0, 1, 2, 3)
LIVE = ("--model", "model", "--tokens", "tokens.npy", "--max-tokens", "800")
PUBLISH = ("publish", "{set}", "--zoo", "out", "--name", "me/m")


def not_accepted(folder, done):
    if "verdict: accepted" in done.text:
        return "the verdict is accepted"
    report = folder / "out.json"
    if report.exists() and json.loads(report.read_text()).get("verdict") == "accepted":
        return "the verdict in JSON is accepted"
    return None


def not_measured(folder, done):
    return not_accepted(folder, done) or (None if "verdict: not measured" in done.text else "the verdict is not not_measured")


def published(name):
    return tuple(name if word == "{set}" else word for word in PUBLISH)


def of_nothing():
    """Text that the windows hold whole: nothing, or next to nothing, is quantised."""
    model = ("--model", "model", "--tokens", "tokens.npy")
    for name, more in {
            "dump": ("--dump", "short"), "dump-limit": ("--dump", "short", "--max-output-error", "0.01"),
            "model": (*model, "--seq-len", "300", "--max-tokens", "600"),
            "model-kld": (*model, "--seq-len", "320", "--max-tokens", "640", "--max-kld", "0.01"),
            "sink": ("--dump", "held", "--sink", "4096"), "recent": ("--dump", "held", "--recent", "100000"),
            "few": ("--dump", "held", "--max-tokens", "100"), "one-key": ("--dump", "held", "--recent", "535"),
            "one-layer": ("--dump", "short", "--layers", "1")}.items():
        yield Fault(f"figures/nothing/{name}", ("verify", "set", *QUIET, *more, "--json", "out.json"),
                    ("set", "short", "held", "model", "tokens.npy"), exits=ANY, check=not_accepted)


def structure_only():
    for name in ("set", "rich", "pt1", "pt2", "pt3", "rich3"):
        yield Fault(f"figures/structure/{name}", ("verify", name, *QUIET), (name,), exits=(0,), check=not_measured)
    yield Fault("figures/structure/publish", published("fresh"), ("fresh",), says="error:", control=False,
                shell='"$1" verify fresh -q --compare none >/dev/null; exec "$@"', changes=("fresh/manifest.json",))
    yield Fault("figures/structure/fresh", published("fresh"), ("fresh",), says="error:", control=False)


def rotation(make):
    def change(content):
        for layer in content["layers"].values():
            layer["rotation"] = make(layer["rotation"])
            layer.pop("eigenvalues", None)

    return lambda place: [edit.pt(place / "pt1" / name, change) for name in (edit.KEYS, edit.VALUES)]


def sets_of_nothing():
    random = torch.linalg.qr(torch.randn(128, 128, generator=torch.Generator().manual_seed(3)))[0]
    sound = {"identity": lambda matrix: torch.eye(128), "reversed": lambda matrix: torch.eye(128).flip(0),
             "random": lambda matrix: random}
    unsound = {"zeros": lambda matrix: matrix * 0, "nan": lambda matrix: matrix * float("nan"),
               "scaled": lambda matrix: matrix * 1.01, "float16": lambda matrix: matrix.to(torch.float8_e4m3fn).float(),
               "singular": lambda matrix: matrix[:1].repeat(128, 1)}
    for makes, exits in ((sound, (0, 1, 3)), (unsound, (1, 3))):
        yield from table("figures/set", ("verify", "pt1", "--compare", "none"), ("pt1",),
                         {name: rotation(make) for name, make in makes.items()}, exits=exits, check=not_accepted)


def wrong_models():
    """The set's transforms stay as they were: it is not they that are wrong."""
    def config(**values):
        return lambda place: edit.json_file(place / "model/config.json", lambda document: document.update(values))

    changes = {"rope": config(rope_theta=5e5), "epsilon": config(rms_norm_eps=1e-3), "layers": config(num_hidden_layers=3),
               "heads": config(num_attention_heads=6)}
    changes |= {f"told-{name}": lambda place, name=name, value=value: edit.json_file(
        place / "set/manifest.json", lambda manifest: edit.put(manifest, f"model.{name}", value))
                for name, value in (("num_attention_heads", 6), ("rope_theta", 1.0))}
    more = {"exits": (1, 2, 3), "control": False}
    yield from table("figures/model", ("verify", "set", "--compare", "none", *LIVE), ("set", "model", "tokens.npy"), changes, **more)
    yield Fault("figures/model/dump", ("verify", "set", "--compare", "none", "--dump", "held"), ("set", "held"),
                lambda place: edit.json_file(place / "held/manifest.json", lambda manifest: edit.put(
                    manifest, "model.config_sha256", "0" * 64)), **more)


def limits():
    verify = ("verify", "set", *QUIET)
    inputs = ("set", "model", "tokens.npy")
    for option in ("--max-kld", "--max-output-error", "--max-softmax-kl", "--max-ppl-increase"):
        for value in ("1e999", "nan", "-1", "inf", "abc", ""):
            yield Fault(f"figures/limit{option[1:]}/{value or 'empty'}", (*verify, *LIVE, f"{option}={value}"), inputs, exits=(2,),
                        says=f"error:[^$]*{option}", instead=(*verify, *LIVE, f"{option}=0.5"))
    for option, data in {"--max-kld": LIVE, "--max-output-error": ("--dump", "held")}.items():
        yield Fault(f"figures/exceeded{option[1:]}", (*verify, *data, option, "1e-9"), ("set", "held", "model", "tokens.npy"),
                    exits=(3,), says="verdict: rejected", control=False)
    yield Fault("figures/unmeasured-limit", (*verify, "--dump", "held", "--max-kld", "0.01"), ("set", "held"), exits=(2,),
                says="error:", control=False)
    yield Fault("figures/same-text", (*verify, "--dump", "dump", "--recent", "64", "--require-held-out"), ("set", "dump"),
                exits=(3,), says="verdict: rejected", control=False)


def told_of_rejected():
    def verdict(word):
        def change(manifest):
            for said in (manifest["verification"], *manifest["verification"]["readers"].values()):
                said["verdict"] = word
        return lambda place: edit.json_file(place / "set/manifest.json", change)

    yield Fault("figures/rejected/inspect", ("inspect", "set"), ("set",), verdict("rejected"), exits=ANY,
                check=lambda _, done: None if "rejected" in done.text else "inspect does not say that it was rejected")
    yield Fault("figures/rejected/publish", published("set"), ("set",), verdict("rejected"))
    yield Fault("figures/unknown/publish", published("set"), ("set",), verdict("excellent"))


def faults():
    for group in (of_nothing, structure_only, sets_of_nothing, wrong_models, limits, told_of_rejected):
        yield from group()
