# SPDX-License-Identifier: MIT
"""Runs one case of a table of command lines: run_case.py TABLE.toml NAME, or run_case.py --list TABLE.toml.

A case is a shell script that finds `oscar` in PATH and starts in an empty folder:
  run      the script; $PROJECT = the checkout, $DATA = its tests/data, $SHARED = reference data that only some machines
           have (without it: skipped)
  needs    paths in the checkout without which the case is skipped
  exit     expected exit status (0)
  stdout   fragments that must appear; without it nothing may be written there
  stderr   the same; [""] allows anything
  absent   fragments that must not appear in either
  files    {name = content} to make before
  exists   paths that must be there afterwards;   missing   paths that must not
  env      further environment variables
Environment: OSCAR_BINARY, OSCAR_TEST_DATA, OSCAR_SHARED; of the rest, cases see HANDED_DOWN only.
"""
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

SKIPPED = 77
TIMEOUT_SECONDS = 300
HANDED_DOWN = ("ASAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS", "OSCAR_DEVICE", "OSCAR_MODEL_DTYPE", "LD_LIBRARY_PATH",
               "CUDA_VISIBLE_DEVICES")


def problems(case, done, folder):
    """What differs from the expectation, one line each."""
    expected = case.get("exit", 0)
    if done.returncode != expected:
        yield f"exit status {done.returncode}, expected {expected}"
    for stream in ("stdout", "stderr"):
        text = getattr(done, stream)
        if stream not in case and text:
            yield f"{stream} is not empty"
        for fragment in case.get(stream, []):
            if fragment not in text:
                yield f"{stream} lacks {fragment!r}"
        for fragment in case.get("absent", []):
            if fragment in text:
                yield f"{stream} has {fragment!r}"
    for path in case.get("exists", []):
        if not (folder / path).exists():
            yield f"{path} is missing"
    for path in case.get("missing", []):
        if list(folder.glob(path)):
            yield f"{path} is there"


def run(case, binary, data, shared):
    with tempfile.TemporaryDirectory(prefix="oscar-cli-") as name:
        folder = Path(name)
        for path, content in case.get("files", {}).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(content)
        environment = {"PATH": f"{binary.parent}:/usr/bin:/bin", "HOME": name, "LC_ALL": "C.UTF-8", "DATA": data,
                       "PROJECT": str(Path(data).parent.parent),
                       "SHARED": shared, **case.get("env", {})}
        for variable in HANDED_DOWN:
            if variable in os.environ:
                environment.setdefault(variable, os.environ[variable])
        done = subprocess.run(["/bin/sh", "-eu", "-c", case["run"]], cwd=folder, env=environment, text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_SECONDS)
        found = list(problems(case, done, folder))
        if found:
            print(f"$ {case['run']}\n--- stdout\n{done.stdout}--- stderr\n{done.stderr}---\n" + "\n".join(found))
        return 1 if found else 0


def main():
    if sys.argv[1] == "--list":
        names = [case["name"] for case in tomllib.loads(Path(sys.argv[2]).read_text())["case"]]
        assert len(names) == len(set(names)), "two cases of one table share a name"
        print(";".join(names), end="")
        return 0
    table = tomllib.loads(Path(sys.argv[1]).read_text())["case"]
    case = next(case for case in table if case["name"] == sys.argv[2])
    shared = os.environ["OSCAR_SHARED"]
    if "$SHARED" in case["run"] and not Path(shared).is_dir():
        print(f"skipped: needs the reference data {shared}")
        return SKIPPED
    for path in case.get("needs", []):
        if not (Path(os.environ["OSCAR_TEST_DATA"]).parent.parent / path).exists():
            print(f"skipped: needs {path}")
            return SKIPPED
    return run(case, Path(os.environ["OSCAR_BINARY"]), os.environ["OSCAR_TEST_DATA"], shared)


if __name__ == "__main__":
    sys.exit(main())
