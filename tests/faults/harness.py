# SPDX-License-Identifier: MIT
"""What a fault is, how one is planted and run, and when it counts as refused.

A fault counts as refused only if oscar ends with one of the expected exit statuses and says what, where or what to do; if
nothing that was there has changed, nothing was made outside the outputs (out*), nothing planted was executed, and no
control character of a stranger's text reached the terminal."""
import contextlib
import hashlib
import os
import re
import shutil
import stat
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

REFUSED, ACCEPTED, CRASHED, HUNG, MISPLANTED = "refused", "accepted", "crashed", "hung", "misplanted"
OUTCOMES = (REFUSED, ACCEPTED, CRASHED, HUNG, MISPLANTED)
TIME_LIMIT = 20
MARK = "pwned"  # what a planted command touches, in whatever folder it runs
BROKEN = re.compile(r"bug in oscar|terminate called|AddressSanitizer|runtime error:|Traceback")
# Messages of libraries: whoever reads one learns nothing.
RAW = re.compile(r"json\.exception|HDF5-DIAG|\bH5[A-Z]+[a-z_]+\(|c10::|\bat::|std::|\[enforce fail|PytorchStreamReader|CLI::")
# ESC and its kin, C1 controls, marks that change the direction of writing, separators of lines.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
PLAIN_NAME = re.compile(r"[A-Za-z0-9._-]+")
LOCKS = (".index.lock", ".lock")  # empty files that a zoo and a cache keep


