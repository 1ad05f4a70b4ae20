# SPDX-License-Identifier: MIT
"""How long a pull takes over a line with delay, beside the Hugging Face Hub's own client on the same files:

    chrt -r 1 .venv/bin/python tests/bench/bench_pull.py --oscar build/oscar --out tests/bench/results/pull.json

Where other programs run too, they slow whoever needs more of the processor, which is the Hub's client: hence chrt.

A hub on localhost serves a set with two rotation files of Qwen3-8B's size (4.8 MB) behind a relay that adds 20 ms each way, to the API
and to its storage alike; each run starts with an empty cache. "foreign" are the same two files without a manifest, of which a set has
to be made. Then one large file over a relay that passes a fixed number of bytes a second.
"""
import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli/zoo"))
from peers import Hub, RangeServer, Relay  # noqa: E402
from support import make_set, read_folder  # noqa: E402

ROTATION_BYTES = 2_399_261
REPOSITORY, FOLDER, FOREIGN = "someone/RotationZoo", "Qwen3-8B", "bare/Qwen3-8B"


def timed(command, env):
    """(wall seconds, processor seconds) of a command that must succeed."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run([str(part) for part in command], env=env, capture_output=True, text=True)
    wall, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit(f"{command}: {done.stderr}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def rotation_files(oscar, rotations):
    """Two real .pt files of the size of Qwen3-8B's, 36 layers of 128 x 128, written by torch; and the set made of them."""
    import torch

    torch.manual_seed(1)
    bare = rotations / "bare"
    bare.mkdir()
    for side, objective in (("k", "qqt_r_h_pbr"), ("v", "sst_r_h_pbr")):
        layers = {i: {"layer_id": i, "rotation": torch.linalg.qr(torch.randn(128, 128))[0].contiguous(),
                      "eigenvalues": torch.sort(torch.rand(128))[0]} for i in range(36)}
        torch.save({"format_version": 1, "objective": objective, "source_grouping": "layer", "layers": layers},
                   bare / f"{side}_rotation_{objective}.pt")
    subprocess.run([oscar, "convert", bare, rotations / "made", "--format", "pt", "--quiet"], check=True)
    files = {f"{FOREIGN}/{name}": content for name, content in read_folder(bare).items()}
    return files | {f"{FOLDER}/{name}": content for name, content in read_folder(rotations / "made").items()}


def small_set(oscar, runs, delay, folder):
    files = rotation_files(oscar, folder)
    results = {"bytes": sum(len(content) for name, content in files.items() if name.startswith(FOLDER)), "round_trip_ms": 2000 * delay, "runs": runs}
    hf = Path(sys.executable).with_name("hf")
    plain = {"PATH": os.environ["PATH"], "HOME": str(folder), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
             "HF_HUB_DISABLE_UPDATE_CHECK": "1"}
    with Hub(REPOSITORY, files) as hub, Relay(hub.api.url, delay) as api, Relay(hub.storage.url, delay) as storage:
        hub.storage_url = storage.url
        commands = {
            "oscar": [oscar, "pull", f"hf://{REPOSITORY}/{FOLDER}", "--quiet"],
            "oscar_foreign": [oscar, "pull", f"hf://{REPOSITORY}/{FOREIGN}", "--quiet"],
            "hf": [hf, "download", REPOSITORY, "--include", f"{FOLDER}/*", "--quiet"],
        }
        times = {name: [] for name in commands}
        for _ in range(runs + 1):  # the first warms the page cache
            for name, command in commands.items():
                cache = folder / "cache"
                shutil.rmtree(cache, ignore_errors=True)
                env = {**plain, "HF_ENDPOINT": api.url, "OSCAR_CACHE": str(cache), "HF_HOME": str(cache)}
                times[name].append(timed(command, env))
    for name, measured in times.items():
        results[name] = {"wall_s": statistics.median(wall for wall, _ in measured[1:]),
                         "cpu_s": statistics.median(cpu for _, cpu in measured[1:])}
    results["times_faster"] = results["hf"]["wall_s"] / results["oscar"]["wall_s"]
    return results


def zoo_set(oscar, runs, delay, folder):
    """The same bytes as a set in a zoo of ours."""
    zoo = folder / "zoo"
    make_set(folder / "set", 1, keys_size=2 * ROTATION_BYTES)
    env = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    subprocess.run([oscar, "publish", folder / "set", "--zoo", zoo, "--name", "a/b", "--quiet"], check=True, env=env)
    times = []
    with RangeServer(read_folder(zoo)) as url, Relay(url, delay) as relay:
        for _ in range(runs + 1):
            shutil.rmtree(folder / "cache", ignore_errors=True)
            times.append(timed([oscar, "pull", "a/b", "--zoo", relay.url, "--quiet"], {**env, "OSCAR_CACHE": str(folder / "cache")}))
        hits = [timed([oscar, "pull", "a/b", "--zoo", relay.url, "--quiet"], {**env, "OSCAR_CACHE": str(folder / "cache")})
                for _ in range(runs)]
    return {"wall_s": statistics.median(wall for wall, _ in times[1:]), "cache_hit_wall_ms": 1000 * min(w for w, _ in hits),
            "cache_hit_cpu_ms": 1000 * statistics.median(cpu for _, cpu in hits)}


def large_file(oscar, size, rate, folder):
    zoo = folder / "large"
    make_set(folder / "large-set", 2, keys_size=size)
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "OSCAR_CACHE": str(folder / "large-cache")}
    subprocess.run([oscar, "publish", folder / "large-set", "--zoo", zoo, "--name", "a/b", "--quiet"], check=True, env=env)
    with RangeServer(read_folder(zoo), block=1 << 20) as url, Relay(url, 0.02, rate) as relay:
        wall, cpu = timed([oscar, "pull", "a/b", "--zoo", relay.url, "--quiet"], env)
    return {"bytes": size, "line_bytes_per_s": rate, "wall_s": wall, "cpu_s": cpu, "share_of_line": size / wall / rate}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--oscar", type=Path, default=Path("build/oscar"))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--delay-ms", type=float, default=20, help="one way")
    parser.add_argument("--large-mb", type=int, default=1000)
    parser.add_argument("--line-mb-per-s", type=float, default=40)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    oscar = options.oscar.resolve()
    with tempfile.TemporaryDirectory(prefix="oscar-bench-") as name:
        folder = Path(name)
        results = {"machine": f"{os.cpu_count()} cores, {platform.machine()}", "load_at_start": os.getloadavg()[0],
                   "real_time_priority": os.sched_getscheduler(0) != os.SCHED_OTHER,
                   "small_set": small_set(oscar, options.runs, options.delay_ms / 1000, folder),
                   "set_in_a_zoo": zoo_set(oscar, options.runs, options.delay_ms / 1000, folder),
                   "large_file": large_file(oscar, options.large_mb * 1_000_000, options.line_mb_per_s * 1e6, folder)}
    zoo = results["set_in_a_zoo"]
    zoo["times_faster_than_hf"] = results["small_set"]["hf"]["wall_s"] / zoo["wall_s"]
    text = json.dumps(results, indent=1) + "\n"
    print(text, end="")
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
