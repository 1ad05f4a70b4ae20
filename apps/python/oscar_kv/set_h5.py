# SPDX-License-Identifier: MIT
"""Arrays of an HDF5 file of somebody else, which is in memory: for rotation_set.py.

What a file leads to is not in the file, and no hash covers it: links, external storage and virtual datasets are refused. The
HDF5 library can read beyond its buffers where metadata is forged, so another process reads the file first, which must survive.
"""
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

_TRIAL_SECONDS = 300
_TRIAL = f"from {__name__} import _try; _try()"


def _arrays(data: bytes) -> dict[str, np.ndarray]:
    import h5py

    found: dict[str, np.ndarray] = {}

    def add(group: Any, prefix: str) -> None:
        for name in group:
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise ValueError(f"\"{prefix}{name}\" is a link to something else")
            member = group[name]
            if isinstance(member, h5py.Group):
                if prefix.count("/") > 8:  # also what contains itself
                    raise ValueError(f"\"{prefix}\" is nested too deeply")
                add(member, f"{prefix}{name}/")
                continue
            if not isinstance(member, h5py.Dataset) or member.is_virtual or member.external:
                raise ValueError(f"\"{prefix}{name}\" is no dataset of its own, but of other files")
            if member.dtype.kind not in "fui" or member.nbytes > len(data):
                raise ValueError(f"\"{prefix}{name}\" holds no numbers, or claims more than the file has")
            found[prefix + name] = member[()]

    with h5py.File(io.BytesIO(data), "r") as file:
        add(file, "")
    return found


def _try() -> None:
    """What the other process does."""
    try:
        _arrays(sys.stdin.buffer.read())
    except Exception as error:
        sys.exit(ascii(str(error))[1:-1])


def read_h5(data: bytes, where: Path) -> dict[str, np.ndarray]:
    """Every dataset by its path ("layers/0/key/rotation"). Raises ValueError if it cannot be read, or has links, external
    storage or virtual datasets; ImportError without h5py."""
    try:
        import h5py  # noqa: F401
    except ImportError as error:
        raise ImportError(f"{where}: h5py reads HDF5; pip install h5py, or fit with --format safetensors,h5") from error
    refused = f"{where}: not an HDF5 file that can be read"
    path = [str(Path(__file__).resolve().parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    try:
        trial = subprocess.run([sys.executable, "-c", _TRIAL], input=data, capture_output=True, check=False,
                               timeout=_TRIAL_SECONDS, env=os.environ | {"PYTHONPATH": os.pathsep.join(path)})
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"{refused} within {_TRIAL_SECONDS} s; fetch or fit the set again") from error
    if trial.returncode != 0:
        said = trial.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"status {trial.returncode}"]
        raise ValueError(f"{refused}: {said[0]}; fetch or fit the set again")
    return _arrays(data)
