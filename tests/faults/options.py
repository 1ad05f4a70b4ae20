# SPDX-License-Identifier: MIT
"""Command lines that ask for what does not exist or does not fit together: exit 2, before anything is read or written."""
from harness import Fault

DUMP = ("dump", "--model", "model", "--tokens", "tokens.npy", "--layers=0", "--out", "out")
FIT = ("fit", "--dump", "dump", "--recipe=oscar", "--out", "out")
VERIFY = ("verify", "set", "--no-record", "--compare=none", "--dump", "held")
PULL, PUBLISH = ("pull", "me/m", "--zoo", "zoo"), ("publish", "set", "--zoo", "out", "--name")
NUMBERS = {"negative": "-1", "text": "many", "empty": "", "nan": "nan", "huge": "1e30", "overflow": "99999999999999999999",
           "half": "2.5"}
COMMANDS = {  # line, inputs, options that take a number, values that are none of an option's
    "dump": (DUMP, ("model", "tokens.npy"), ("--max-tokens", "--seq-len", "--sequences"), (
        "--dtype=int8", "--format=zip", "--layers=0,0-99", "--model-dtype=float64", "--device=cuda:x")),
    "fit": (FIT, ("dump", "set"), ("--sink", "--recent", "--group-size", "--threads"), (
        "--clip=1.5,0.9", "--clip=-0.5,0.9", "--clip=nan,0.9", "--clip=0.9", "--clip=0.9,0.9,0.9", "--clip=on",
        "--recipe=best", "--recipe=$(touch pwned)", "--for=ollama", "--composition=h_h", "--codec=zip",
        "--key-objective=vtv", "--granularity=token", "--clip-granularity=token", "--scale-dtype=int8", "--group-size=7",
        "--layers=3-0", "--layers=a", "--layers=-1", "--layers=99", "--layers=", "--format=zip", "--format=safetensors",
        "--stretch-power=nan", "--stretch-lambda=-1", "--stretch-lambda=inf", "--device=gpu", "--device=cuda:-1")),
    "verify": (VERIFY, ("set", "held"), ("--max-queries",), (
        "--compare=nothing", "--compare=naive,nothing", "--windows=mine", "--precision=fp8", "--layers=99", "--sink=-1",
        "--max-needles=-1")),
}
LINES = {
    "fit-nothing": ("fit", "--out", "out"),
    "fit-two": ("fit", "--dump", "dump", "--model", "model", "--out", "out"),
    "fit-no-out": ("fit", "--dump", "dump"),
    "fit-unknown": (*FIT, "--bogus"),
    "fit-twice": (*FIT, "--recipe", "oscar"),
    "fit-target": (*FIT, "--for", "llamacpp", "--center"),
    "fit-tokens": (*FIT, "--tokens", "tokens.npy"),
    "fit-text": (*FIT, "--text", "text.txt"),
    "fit-seed": (*FIT, "--clip=off", "--seed=5"),
    "fit-format": ("fit", "--dump", "dump", "--recipe=coded", "--for=vllm", "--format=pt", "--out", "out"),
    "dump-both": (*DUMP, "--text", "text.txt"),
    "dump-no-out": ("dump", "--model", "model"),
    "verify-none": ("verify",),
    "verify-two": ("verify", "set", "set"),
    "verify-needle": (*VERIFY, "--model", "model", "--tokens", "tokens.npy", "--needle", "needles.npy"),
    "verify-answers": (*VERIFY, "--needle-answers", "answers.npy"),
    "verify-one-file": (*VERIFY, "--report", "page", "--json", "page"),
    "verify-in-folder": (*VERIFY, "--report", "page", "--json", "page/json"),
    "convert-none": ("convert", "set"),
    "convert-into": ("convert", "set", "out.h5", "--into", "model.gguf"),
    "convert-version": ("convert", "set", "out", "--to", "pt", "--pt-version", "9"),
    "convert-to": ("convert", "set", "out", "--to", "docx"),
    "publish-name": (*PUBLISH, "../../x"),
    "publish-name-dots": (*PUBLISH, "a/.."),
    "publish-tag": (*PUBLISH, "a/b:../c"),
    "publish-command": (*PUBLISH, "a/$(touch pwned)"),
    "publish-empty": (*PUBLISH, ""),
    "pull-name": ("pull", "../../etc/passwd", "--zoo", "zoo"),
    "pull-scheme": ("pull", "a/b", "--zoo", "gopher://x/"),
    "pull-both": ("pull", "a/b", "--offline", "--refresh"),
    "pull-size": (*PULL, "--max-size", "-5"),
    "pull-size-text": (*PULL, "--max-size", "lots"),
    "pull-timeout": (*PULL, "--timeout", "nan"),
    "zoo-nothing": ("zoo",),
    "zoo-unknown": ("zoo", "burn"),
    "unknown": ("frobnicate",),
    "escape": ("\x1b[31mred",),
    "config": ("--config", "nowhere.toml", "inspect", "set"),
    "config-device": ("--config", "/dev/zero", "inspect", "set"),
    "serve-check-needles": ("serve-check", "set", "--url", "http://127.0.0.1:1", "--model", "model", "--text", "text.txt", "--needles=2147483647"),
    "serve-check-url": ("serve-check", "set", "--url", "ftp://x", "--model", "model"),
    "serve-env-nothing": ("serve-env",),
}


def of_commands():
    for command, (args, inputs, numbers, values) in COMMANDS.items():
        for option in numbers:
            for name, value in NUMBERS.items():
                if name in ("huge", "half") and option not in ("--max-tokens", "--sink"):
                    continue
                yield Fault(f"options/{command}{option[1:]}/{name}", (*args, f"{option}={value}"), inputs, exits=(2,),
                            says=f"error:[^$]*{option}", instead=(*args, f"{option}=64"))
        for option in values:
            without = tuple(word for word in args if not word.startswith(option.split("=")[0]))
            yield Fault(f"options/{command}{option[1:]}", (*without, option), inputs,
                        exits=(1, 2) if "99" in option else (2,), says="error:", instead=args)


def lines():
    inputs = ("dump", "set", "model", "tokens.npy", "text.txt", "needles.npy", "answers.npy", "model.gguf", "zoo")
    for name, args in LINES.items():
        yield Fault(f"options/line/{name}", args, ("zoo",) if args[0] in ("pull", "zoo") else inputs,
                    exits=(1, 2) if name == "config" else (2,), says="error:", control=False)


def config_files():
    for name, text in {
            "binary": bytes(range(256)), "unknown-key": b'[fit]\nbogus = 1\n', "unknown-section": b"[frob]\nx = 1\n",
            "type": b'[fit]\nsink = "many"\n', "cut": b"[fit\nsink = 1\n", "deep": b"x = " + b"[" * 10_000}.items():
        yield Fault(f"options/config/{name}", ("--config", "oscar.toml", *FIT, "--clip", "off"), ("dump",),
                    lambda place, t=text: (place / "oscar.toml").write_bytes(t), exits=(1, 2), control=False)


def faults():
    for group in (of_commands, lines, config_files):
        yield from group()
