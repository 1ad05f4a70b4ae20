# SPDX-License-Identifier: MIT
"""Command lines that ask for what does not exist or does not fit together: exit 2, before anything is read or written."""
import shlex
import tomllib
from pathlib import Path

from harness import Fault

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
BEGINNINGS = {name: tuple(shlex.split(words)) for name, words in TABLE["beginnings"].items()}
NUMBERS = {"negative": "-1", "text": "many", "empty": "", "nan": "nan", "huge": "1e30", "overflow": "99999999999999999999", "half": "2.5"}


def words_of(line):
    """The words of a line of the table; {NAME} stands for a beginning."""
    return tuple(word for each in shlex.split(line) for word in BEGINNINGS.get(each.strip("{}"), (each,)))


def of_commands():
    for command, table in TABLE["commands"].items():
        args, inputs = BEGINNINGS[command.upper()], tuple(table["inputs"].split())
        for option in table["numbers"].split():
            for name, value in NUMBERS.items():
                if name in ("huge", "half") and option not in ("--max-tokens", "--sink"):
                    continue
                yield Fault(f"options/{command}{option[1:]}/{name}", (*args, f"{option}={value}"), inputs, exits=(2,),
                            says=f"error:[^$]*{option}", instead=(*args, f"{option}=64"))
        for option in shlex.split(table["values"]):
            without = tuple(word for word in args if not word.startswith(option.split("=")[0]))
            yield Fault(f"options/{command}{option[1:]}", (*without, option), inputs,
                        exits=(1, 2) if "99" in option else (2,), says="error:", instead=args)


def lines():
    inputs = ("dump", "set", "model", "tokens.npy", "text.txt", "needles.npy", "answers.npy", "model.gguf", "zoo")
    for name, args in ((name, words_of(line)) for name, line in TABLE["lines"].items()):
        yield Fault(f"options/line/{name}", args, ("zoo",) if args[0] in ("pull", "zoo") else inputs,
                    exits=(1, 2) if name == "config" else (2,), says="error:", control=False)


def config_files():
    for name, text in {
            "binary": bytes(range(256)), "unknown-key": b'[fit]\nbogus = 1\n', "unknown-section": b"[frob]\nx = 1\n",
            "type": b'[fit]\nsink = "many"\n', "cut": b"[fit\nsink = 1\n", "deep": b"x = " + b"[" * 10_000}.items():
        yield Fault(f"options/config/{name}", ("--config", "oscar.toml", *BEGINNINGS["FIT"], "--clip", "off"), ("dump",),
                    lambda place, t=text: (place / "oscar.toml").write_bytes(t), exits=(1, 2), control=False)


def faults():
    for group in (of_commands, lines, config_files):
        yield from group()
