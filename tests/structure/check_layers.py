# SPDX-License-Identifier: MIT
"""Checks who includes whom, names of classes, file lengths and licence lines: check_layers.py [ROOT]. Exit 1 and one line per finding.

Folders are stages of a data flow (rules.py): a stage sees earlier stages, never later ones, and a third-party header is
seen only by the files that wrap it. Nothing here builds or runs the code.
"""
import re
import sys
from pathlib import Path

from rules import HEADER_SUFFIXES, INCLUDING_SUFFIXES, MAX_LINES, MAX_TEST_LINES, MAY_INCLUDE, SOURCE_SUFFIXES, WRAPPERS

CLASS = re.compile(r"^(?:class|struct|enum class|enum struct)\s+(?:alignas\([^)]*\)\s+)?(\w+)[^;{]*\{", re.MULTILINE)
NAMESPACE = re.compile(r"^namespace ([\w:]+) \{", re.MULTILINE)
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
TOP_FOLDERS = ("apps", "lib", "kernels", "scripts", "tests")


def source_files(root):
    for top in TOP_FOLDERS:
        for path in sorted((root / top).rglob("*")):
            if path.is_file() and (path.suffix in SOURCE_SUFFIXES or path.name == "CMakeLists.txt"):
                if "data" not in path.relative_to(root).parts:
                    yield path.relative_to(root)


def folder_of(path):
    """The longest folder in the table that holds `path`; None outside the table (tests, scripts)."""
    for folder in sorted(MAY_INCLUDE, key=len, reverse=True):
        if str(path).startswith(folder + "/"):
            return folder
    return None


def resolve(root, includer, header):
    """Where an include leads inside the project, as a path relative to the root; None for anything outside it."""
    for base in (root, root / "lib", root / "apps/oscar", (root / includer).parent):
        for name in (header, header + ".in"):
            if (base / name).is_file():
                return (base / name).resolve().relative_to(root)
    return None


def is_test(path):
    return path.parts[0] == "tests"


def check_wrapper(path, header):
    if is_test(path):
        return
    for prefixes, wrappers in WRAPPERS.items():
        if header.startswith(prefixes) and not any(str(path).startswith(wrapper) for wrapper in wrappers):
            yield f"includes <{header}>, which only {', '.join(wrappers)} may"


def check_layer(root, path, header):
    target = resolve(root, path, header)
    folder = folder_of(path)
    if target is None or folder is None:
        return
    target_folder = folder_of(target)
    if target_folder is None:
        yield f'includes "{header}", which is no part of the house'
    elif target_folder != folder and target_folder not in MAY_INCLUDE[folder]:
        yield f'includes "{header}" of {target_folder}, which {folder} may not see'


def check_file(root, path):
    text = (root / path).read_text(encoding="utf-8")
    lines = text.splitlines()
    if not any("SPDX-License-Identifier: MIT" in line for line in lines[:2]):
        yield "has no SPDX-License-Identifier in its first two lines"
    limit = MAX_TEST_LINES if is_test(path) else MAX_LINES
    if len(lines) > limit:
        yield f"has {len(lines)} lines, more than {limit}: split it"
    if path.suffix not in INCLUDING_SUFFIXES:
        return
    if path.parts[0] in ("apps", "lib", "kernels") and folder_of(path) is None:
        yield "lies in a folder that tests/structure/rules.py does not know"
    for _, header in INCLUDE.findall(text):
        yield from check_wrapper(path, header)
        yield from check_layer(root, path, header)


def check_names(root, files):
    """Two classes of one name are one class to the linker, which keeps the destructor of either."""
    homes = {}
    for path in files:
        if path.suffix not in HEADER_SUFFIXES or is_test(path):
            continue
        text = (root / path).read_text(encoding="utf-8")
        space = NAMESPACE.search(text)
        for name in CLASS.findall(text):
            home = homes.setdefault((space and space[1], name), path)
            if home != path:
                yield f"{path} defines {name}, as {home} does: rename one"


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2]).resolve()
    files = list(source_files(root))
    if not files:
        sys.exit(f"{root}: no source files found; give the root of the project")
    findings = [f"{path} {finding}" for path in files for finding in check_file(root, path)]
    findings += check_names(root, files)
    print("\n".join(findings) or f"{len(files)} files keep the rules")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
