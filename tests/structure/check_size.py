# SPDX-License-Identifier: MIT
"""The project is not larger than CHANGELOG's last "Size" line says: check_size.py [ROOT]. Exit 1 and one line per figure that it passes.

The line reads "- Size: 12,345 lines of product, 6,789 of tests; why". Counted are C++, CUDA, Python and shell: the product is apps, lib,
kernels, zoo and schemas, tests are tests.
"""
import re
import sys
from pathlib import Path

SUFFIXES = {".cpp", ".hpp", ".h", ".cu", ".cuh", ".py", ".sh"}
PARTS = {"product": ("apps", "lib", "kernels", "zoo", "schemas"), "tests": ("tests",)}


def lines_of(root, folders):
    return sum(path.read_bytes().count(b"\n") for folder in folders for path in (root / folder).rglob("*") if path.suffix in SUFFIXES)


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2]).resolve()
    allowed = re.search(r"^- Size: ([\d,]+) lines of product, ([\d,]+) of tests", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    if not allowed:
        sys.exit('CHANGELOG.md has no line "- Size: … lines of product, … of tests"')
    found = {part: lines_of(root, folders) for part, folders in PARTS.items()}
    limits = dict(zip(PARTS, (int(figure.replace(",", "")) for figure in allowed.groups())))
    for part, lines in found.items():
        print(f"{part}: {lines:,} lines of {limits[part]:,} that CHANGELOG.md explains")
    if any(found[part] > limits[part] for part in PARTS):
        sys.exit('take something away, or explain the growth in a "- Size: …" line of CHANGELOG.md that stands before the others')


if __name__ == "__main__":
    main()
