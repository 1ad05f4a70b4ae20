# SPDX-License-Identifier: MIT
"""Outputs that would cost users their own files: inputs, folders, links, devices."""
import os
import stat

from harness import Fault

FIT = ("fit", "--model", "model", "--tokens", "tokens.npy", "--sequences", "1", "--seq-len", "64", "--recipe", "hadamard",
       "--clip", "off")
FIT_DUMP = ("fit", "--dump", "dump", "--recipe", "hadamard", "--clip", "off")
DUMP = ("dump", "--model", "model", "--tokens", "tokens.npy", "--sequences", "1", "--seq-len", "64")
INSPECT = ("inspect", "set")
VERIFY = ("verify", "set", "--compare", "none", "--no-record")
LIVE = ("model", "tokens.npy")


def refused(name, what, args, inputs, plant=None, target=None):
    """target: the word of `args` without which the command does what it should."""
    instead = tuple("out" + os.path.splitext(target)[1] if word == target else word for word in args) if target else ()
    return Fault(f"files/{name}", what, args, inputs, plant, exits=(1, 2), says="error:", control=False, instead=instead)


def folders_with_force():
    """--force replaces what oscar wrote, and nothing else."""
    commands = {
        "fit": (FIT, LIVE), "fit-dump": (FIT_DUMP, ("dump",)), "dump": (DUMP, LIVE),
        "convert": (("convert", "pt1"), ("pt1",)), "pull": (("pull", "me/m", "--zoo", "zoo"), ("zoo",))
    }
    for command, (args, inputs) in commands.items():
        out = () if command == "convert" else ("--out",)
        for name, target in {"own": "precious", "home": "home", "here": ".", "parent": "..",
                             "deep": "precious/deep"}.items():
            yield refused(f"force/{command}/{name}", f"{command} --force onto {target}, which oscar did not write",
                          (*args, *out, target, "--force"), inputs, lambda place:
                          (place / "home/.profile").write_text("mine\n"), target)
        yield refused(f"force/{command}/link", f"{command} --force onto a link to a folder of the user's",
                      (*args, *out, "link", "--force"), inputs, lambda place: (place / "link").symlink_to("precious"))
        yield refused(f"force/{command}/mixed", f"{command} --force onto a set beside which the user keeps a file",
                      (*args, *out, "mine", "--force"), (*inputs, "rich:mine"), lambda place:
                      (place / "mine/notes.txt").write_text("mine\n"))
        yield refused(f"force/{command}/manifest", f"{command} --force onto a folder that has some manifest.json",
                      (*args, *out, "precious", "--force"), inputs, lambda place:
                      (place / "precious/manifest.json").write_text('{"name": "my web app"}\n'))
    yield refused("force/fit/file", "fit --force onto a file", (*FIT, "--out", "precious/letter.txt", "--force"), LIVE)
    yield refused("force/set-onto-dump", "fit --force onto a dump", (*FIT, "--out", "held", "--force"), (*LIVE, "held"))


