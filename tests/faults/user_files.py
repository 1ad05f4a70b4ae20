# SPDX-License-Identifier: MIT
"""Outputs that would cost users their own files: inputs, folders, links, devices."""
import os
import stat

from harness import Fault

LIVE, DUMPED = ("model", "tokens.npy"), ("dump",)
OF_MODEL = ("--model", "model", "--tokens", "tokens.npy", "--sequences", "1", "--seq-len", "64")
HADAMARD = ("--recipe", "hadamard", "--clip", "off")
FIT, FIT_DUMP, DUMP = ("fit", *OF_MODEL, *HADAMARD), ("fit", "--dump", "dump", *HADAMARD), ("dump", *OF_MODEL)
INSPECT, VERIFY = ("inspect", "set"), ("verify", "set", "--compare", "none", "--no-record")
PULL = ("pull", "me/m", "--zoo", "zoo")


def refused(name, args, inputs, plant=None, target=None, instead=None):
    """target: the word of `args` without which the command does what it should; instead: what it does so with."""
    instead = instead or (target and "out" + os.path.splitext(target)[1])
    instead = tuple(instead if word == target else word for word in args) if target else ()
    return Fault(f"files/{name}", args, inputs, plant, exits=(1, 2), says="error:", control=False, instead=instead)


def wrote(path, text="mine\n"):
    return lambda place: (place / path).write_text(text)


def linked(path, target):
    return lambda place: (place / path).symlink_to(target)


def folders_with_force():
    """--force replaces what oscar wrote, and nothing else."""
    commands = {"fit": (FIT, LIVE), "fit-dump": (FIT_DUMP, DUMPED), "dump": (DUMP, LIVE),
                "convert": (("convert", "pt1"), ("pt1",)), "pull": (PULL, ("zoo",))}
    for command, (args, inputs) in commands.items():
        onto = lambda target: (*args, *(() if command == "convert" else ("--out",)), target, "--force")
        for name, target in {"own": "precious", "home": "home", "here": ".", "parent": "..", "deep": "precious/deep"}.items():
            yield refused(f"force/{command}/{name}", onto(target), inputs, wrote("home/.profile"), target)
        yield refused(f"force/{command}/link", onto("link"), inputs, linked("link", "precious"))
        yield refused(f"force/{command}/mixed", onto("mine"), (*inputs, "rich:mine"), wrote("mine/notes.txt"))
        yield refused(f"force/{command}/manifest", onto("precious"), inputs,
                      wrote("precious/manifest.json", '{"name": "my web app"}\n'))
    yield refused("force/fit/file", (*FIT, "--out", "precious/letter.txt", "--force"), LIVE)
    yield refused("force/set-onto-dump", (*FIT, "--out", "held", "--force"), (*LIVE, "held"))


def outputs_that_are_inputs():
    onto = lambda command, target: (*command, "--out", target, "--force")
    convert = lambda *words: ("convert", *words, "--force")
    save = lambda target, *of: ("fit", *of, "--save-stats", target, "--force")
    yield refused("input/fit-model", onto(FIT, "./model"), LIVE, target="./model")
    yield refused("input/fit-model-parent", onto(("fit", "--model", "home/model", *OF_MODEL[2:], "--clip", "off", "--recipe",
                                                  "hadamard"), "home"), ("model:home/model", "tokens.npy"))
    yield refused("input/fit-dump", onto(FIT_DUMP, "dump/"), DUMPED, target="dump/")
    yield refused("input/fit-dump-dot", onto(FIT_DUMP, "./precious/../dump/"), DUMPED)
    yield refused("input/fit-dump-link", onto(FIT_DUMP, "link"), DUMPED, linked("link", "dump"))
    yield refused("input/fit-inside-dump", onto(FIT_DUMP, "dump/layer_1"), DUMPED)
    yield refused("input/dump-model", onto(DUMP, "./model"), LIVE, target="./model")
    yield refused("input/tokens", onto(DUMP, "tokens.npy"), LIVE)
    for name in ("set", "./set", "set/../set"):
        yield refused(f"input/convert-{name.replace('/', '_')}", convert("set", name), ("set",),
                      target=name if name != "set" else None)
    yield refused("input/convert-file", convert("set.h5", "set.h5"), ("set.h5",))
    yield refused("input/convert-into", convert("set", "model.gguf", "--into", "model.gguf"), ("set", "model.gguf"))
    yield refused("input/convert-inside", ("convert", "set", "set/more.h5"), ("set",))
    yield refused("input/convert-part", convert("set", "set/rotations.h5"), ("set",))
    yield refused("input/pt-in-place", convert("pt1", "pt1"), ("pt1",))
    yield refused("input/stats-stats", save("stats", "--stats", "stats"), ("stats",))
    yield refused("input/stats-chunk", save("dump/layer_0/q/1.pt", "--dump", "dump", "--recipe", "oscar"), DUMPED,
                  target="dump/layer_0/q/1.pt")
    yield refused("input/stats-tokens", save("tokens.npy", *OF_MODEL, "--recipe", "oscar"), LIVE)
    yield refused("input/publish-inside", ("publish", "set", "--zoo", "set", "--name", "me/m"), ("set",))
    yield refused("input/pull-zoo", onto(PULL, "zoo"), ("zoo",))
    yield Fault("files/input/pull-published", onto(PULL, "zoo/me/m/latest"), ("zoo",), exits=(0, 1, 2),
                says="error:|already", control=False)


