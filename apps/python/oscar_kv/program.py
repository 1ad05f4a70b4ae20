# SPDX-License-Identifier: MIT
"""The native parts, the `oscar` program and liboscar_torch.so: where they are, and `oscar fit` and `oscar verify` as functions, whose
options are those of the command line, and results its JSON.

Each part is taken from an environment variable (OSCAR_BINARY, OSCAR_TORCH_LIBRARY), else from beside the package (a wheel
brings both), else from a build folder of the source tree that the package lies in; the program last from PATH.
"""
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).resolve().parent
_BUILD_FOLDERS = ("build", "build-cuda", "build-dev")
Option = str | int | float | bool | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None
_REJECTED = 3


def setting(variable: str) -> str | None:
    """An environment variable; None if it is not set. Raises ValueError if it is set to nothing, as a shell does with a name
    that it does not know: whoever sets a variable means something by it."""
    value = os.environ.get(variable)
    if value is not None and not value.strip():
        raise ValueError(f"{variable} is set but empty; give it a value, or unset it")
    return value


def set_path() -> str | None:
    """The set that a server is to serve. Raises ValueError if it is empty."""
    return setting("OSCAR_KV_SET")


def allows_rejected() -> bool:
    """Whether a server may serve what oscar verify rejected. Raises ValueError for anything but 1."""
    value = setting("OSCAR_KV_ALLOW_REJECTED")
    if value not in (None, "1"):
        raise ValueError(f"OSCAR_KV_ALLOW_REJECTED={value}: give 1, or unset it")
    return value == "1"


def manifest_hash(path: str) -> str:
    """The first digits of the sha256 of a set's manifest.json, or of the one file that a set was converted to."""
    place = Path(path)
    return hashlib.sha256((place / "manifest.json" if place.is_dir() else place).read_bytes()).hexdigest()[:12]


def _find(variable: str, installed: str, built: str) -> Path | None:
    given = setting(variable)
    if given is not None:
        path = Path(given)
        if not path.is_file():
            raise FileNotFoundError(f"{variable}={path}: there is no such file")
        return path
    source = _PACKAGE.parents[2]
    for path in (_PACKAGE / installed, *(source / folder / built for folder in _BUILD_FOLDERS)):
        if path.is_file():
            return path
    return None


def binary() -> Path:
    """The `oscar` program. Raises FileNotFoundError that says where it was looked for, ValueError if OSCAR_BINARY is empty."""
    path = _find("OSCAR_BINARY", "bin/oscar", "oscar")
    found = path or shutil.which("oscar")
    if found is None:
        raise FileNotFoundError("the oscar program is neither beside oscar_kv nor on PATH; install the wheel, build it, or set OSCAR_BINARY")
    return Path(found)


@cache
def load_library() -> Path:
    """Registers torch.ops.oscar.* with torch, once. Raises FileNotFoundError, ValueError if OSCAR_TORCH_LIBRARY is empty, or
    OSError if this torch is older than 2.11."""
    import torch

    path = _find("OSCAR_TORCH_LIBRARY", "lib/oscar/liboscar_torch.so", "liboscar_torch.so")
    if path is None:
        raise FileNotFoundError("liboscar_torch.so is not beside oscar_kv; install the wheel, build it, or set OSCAR_TORCH_LIBRARY")
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        why = error.__cause__ or error
        raise OSError(f"{path} does not load into torch {torch.__version__}: {why}; it needs torch 2.11 or later") from error
    return path


class OscarError(RuntimeError):
    """The program failed; the text is what it wrote to stderr."""

    def __init__(self, message: str, exit_code: int):
        super().__init__(message)
        self.exit_code = exit_code


def _arguments(options: dict[str, Option]) -> list[str]:
    """{"key_objective": "qqt", "center": True} -> ["--key-objective", "qqt", "--center"]; None is left out."""
    arguments: list[str] = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            arguments.append(flag if value else "--no-" + flag[2:])
        elif isinstance(value, (str, int, float, os.PathLike)):
            arguments += [flag, os.fspath(value) if isinstance(value, os.PathLike) else str(value)]
        elif value is not None:
            arguments += [flag, *(os.fspath(each) for each in value)]
    return arguments


def _environment() -> dict[str, str]:
    """Without what torchrun, srun or mpirun tell their ranks: the program is no rank of the caller's job."""
    launchers = ("OMPI_COMM_WORLD_", "PMI_", "SLURM_")
    return {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE") and not name.startswith(launchers)}


def run(*arguments: str | os.PathLike[str], accept: Sequence[int] = (0,)) -> dict[str, Any]:
    """Runs `oscar ARGUMENTS --json FILE` and returns what it wrote there. Raises OscarError for exit codes that are
    not in `accept`."""
    with tempfile.TemporaryDirectory(prefix="oscar-") as folder:
        answer = Path(folder, "answer.json")
        command = [str(binary()), *(os.fspath(each) for each in arguments), "--json", str(answer)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment())
        if done.returncode not in accept:
            raise OscarError(done.stderr.strip() or f"oscar ended with status {done.returncode}", done.returncode)
        return json.loads(answer.read_text()) if answer.exists() else {}


def fit(out: str | os.PathLike[str] | None = None, **options: Option) -> dict[str, Any]:
    """oscar fit: fit("set", stats=["tap.safetensors"]), fit("set", model="DIR", text=["a.txt"], recipe="stretch").

    `out` is the folder of the new set; options are those of `oscar fit --help` with "_" for "-". A flag is True, or
    False for its "--no-" form.
    """
    return run("fit", *_arguments({"out": out, **options}))


def verify(path: str | os.PathLike[str], **options: Option) -> dict[str, Any]:
    """oscar verify: the report (oscar.verify_report.v1). Options as for fit().

    Its "verdict" is "accepted", "rejected" or "not_measured".
    """
    return run("verify", path, *_arguments(dict(options)), accept=(0, _REJECTED))
