# SPDX-License-Identifier: MIT
"""Sets of the sample model, fitted once a process."""
import atexit
import functools
import os
import shutil
import tempfile
from pathlib import Path

import oscar_kv

PROJECT = Path(os.environ["OSCAR_PROJECT"])
DATA = Path(os.environ.get("OSCAR_TEST_DATA", PROJECT / "tests/data"))
MODEL, GOLDEN = DATA / "qwen3-2m", DATA / "golden/qwen3-2m"


@functools.cache
def sample_set(recipe="auto", **options):
    """The folder of a set; with recipe auto it has all parts. Windows are 64 + 256 tokens."""
    folder = Path(tempfile.mkdtemp(prefix="oscar-sample-"))
    atexit.register(shutil.rmtree, folder)
    oscar_kv.fit(folder / recipe, model=MODEL, tokens=GOLDEN / "tokens_calib.npy", max_tokens=4096, device="cpu", recipe=recipe, **options)
    return folder / recipe
