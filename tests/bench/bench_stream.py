# SPDX-License-Identifier: MIT
"""How long a fit on a dump in an object store takes: streamed, and downloaded first by boto3 (as `aws s3 cp` does it):

    .venv/bin/python tests/bench/bench_stream.py --oscar build/oscar --out tests/bench/results/stream.json

nginx on localhost serves a seeded dump of Qwen3-8B's layer shape behind a relay that adds 20 ms to each round trip; over a line of
fixed rate, and over one that is as fast as the relay. Both ways take turns, in the same run, and must give the same bytes; so must a fit
on the folder itself, whose time stands beside them.
"""
import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli/zoo"))
from peers import Nginx, Relay  # noqa: E402
from support import read_folder  # noqa: E402

BUCKET, PREFIX = "bucket", "dump"
DOWNLOAD = """
import sys, boto3, pathlib
from botocore import UNSIGNED
from botocore.config import Config
from concurrent.futures import ThreadPoolExecutor
endpoint, source, target, *keys = sys.argv[1:]
s3 = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1",
                  config=Config(signature_version=UNSIGNED, s3={"addressing_style": "path"}, max_pool_connections=32))
def fetch(key):
    path = pathlib.Path(target, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    s3.download_file(source, f"dump/{key}", str(path))
with ThreadPoolExecutor(3) as pool:  # each file in parts by ten threads, as is boto3's default
    list(pool.map(fetch, keys))
"""


def timed(command, env):
    """(wall seconds, peak MB) of a command that must succeed."""
    started = time.monotonic()
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen([str(part) for part in command], env=env, stdout=said, stderr=said)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != 0:
            said.seek(0)
            sys.exit(f"{command[:3]}: {said.read().decode()}")
    return time.monotonic() - started, usage.ru_maxrss / 1024


class Bench:
    def __init__(self, options, folder):
        self.oscar, self.folder, self.recipe = options.oscar.resolve(), folder, options.fit
        self.env = {"PATH": os.environ["PATH"], "HOME": str(folder)}
        self.dump = folder / "www" / BUCKET / PREFIX
        subprocess.run([sys.executable, Path(__file__).with_name("synthetic_dump.py"), self.dump, "--manifest", "--layers",
                        str(options.layers), "--tokens", str(options.tokens)], check=True, stdout=subprocess.DEVNULL)
        self.keys = [str(path.relative_to(self.dump)) for path in sorted(self.dump.rglob("*")) if path.is_file()]
        self.bytes = sum((self.dump / key).stat().st_size for key in self.keys)

    def fit(self, place, env=None):
        shutil.rmtree(self.folder / "set", ignore_errors=True)
        command = [self.oscar, "fit", "--quiet", "--dump", place, "--out", self.folder / "set", *self.recipe]
        return timed(command, {**self.env, **(env or {})})

    def files(self):
        return read_folder(self.folder / "set")

    def local(self):
        return self.fit(self.dump), self.files()

    def streamed(self, endpoint):
        return self.fit(f"s3://{BUCKET}/{PREFIX}", {"AWS_ENDPOINT_URL_S3": endpoint}), self.files()

    def downloaded(self, endpoint):
        copy = self.folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        download = timed([sys.executable, "-c", DOWNLOAD, endpoint, BUCKET, copy, *self.keys], self.env)
        fit = self.fit(copy)
        shutil.rmtree(copy)
        return (download[0], fit[0], max(download[1], fit[1])), self.files()

    def line(self, url, delay, rate, runs):
        """Medians over the runs, the two ways in turns."""
        expected = self.local()[1]
        streams, downloads, locals_ = [], [], []
        with Relay(url, delay / 2, rate) as relay:
            for _ in range(runs):
                for times, way in ((streams, lambda: self.streamed(relay.url)), (downloads, lambda: self.downloaded(relay.url)),
                                   (locals_, self.local)):
                    figures, files = way()
                    if files != expected:
                        sys.exit("the sets differ")
                    times.append(figures)
        middle = lambda values: round(statistics.median(values), 2)
        stream, download, fit = (middle(t[0] for t in streams), middle(t[0] for t in downloads), middle(t[1] for t in downloads))
        both = middle(t[0] + t[1] for t in downloads)
        return {"line_bytes_per_s": rate, "round_trip_ms": 1000 * delay, "runs": runs,
                "stream": {"wall_s": stream, "peak_mb": middle(t[1] for t in streams), "bytes_per_s": round(self.bytes / stream)},
                "download_then_fit": {"wall_s": both, "download_s": download, "fit_s": fit, "peak_mb": middle(t[2] for t in downloads),
                                      "disk_bytes": self.bytes},
                "fit_on_the_folder": {"wall_s": middle(t[0] for t in locals_), "peak_mb": middle(t[1] for t in locals_)},
                "times_faster": round(both / stream, 2)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--oscar", type=Path, default=Path("build/oscar"))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=30000)
    parser.add_argument("--round-trip-ms", type=float, default=20)
    parser.add_argument("--line-mb-per-s", type=float, default=100)
    parser.add_argument("--fit", nargs="*", default=["--recipe", "oscar"], help="options of oscar fit")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="oscar-bench-") as name:
        folder = Path(name)
        bench = Bench(options, folder)
        with Nginx(folder / "nginx", folder / "www") as nginx:
            delay = options.round_trip_ms / 1000
            results = {"machine": f"{os.cpu_count()} cores, {platform.machine()}", "load_at_start": os.getloadavg()[0],
                       "fit": options.fit, "layers": options.layers, "tokens": options.tokens, "bytes": bench.bytes,
                       "limited_line": bench.line(nginx.url, delay, options.line_mb_per_s * 1e6, options.runs),
                       "fast_line": bench.line(nginx.url, delay, None, options.runs)}
    text = json.dumps(results, indent=1) + "\n"
    print(text, end="")
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
