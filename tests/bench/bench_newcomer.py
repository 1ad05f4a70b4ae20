# SPDX-License-Identifier: MIT
"""What somebody meets who clones the project onto a bare Debian 12: seconds and bytes of scripts/quickstart.sh, of a second
run, and of the first scripts/test.sh after them. Needs root, debootstrap, and a machine that does nothing else.

bench_newcomer.py [--root /tmp/oscar-newcomer] [--skip-tests] [--out tests/bench/results/newcomer.json]

ROOT becomes a bare Debian in which nothing is installed or cached; it takes the network settings of this machine.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import provenance

PROJECT = Path(__file__).resolve().parents[2]
SETTINGS = ("etc/resolv.conf", "etc/pip.conf", "etc/ssl/certs/ca-certificates.crt", "etc/apt/sources.list.d/debian.sources")


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def make_bare(root):
    if root.exists():
        sys.exit(f"{root} exists: remove it, or name another --root")
    run("debootstrap", "--variant=minbase", "--include=ca-certificates", "bookworm", str(root))
    for name in SETTINGS:
        if Path("/", name).exists():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path("/", name), root / name)
    if (root / SETTINGS[3]).exists():  # the same archive, named once
        (root / "etc/apt/sources.list").unlink(missing_ok=True)
    run("git", "clone", "--quiet", str(PROJECT), str(root / "root/oscar"))


def received():
    counters = Path("/sys/class/net").glob("*/statistics/rx_bytes")
    return sum(int(counter.read_text()) for counter in counters if counter.parent.parent.name != "lo")


def measure(root, script):
    """One run of a script in the bare system, with its last line of output."""
    settings = [f"{name}={value}" for name, value in os.environ.items() if name.startswith("PIP_") or name.endswith("_proxy")]
    begun, before = time.monotonic(), received()
    done = subprocess.run(["unshare", "--mount", "--pid", "--fork", "chroot", str(root), "/usr/bin/env", "-i", "HOME=/root",
                           "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", *settings, "bash", "-c",
                           f"mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mkdir -p /dev/pts; mount -t devpts pts /dev/pts; cd /root/oscar && exec {script}"],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    seconds = time.monotonic() - begun
    (root / f"tmp/{Path(script).stem}.log").write_text(done.stdout)
    row = {"script": script, "status": done.returncode, "minutes": round(seconds / 60, 2), "seconds": round(seconds),
           "received_mb": round((received() - before) / 1e6), "last_line": done.stdout.rstrip().splitlines()[-1]}
    print(row, file=sys.stderr)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("/tmp/oscar-newcomer"))
    parser.add_argument("--skip-tests", action="store_true")
    parser.add_argument("--out", type=Path, default=PROJECT / "tests/bench/results/newcomer.json")
    options = parser.parse_args()
    machine = provenance.machine()
    make_bare(options.root)
    scripts = ["scripts/quickstart.sh"] * 2 + ([] if options.skip_tests else ["scripts/test.sh"])
    rows = [measure(options.root, script) for script in scripts]
    document = {"what": "the project's scripts, one after the other, on a bare Debian 12 with empty caches",
                "machine": machine, "commit": provenance.commit(), "rows": rows}
    options.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
