# SPDX-License-Identifier: MIT
"""`oscar fit` and `oscar verify` as functions: options are those of the command line, results its JSON."""
import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import places

Option = str | int | float | bool | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None
_REJECTED = 3


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
    return {name: value for name, value in os.environ.items()
            if name not in ("RANK", "WORLD_SIZE") and not name.startswith(launchers)}


def run(*arguments: str | os.PathLike[str], accept: Sequence[int] = (0,)) -> dict[str, Any]:
    """Runs `oscar ARGUMENTS --json FILE` and returns what it wrote there. Raises OscarError for exit codes that are
    not in `accept`."""
    with tempfile.TemporaryDirectory(prefix="oscar-") as folder:
        answer = Path(folder, "answer.json")
        command = [str(places.binary()), *(os.fspath(each) for each in arguments), "--json", str(answer)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment())
        if done.returncode not in accept:
            raise OscarError(done.stderr.strip() or f"oscar ended with status {done.returncode}", done.returncode)
        return json.loads(answer.read_text()) if answer.exists() else {}


def fit(out: str | os.PathLike[str] | None = None, **options: Option) -> dict[str, Any]:
    """oscar fit: fit("set", stats=["tap.safetensors"]), fit("set", model="DIR", text=["a.txt"], recipe="lsq").

    `out` is the folder of the new set; options are those of `oscar fit --help` with "_" for "-". A flag is True, or
    False for its "--no-" form.
    """
    return run("fit", *_arguments({"out": out, **options}))


def verify(rotations: str | os.PathLike[str], **options: Option) -> dict[str, Any]:
    """oscar verify: the report (oscar.verify_report.v1). Options as for fit().

    Its "verdict" is "accepted", "rejected" or "not_measured".
    """
    return run("verify", rotations, *_arguments(dict(options)), accept=(0, _REJECTED))
