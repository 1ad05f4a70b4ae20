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
    made = folder / "-".join([recipe, *map(str, options.values())])
    oscar_kv.fit(made, model=MODEL, tokens=GOLDEN / "tokens_calib.npy", max_tokens=4096, device="cpu", recipe=recipe, force=True, **options)
    return made


@functools.cache
def sample_set(recipe="auto", **options):
    """The folder of a set; with recipe auto it has all parts. Windows are 64 + 256 tokens."""
    kept = KEPT / "-".join([recipe, *map(str, options.values())])
    if kept.is_dir():
        return kept
    folder = Path(tempfile.mkdtemp(prefix="oscar-sample-"))
    atexit.register(shutil.rmtree, folder)
    return fit(recipe, folder, **options)


if __name__ == "__main__":
    fit("coded", KEPT, keys="before-rope", bits=1.25)
    fit("coded", KEPT, keys="after-rope")
    for each in ("auto", "oscar"):
        fit(each, KEPT)
    oscar_kv.program.run("convert", KEPT / "auto", KEPT / "coded", "--part", "coded", "--force")  # with the bytes of a fit of its own