def outputs_that_are_inputs():
    yield refused("input/fit-model",
                  "fit --model M --out M --force", (*FIT, "--out", "./model", "--force"),
                  LIVE,
                  target="./model")
    yield refused("input/fit-model-parent", "fit --out the model's parent",
                  ("fit", "--model", "home/model", "--tokens", "tokens.npy", "--sequences", "1", "--seq-len", "64", "--clip",
                   "off", "--recipe", "hadamard", "--out", "home", "--force"), ("model:home/model", "tokens.npy"))
    yield refused("input/fit-dump",
                  "fit --dump D --out D --force", (*FIT_DUMP, "--out", "dump/", "--force"), ("dump",),
                  target="dump/")
    yield refused("input/fit-dump-dot", "the same by another name", (*FIT_DUMP, "--out", "./precious/../dump/", "--force"),
                  ("dump",))
    yield refused("input/fit-dump-link", "the same by a link", (*FIT_DUMP, "--out", "link", "--force"), ("dump",),
                  lambda place: (place / "link").symlink_to("dump"))
    yield refused("input/fit-inside-dump", "fit --out inside the dump", (*FIT_DUMP, "--out", "dump/layer_1", "--force"),
                  ("dump",))
    yield refused("input/dump-model",
                  "dump --model M --out M --force", (*DUMP, "--out", "./model", "--force"),
                  LIVE,
                  target="./model")
    yield refused("input/tokens", "dump --out onto the tokens", (*DUMP, "--out", "tokens.npy", "--force"), LIVE)
    for name in ("set", "./set", "set/../set"):
        yield refused(f"input/convert-{name.replace('/', '_')}",
                      f"convert set {name} --force", ("convert", "set", name, "--force"), ("set",),
                      target=name if name != "set" else None)
    yield refused("input/convert-file", "convert onto the file itself", ("convert", "set.h5", "set.h5", "--force"),
                  ("set.h5",))
    yield refused("input/convert-into", "convert onto the model it goes into",
                  ("convert", "set", "model.gguf", "--into", "model.gguf", "--force"), ("set", "model.gguf"))
    yield refused("input/convert-inside", "convert into a folder of IN", ("convert", "set", "set/more.h5"), ("set",))
    yield refused("input/convert-part", "convert onto a file of IN", ("convert", "set", "set/rotations.h5", "--force"),
                  ("set",))
    yield refused("input/pt-in-place", "convert bare files onto their folder", ("convert", "pt1", "pt1", "--force"),
                  ("pt1",))
    yield refused("input/stats-stats", "fit --stats S --save-stats S",
                  ("fit", "--stats", "stats", "--save-stats", "stats", "--force"), ("stats",))
    yield refused("input/stats-chunk",
                  "--save-stats onto a chunk of the dump",
                  ("fit", "--dump", "dump", "--recipe", "oscar", "--save-stats", "dump/layer_0/q/1.pt", "--force"),
                  ("dump",),
                  target="dump/layer_0/q/1.pt")
    yield refused("input/stats-tokens", "--save-stats onto the tokens",
                  ("fit", "--model", "model", "--tokens", "tokens.npy", "--sequences", "1", "--seq-len", "64", "--recipe",
                   "oscar", "--save-stats", "tokens.npy", "--force"), LIVE)
    yield refused("input/publish-inside", "publish into a zoo inside the set",
                  ("publish", "set", "--zoo", "set", "--name", "me/m"), ("set",))
    yield refused("input/pull-zoo", "pull --out onto the zoo", ("pull", "me/m", "--zoo", "zoo", "--out", "zoo", "--force"),
                  ("zoo",))
    yield Fault("files/input/pull-published",
                "pull --out onto the zoo's own copy",
                ("pull", "me/m", "--zoo", "zoo", "--out", "zoo/me/m/latest", "--force"), ("zoo",),
                None,
                exits=(0, 1, 2),
                says="error:|already",
                control=False)


def reports_onto_inputs():
    for option in ("--json", "--report"):
        for name, target in {
                "manifest": "set/manifest.json", "matrix": "set/rotations.h5", "folder": "precious",
                "model": "model/config.json", "tokens": "tokens.npy"
        }.items():
            yield refused(f"report/{option[2:]}-{name}",
                          f"verify {option} {target}",
                          ("verify", "set", "--model", "model", "--tokens", "./tokens.npy", "--max-tokens", "600",
                           "--compare", "none", "--no-record", option, target), ("set", *LIVE),
                          target=target)
    yield refused("report/inspect-set",
                  "inspect --json onto what it reads", (*INSPECT, "--json", "set/manifest.json"), ("set",),
                  target="set/manifest.json")
    yield refused("report/inspect-file", "inspect FILE --json FILE", ("inspect", "set.h5", "--json", "set.h5"), ("set.h5",))


def stays(kind):
    def check(folder, _):
        mode = (folder / "out-there").lstat().st_mode
        return None if kind(mode) else "what --json wrote to was replaced by a file"

    return check


def device(place):
    os.mknod(place / "out-there", stat.S_IFCHR | 0o666, os.makedev(1, 3))  # as /dev/null


def link_to(target):
    return lambda place: (place / "out-there").symlink_to(target)


def target_written(folder, _):
    written = (folder / "out-there").is_symlink() and (folder / "out-target").read_text()
    return None if written and written.startswith("{") else "the link was replaced, or its target not written"