@dataclass
class Done:
    status: int
    stdout: bytes
    stderr: bytes
    seconds: float

    @property
    def text(self):
        return (self.stdout + self.stderr).decode("utf-8", "replace")


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong, and the command that must not fall for it.

    id        says class, place and what is wrong there
    args      of oscar, which runs in the fault's folder; {url} is the server's address
    inputs    prepared inputs (inputs.py) that are copied there; "name:as" renames
    plant     changes the copies; None: the command itself is the fault
    exits     the exit statuses of a refusal; 0 is one only where a harmless result is an answer, too
    says      a pattern that must be found in what oscar says; needed where there is no plant
    serve     folder -> context manager that gives {url}
    shell     runs "$@" in its own way, for limits and closed outputs; oscar's answer is then its
    check     folder, done -> what is wrong with a harmless result, or None
    changes   files and folders that may change, other than out*
    control   try the same command on sound inputs, too; without a plant, that of `instead`
    overwrites  outputs that are there may be replaced"""
    id: str
    args: tuple
    inputs: tuple = ()
    plant: Callable | None = None
    exits: tuple = (1,)
    says: str = ""
    serve: Callable | None = None
    shell: str = ""
    check: Callable | None = None
    changes: tuple = ()
    control: bool = True
    instead: tuple = ()
    overwrites: bool = False

    def __post_init__(self):
        assert self.plant or self.serve or self.shell or self.says or self.check, self.id


def table(prefix, args, inputs, plants, **more):
    """A fault for each of {name: plant}."""
    for name, plant in plants.items():
        yield Fault(f"{prefix}/{name}", args, inputs, plant, **more)


def digest(path):
    """What an entry is, without following links."""
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        return "link", os.readlink(path)
    if stat.S_ISREG(found.st_mode):
        return "file", hashlib.sha256(path.read_bytes()).hexdigest()
    return (stat.S_IFMT(found.st_mode),)


def snapshot(folder):
    return {str(path.relative_to(folder)): digest(path) for path in sorted(folder.rglob("*"))}


UNTOUCHED = {}


def untouched_snapshot(inputs, folder):
    """Of a folder with these inputs, before anything is planted; all of them are copies of the same."""
    if inputs not in UNTOUCHED:
        UNTOUCHED[inputs] = snapshot(folder)
    return UNTOUCHED[inputs]


def copy_inputs(prepared, names, folder):
    for name in names:
        source, _, target = name.partition(":")
        copy = shutil.copytree if (prepared / source).is_dir() else shutil.copy2
        copy(prepared / source, folder / (target or source))


def run_oscar(fault, folder, binary, args=None):
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder / "home"), "OSCAR_CACHE": str(folder / "cache"),
                   "LC_ALL": "C.UTF-8", "OSCAR_DEVICE": "cpu", "OSCAR_THREADS": "1", "OMP_NUM_THREADS": "1"}
    environment |= {name: os.environ[name] for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS") if name in os.environ}
    with fault.serve(folder) if fault.serve else contextlib.nullcontext("") as url:
        command = [str(binary), *(str(word).replace("{url}", url) for word in args or fault.args)]
        if fault.shell:
            command = ["/bin/bash", "-c", fault.shell, "bash", *command]
        environment["HF_ENDPOINT"] = url or "http://127.0.0.1:9"
        started = time.monotonic()
        process = subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, start_new_session=True)
        try:
            stdout, stderr = process.communicate(timeout=TIME_LIMIT)
            status = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            stdout, stderr = process.communicate()
            status = None
    return Done(status, stdout, stderr, time.monotonic() - started)


def source_outputs(folder):
    """Reads every serve.env that oscar wrote, as users are told to."""
    for path in [*folder.glob("out*/**/serve.env"), *folder.glob("cache/sets/**/serve.env")]:
        subprocess.run(["/bin/bash", "-c", 'set -a; source "$1"; set +a', "bash", path], cwd=folder, timeout=TIME_LIMIT,
                       stdin=subprocess.DEVNULL, capture_output=True, check=False)


def is_output(name, fault):
    top = name.split("/")[0]
    return top.startswith(("out", "cache")) or any(name == known or name.startswith(f"{known}/") for known in fault.changes)


def side_effects(fault, folder, before):
    """What happened to the folder that should not have, or None."""
    after = snapshot(folder)
    if any(Path(name).name.startswith(MARK) for name in after):
        return "what was planted has been executed"
    for name in sorted(set(before) | set(after)):
        if before.get(name) == after.get(name) or name.split("/")[-1] in LOCKS:
            continue
        kind = "has changed" if name in before and name in after else "is gone" if name in before else "was made"
        if name in before and name.startswith("out") and not fault.overwrites or not is_output(name, fault):
            return f"{name} {kind}"
        if not PLAIN_NAME.fullmatch(Path(name).name):
            return f"a file was named {name!r}"
    return None


def judge(fault, folder, done, before):
    """(outcome, what happened)."""
    text = done.text
    last = [line for line in text.strip().splitlines() if line][-4:]
    said = " / ".join(line.strip()[:160] for line in last)
    if done.status is None:
        return HUNG, f"no answer within {TIME_LIMIT} s"
    if done.status < 0 or done.status >= 128 and done.status not in fault.exits:
        return CRASHED, f"ended by signal {-done.status if done.status < 0 else done.status - 128}: {said}"
    if BROKEN.search(text):
        return CRASHED, f"{BROKEN.search(text)[0]!r}: {said}"
    if "out of memory" in text:
        return ACCEPTED, f"took all the memory there was: {said}"
    if RAW.search(text):
        return ACCEPTED, f"the message of a library, {RAW.search(text)[0]!r}: {said}"
    if CONTROL.search(text):
        return ACCEPTED, f"printed the control character {CONTROL.search(text)[0]!r} raw"
    source_outputs(folder)
    if wrong := side_effects(fault, folder, before):
        return ACCEPTED, f"{wrong} (exit {done.status}: {said})"
    if done.status not in fault.exits:
        return ACCEPTED, f"exit {done.status}: {said}"
    if done.status in (1, 2) and not (re.search("error:", text) and re.search(r"where:|try:", text)):
        return ACCEPTED, f"exit {done.status} without error, where or try: {said}"
    if done.status == 3 and "verdict: rejected" not in text:
        return ACCEPTED, f"exit 3 without a verdict: {said}"
    if fault.says and not re.search(fault.says, text):
        return ACCEPTED, f"does not say {fault.says!r}: {said}"
    if fault.check and (wrong := fault.check(folder, done)):
        return ACCEPTED, f"{wrong} (exit {done.status}: {said})"
    return REFUSED, said


def make_folder(fault, folder, prepared):
    """The fault's folder with its inputs and things that are nobody's business."""
    (folder / "home").mkdir(parents=True)
    (folder / "precious/deep").mkdir(parents=True)
    (folder / "precious/letter.txt").write_text("the user's own\n")
    (folder / "precious/deep/photo").write_bytes(bytes(range(256)))
    copy_inputs(prepared, fault.inputs, folder)


def try_fault(fault, folder, prepared, binary):
    """Plants, runs, judges. Returns (outcome, what happened, seconds)."""
    make_folder(fault, folder, prepared)
    try:
        before = untouched = untouched_snapshot(fault.inputs, folder)
        if fault.plant:
            fault.plant(folder)
            before = snapshot(folder)
    except Exception as error:  # a fault that cannot be planted proves nothing
        return MISPLANTED, f"{type(error).__name__}: {error}", 0.0
    if fault.plant and untouched == before:
        return MISPLANTED, "the plant changes nothing", 0.0
    done = run_oscar(fault, folder, binary)
    return *judge(fault, folder, done, before), done.seconds


def try_control(fault, folder, prepared, binary):
    """The same command on sound inputs. Returns what went wrong, or None: a refusal of what is sound proves nothing."""
    make_folder(fault, folder, prepared)
    done = run_oscar(fault, folder, binary, fault.instead)
    return None if done.status == 0 else f"exit {done.status}: {done.text.strip()[-300:]}"
