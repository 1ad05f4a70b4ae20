# SPDX-License-Identifier: MIT
"""Sets of the sample model. sample_sets.py fits those that several tests take into the folder OSCAR_SAMPLE_SETS; a test without that
folder fits what it takes, once a process."""
import atexit
import functools
import os
import shutil
import sys
import tempfile
from pathlib import Path

try:
    import oscar_kv
except ImportError as error:
    print(f"skipped: {error}; run scripts/setup.sh --tests")
    sys.exit(77)

PROJECT = Path(os.environ["OSCAR_PROJECT"])
DATA = Path(os.environ.get("OSCAR_TEST_DATA", PROJECT / "tests/data"))
MODEL, GOLDEN = DATA / "qwen3-2m", DATA / "golden/qwen3-2m"
KEPT = Path(os.environ.get("OSCAR_SAMPLE_SETS", "/nowhere"))


def fit(recipe, folder, **options):
    oscar_kv.fit(folder / recipe, model=MODEL, tokens=GOLDEN / "tokens_calib.npy", max_tokens=4096, device="cpu", recipe=recipe, force=True,
                 **options)
    return folder / recipe


@functools.cache
def sample_set(recipe="auto", **options):
    """The folder of a set; with recipe auto it has all parts. Windows are 64 + 256 tokens."""
    if not options and (KEPT / recipe).is_dir():
        return KEPT / recipe
    folder = Path(tempfile.mkdtemp(prefix="oscar-sample-"))
    atexit.register(shutil.rmtree, folder)
    return fit(recipe, folder, **options)


if __name__ == "__main__":
    for each in ("auto", "coded", "oscar"):
        fit(each, KEPT)