def special_files():
    """Written into, not replaced; or refused."""
    commands = {
        "inspect-json": (*INSPECT, "--json"), "verify-json": (*VERIFY, "--json"), "verify-report": (*VERIFY, "--report")
    }
    for name, args in commands.items():
        if os.geteuid() == 0:
            yield Fault(f"files/special/{name}-device",
                        f"{name} onto a device", (*args, "out-there"), ("set",),
                        device,
                        exits=(0, 1, 2),
                        check=stays(stat.S_ISCHR),
                        control=False)
        yield Fault(f"files/special/{name}-fifo",
                    f"{name} onto a FIFO that somebody reads", (*args, "out-there"), ("set",),
                    lambda place: os.mkfifo(place / "out-there"),
                    exits=(0, 1, 2),
                    check=stays(stat.S_ISFIFO),
                    control=False,
                    shell='cat out-there >/dev/null & "$@"; status=$?; kill $! 2>/dev/null; exit $status')
        if "json" in name:
            yield Fault(f"files/special/{name}-link",
                        f"{name} onto a link to a file", (*args, "out-there"), ("set",),
                        lambda place: [(place / "out-target").write_text("old\n"),
                                       link_to("out-target")(place)],
                        check=written_or_kept,
                        exits=(0, 1, 2),
                        control=False,
                        changes=("out-target",),
                        overwrites=True)
        yield refused(f"special/{name}-link-input", f"{name} onto a link to an input", (*args, "out-there"), ("set",),
                      link_to("set/manifest.json"))
    yield refused("special/convert-fifo", "convert onto a FIFO", ("convert", "set", "pipe", "--to", "h5", "--force"),
                  ("set",), lambda place: os.mkfifo(place / "pipe"))
    yield refused("special/convert-link", "convert onto a link to the user's file",
                  ("convert", "set", "link", "--to", "h5", "--force"), ("set",), lambda place:
                  (place / "link").symlink_to("precious/letter.txt"))


def written_or_kept(folder, done):
    if done.status == 0:
        return target_written(folder, done)
    return None if (folder / "out-there").is_symlink() and (folder /
                                                            "out-target").read_text() == "old\n" else "a file was lost"


def led_out_of_the_zoo():
    publish = ("publish", "rich", "--zoo", "zoo", "--name", "me/m:new", "--force")

    def link(name, target="../../precious"):
        def plant(place):
            path = place / "zoo" / name
            if path.is_dir():
                path.rename(place / "aside")
            elif path.exists():
                path.rename(place / "aside")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(place / "precious" if target is not None else place / "aside")

        return plant

    yield refused("zoo/org-link", "the zoo's ORG is a link that leads out", publish, ("rich", "zoo"), link("me"))
    yield refused("zoo/model-link", "the zoo's ORG/MODEL is a link that leads out", publish, ("rich", "zoo"), link("me/m"))
    yield refused("zoo/tag-link", "the zoo's ORG/MODEL/TAG is a link that leads out", publish, ("rich", "zoo"),
                  link("me/m/new"))
    stays_link = {
        "exits": (0, 1, 2), "changes": ("zoo", "aside"), "control": False, "check": lambda folder, _: None
        if (folder / "zoo/index.json").is_symlink() else "the link was replaced"
    }
    yield Fault("files/zoo/index-link", "index.json is a link", publish, ("rich", "zoo"), link("index.json", None),
                **stays_link)
    yield refused("zoo/index-fifo", "index.json is a FIFO", publish, ("rich", "zoo"),
                  lambda place: [(place / "zoo/index.json").unlink(),
                                 os.mkfifo(place / "zoo/index.json")])
    yield refused("zoo/org-file", "the zoo's ORG is a file", ("publish", "rich", "--zoo", "zoo", "--name", "you/m"),
                  ("rich", "zoo"), lambda place: (place / "zoo/you").write_text("mine\n"))
    yield refused("zoo/tag-own-files", "the zoo's ORG/MODEL/TAG holds files of the user", publish, ("rich", "zoo"),
                  lambda place: [(place / "zoo/me/m/new").mkdir(), (place / "zoo/me/m/new/notes.txt").write_text("mine\n")])
    yield refused("zoo/own-folder", "the zoo is a folder of the user's with an index.json of a web app",
                  ("publish", "rich", "--zoo", "precious", "--name", "me/m"), ("rich",), lambda place:
                  (place / "precious/index.json").write_text('{"name": "my web app"}\n'))
    yield refused(
        "zoo/lock-link", "the zoo's lock is a link to the user's file",
        publish, ("rich", "zoo"), lambda place: [(place / "zoo/.index.lock").unlink(missing_ok=True),
                                                 (place / "zoo/.index.lock").symlink_to(place / "precious/new-file")])


def faults():
    for group in (folders_with_force, outputs_that_are_inputs, reports_onto_inputs, special_files, led_out_of_the_zoo):
        yield from group()
