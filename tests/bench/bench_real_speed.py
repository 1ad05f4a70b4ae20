# SPDX-License-Identifier: MIT
"""Times three jobs on a real language model: a fit by one recipe, the search of `auto`, and `verify` of one set.

bench_real_speed.py --model FILE.gguf --texts DIR [--binary build/oscar] [--device cuda] [--out FILE.json] [--only NAME ...]
DIR is what real_model_texts.py wrote; `scripts/real_model.sh --fetch-only` fetches model and texts. Of each job the
document has wall seconds, processor seconds and the largest memory that was resident. The load average says whether
something else ran: then only processor seconds mean anything. Rows that are not asked for keep what they had.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy
import provenance

ROOT = Path(__file__).resolve().parents[2]
FIT_TOKENS, VERIFY_TOKENS = 24576, 8192


def timed(command):
    """Wall and processor seconds and the peak memory of a process that must end with 0 or, from verify, with 3."""
    load, begin = os.getloadavg()[0], time.perf_counter()
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in (0, 3):
            errors.seek(0)
            sys.exit(f"{command}: exit status {process.returncode}\n{errors.read().decode()[-2000:]}")
    return {"wall_seconds": round(time.perf_counter() - begin, 1), "processor_seconds": round(usage.ru_utime + usage.ru_stime, 1),
            "peak_megabytes": round(usage.ru_maxrss / 1024), "load_before": round(load, 1)}


def measured_text(texts, path):
    """As many tokens as `verify` is timed on, in sequences of equal length, one of each domain."""
    rows = [numpy.load(file)[0] for file in sorted(texts.glob("*_measure.npy"))]
    numpy.save(path, numpy.stack([row[:VERIFY_TOKENS // len(rows)] for row in rows]))
    return path


def figures(report):
    """What must not get worse while the times get better."""
    model = next(method["model"] for method in json.loads(report.read_text())["methods"] if method["kind"] == "this")
    return {name: model[name] for name in ("kld_mean", "ppl_ratio", "same_top")}


class Jobs:
    def __init__(self, options, work):
        self.options, self.work = options, work
        self.text = measured_text(options.texts, work / "measure.npy")
        self.report = work / "report.json"

    def fit(self, name, *arguments):
        return timed([self.options.binary, "fit", "--model", self.options.model, "--tokens", self.options.texts / "calibrate.npy",
                      "--max-tokens", FIT_TOKENS, *arguments, "--out", self.set_of(name), "--force", "--quiet",
                      "--device", self.options.device])

    def verify(self, name):
        return timed([self.options.binary, "verify", self.set_of(name), "--model", self.options.model, "--tokens", self.text,
                      "--max-tokens", 0, "--compare", "none", "--no-record", "--no-default-limits", "--quiet",
                      "--device", self.options.device, f"--json={self.report}"])

    def set_of(self, name):
        return self.work / f"set-{name}"

    def run(self):
        """One job after the other: yields its name, what it took, and how good its set is."""
        for name, arguments in {"fit_oscar": ("--recipe", "oscar"), "fit_auto": ("--recipe", "auto")}.items():
            if name in self.options.only:
                took = self.fit(name, *arguments)
                verified = self.verify(name)
                yield name, {**took, "set": figures(self.report)}
                if name == "fit_oscar":
                    yield "verify_one_set", verified


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--binary", type=Path, default=ROOT / "build/oscar")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--gpu", help="what the document says of the GPU")
    parser.add_argument("--out", type=Path, default=ROOT / "tests/bench/results/real_speed.json")
    parser.add_argument("--only", nargs="*", default=["fit_oscar", "fit_auto"], help="fit_oscar (and verify), fit_auto")
    options = parser.parse_args()
    document = json.loads(options.out.read_text()) if options.out.exists() else {}
    document.update(what="tests/bench/bench_real_speed.py", **provenance.machine(), model=options.model.name,
                    fit_tokens=FIT_TOKENS, verify_tokens=VERIFY_TOKENS, **({"gpu": options.gpu} if options.gpu else {}))
    with tempfile.TemporaryDirectory() as folder:
        for name, took in Jobs(options, Path(folder)).run():
            document[name] = {**took, "commit": provenance.commit()}
            options.out.write_text(json.dumps(document, indent=1) + "\n")
            print(name, document[name], file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
