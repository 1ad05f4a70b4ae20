# SPDX-License-Identifier: MIT
"""Packages that scripts/setup.sh unpacks into folders of their own, for tests of what oscar_kv does in them."""
import os
import sys
from pathlib import Path


def on_the_path(name):
    """Puts the folder with the package `name` that scripts/setup.sh --NAME makes, or OSCAR_NAME_FOLDER names, on sys.path. Ends with exit
    status 77 if there is none."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(os.environ.get(f"OSCAR_{name.upper()}_FOLDER", cache / "oscar-build" / name))
    if not (folder / name).is_dir():
        print(f"skipped: there is no {folder}/{name}; run scripts/setup.sh --{name}")
        sys.exit(77)
    sys.path.insert(0, str(folder))