def reports_onto_inputs():
    verify = ("verify", "set", "--model", "model", "--tokens", "./tokens.npy", "--max-tokens", "600", "--compare", "none",
              "--no-record")
    for option in ("--json", "--report"):
        for name, target in {"manifest": "set/manifest.json", "matrix": "set/rotations.h5", "folder": "precious",
                             "model": "model/config.json", "tokens": "tokens.npy"}.items():
            yield refused(f"report/{option[2:]}-{name}", (*verify, option, target), ("set", *LIVE), target=target, instead="out")
    yield refused("report/inspect-set", (*INSPECT, "--json", "set/manifest.json"), ("set",), target="set/manifest.json")
    yield refused("report/inspect-file", ("inspect", "set.h5", "--json", "set.h5"), ("set.h5",))


def stays(kind):
    return lambda folder, _: None if kind((folder / "out-there").lstat().st_mode) else "what --json wrote to was replaced"


def written_or_kept(folder, done):
    text = (folder / "out-there").is_symlink() and (folder / "out-target").read_text()
    if done.status == 0:
        return None if text and text.startswith("{") else "the link was replaced, or its target not written"
    return None if text == "old\n" else "a file was lost"


def special_files():
    """Written into, not replaced; or refused."""
    either = {"exits": (0, 1, 2), "control": False}
    for name, args in {"inspect-json": (*INSPECT, "--json"), "verify-json": (*VERIFY, "--json"),
                       "verify-report": (*VERIFY, "--report")}.items():
        line = (*args, "out-there")
        if os.geteuid() == 0:
            yield Fault(f"files/special/{name}-device", line, ("set",), check=stays(stat.S_ISCHR), **either,
                        plant=lambda place: os.mknod(place / "out-there", stat.S_IFCHR | 0o666, os.makedev(1, 3)))
        yield Fault(f"files/special/{name}-fifo", line, ("set",), lambda place: os.mkfifo(place / "out-there"), **either,
                    check=stays(stat.S_ISFIFO),
                    shell='cat out-there >/dev/null & "$@"; status=$?; kill $! 2>/dev/null; exit $status')
        if "json" in name:
            yield Fault(f"files/special/{name}-link", line, ("set",), lambda place: [
                wrote("out-target", "old\n")(place), linked("out-there", "out-target")(place)], check=written_or_kept,
                        changes=("out-target",), overwrites=True, **either)
        yield refused(f"special/{name}-link-input", line, ("set",), linked("out-there", "set/manifest.json"))
    convert = lambda target: ("convert", "set", target, "--to", "h5", "--force")
    yield refused("special/convert-fifo", convert("pipe"), ("set",), lambda place: os.mkfifo(place / "pipe"))
    yield refused("special/convert-link", convert("link"), ("set",), linked("link", "precious/letter.txt"))


def led_out_of_the_zoo():
    publish = ("publish", "rich", "--zoo", "zoo", "--name", "me/m:new", "--force")

    def replaced(name, target="precious"):
        def plant(place):
            path = place / "zoo" / name
            if path.exists() or path.is_symlink():
                path.rename(place / "aside")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(place / target)
        return plant

    def own_files(place):
        (place / "zoo/me/m/new").mkdir()
        wrote("zoo/me/m/new/notes.txt")(place)

    def fifo(place):
        (place / "zoo/index.json").unlink()
        os.mkfifo(place / "zoo/index.json")

    for name, path in {"org-link": "me", "model-link": "me/m", "tag-link": "me/m/new", "lock-link": ".index.lock"}.items():
        target = "precious/new-file" if name == "lock-link" else "precious"
        yield refused(f"zoo/{name}", publish, ("rich", "zoo"), replaced(path, target))
    yield Fault("files/zoo/index-link", publish, ("rich", "zoo"), replaced("index.json", "aside"), exits=(0, 1, 2),
                changes=("zoo", "aside"), control=False,
                check=lambda folder, _: None if (folder / "zoo/index.json").is_symlink() else "the link was replaced")
    yield refused("zoo/index-fifo", publish, ("rich", "zoo"), fifo)
    yield refused("zoo/org-file", (*publish[:5], "you/m"), ("rich", "zoo"), wrote("zoo/you"))
    yield refused("zoo/tag-own-files", publish, ("rich", "zoo"), own_files)
    yield refused("zoo/own-folder", ("publish", "rich", "--zoo", "precious", "--name", "me/m"), ("rich",),
                  wrote("precious/index.json", '{"name": "my web app"}\n'))


def faults():
    for group in (folders_with_force, outputs_that_are_inputs, reports_onto_inputs, special_files, led_out_of_the_zoo):
        yield from group()
