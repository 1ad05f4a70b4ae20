# SPDX-License-Identifier: MIT
"""Where a figure comes from: the machine and the commit, for the benchmarks' JSON files. Standard library only."""
import os
import subprocess
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]


def processor():
    """Its name and the set of its instruction sets, as Linux calls them."""
    info = dict(line.split(":", 1) for line in reversed(Path("/proc/cpuinfo").read_text().splitlines()) if ":" in line)
    fields = {name.strip(): value.strip() for name, value in info.items()}
    return fields.get("model name", "unknown"), set(fields.get("flags", "").split())


def machine():
    """To be called before what is measured begins."""
    return {"cpu": processor()[0], "cores": len(os.sched_getaffinity(0)), "load_before": os.getloadavg()[0]}


def commit():
    """Of what is measured, "-dirty" if files have changed since; $OSCAR_COMMIT where there is no repository."""
    describe = ["git", "-C", str(PROJECT), "describe", "--always", "--dirty", "--exclude=*"]
    return os.environ.get("OSCAR_COMMIT") or subprocess.run(describe, check=True, capture_output=True, text=True).stdout.strip()
