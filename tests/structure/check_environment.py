# SPDX-License-Identifier: MIT
"""The table of environment variables in apps/oscar/README.md names what the sources read, and nothing else.
check_environment.py [ROOT]; exit status 1 and one line per variable that stands on one side alone."""
import re
import sys
from pathlib import Path

READS = re.compile(r'(?:getenv\(|environ(?:\.get\(|\[)|envname\(|environment\(|setting\(|_number\(|_find\()\s*[\'"]([A-Z_]+)[\'"]')
LISTS = re.compile(r'for \(const char\* const variable : \{([^}]*)\}|_PLUGINS = (\{.*?\}$)', re.DOTALL | re.MULTILINE)
OPTIONS = re.compile(r"kFromEnvironment\[\] = \{([^}]*)\}")
OF_LIBRARIES = {"http_proxy", "https_proxy", "no_proxy", "TMPDIR"}  # curl and the standard library read these
OF_OTHERS = {"PYTHONPATH"}  # handed on to a process that is started


def read_by_sources(root):
    names = set(OF_LIBRARIES)
    for path in [path for folder in ("apps", "lib", "kernels") for path in (root / folder).rglob("*") if path.suffix in (".cpp", ".cu", ".py")]:
        text = path.read_text()
        names.update(READS.findall(text))
        names.update(name for found in LISTS.findall(text) for name in re.findall(r'"([A-Z]+_[A-Z_]+)"', "".join(found)))
        names.update("OSCAR_" + option.upper().replace("-", "_") for found in OPTIONS.findall(text) for option in re.findall(r'"(.*?)"', found))
    return names - OF_OTHERS


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2]).resolve()
    section = (root / "apps/oscar/README.md").read_text().split("\n## Environment variables\n")[1].split("\n## ")[0]
    cells = [row.split("|")[1] for row in section.splitlines() if row.startswith("| `")]
    told = {name for cell in cells for name in re.findall(r"`([A-Za-z]+_?[A-Za-z_]*)`", cell)} - {"token"}
    read = read_by_sources(root)
    findings = [f"{name} is read and is not in the table" for name in sorted(read - told)]
    findings += [f"{name} is in the table and nothing reads it" for name in sorted(told - read)]
    print("\n".join(findings) if findings else f"the table tells the {len(read)} variables that are read")
    sys.exit(1 if findings or len(read) < 30 else 0)


if __name__ == "__main__":
    main()
