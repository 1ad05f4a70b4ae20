# SPDX-License-Identifier: MIT
"""Where the native parts are: the `oscar` program and liboscar_torch.so.

Each is taken from an environment variable (OSCAR_BINARY, OSCAR_TORCH_LIBRARY), else from beside the package (a wheel
brings both), else from a build folder of the source tree that the package lies in; the program last from PATH.
"""
import hashlib
import os
import shutil
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_BUILD_FOLDERS = ("build", "build-cuda", "build-dev")


def setting(variable: str) -> str | None:
    """An environment variable; None if it is not set. Raises ValueError if it is set to nothing, as a shell does with a name
    that it does not know: whoever sets a variable means something by it."""
    value = os.environ.get(variable)
    if value is not None and not value.strip():
        raise ValueError(f"{variable} is set but empty; give it a value, or unset it")
    return value


def set_path() -> str | None:
    """The set that a server is to serve: OSCAR_KV_SET, or OSCAR_INT2_SET, its older name. Raises ValueError if it is empty, or if
    both are set."""
    paths = [path for path in map(setting, ("OSCAR_KV_SET", "OSCAR_INT2_SET")) if path is not None]
    if len(paths) > 1:
        raise ValueError("OSCAR_KV_SET and OSCAR_INT2_SET, its older name, are both set; unset OSCAR_INT2_SET")
    return paths[0] if paths else None


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
        raise FileNotFoundError("the oscar program is neither beside oscar_kv nor on PATH; install the wheel, build it, "
                                "or set OSCAR_BINARY")
    return Path(found)


@cache
def load_library() -> Path:
    """Registers torch.ops.oscar.* with torch, once. Raises FileNotFoundError, ValueError if OSCAR_TORCH_LIBRARY is empty, or
    OSError if this torch is older than 2.11."""
    import torch

    path = _find("OSCAR_TORCH_LIBRARY", "lib/oscar/liboscar_torch.so", "liboscar_torch.so")
    if path is None:
        raise FileNotFoundError("liboscar_torch.so is not beside oscar_kv; install the wheel, build it, or set "
                                "OSCAR_TORCH_LIBRARY")
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        why = error.__cause__ or error
        raise OSError(f"{path} does not load into torch {torch.__version__}: {why}; it needs torch 2.11 or later") \
            from error
    return path
