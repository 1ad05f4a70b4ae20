# SPDX-License-Identifier: MIT
"""Fits sets to a real language model and measures their parts on other text of five domains.

bench_real_model.py --model FILE.gguf --texts DIR [--out FILE.json]     scripts/real_model.sh fetches both and runs this
bench_real_model.py --render FILE.json [--table main]                   prints the tables of a run that was kept
DIR is what real_model_texts.py wrote. A set is fitted on the calibration part of the texts and measured on the measuring
part: KLD by domain and by position, needles, quotations. --part long measures the sets that are there on texts of 16K and
32K tokens, and --part tasks by the tasks of real_model_tasks.py. --part domains fits on one domain at a time instead, to
see whether a calibration on one serves the others. A call goes on where an earlier one ended.
"""
import argparse
import json
import math
import subprocess
import sys
import time
from pathlib import Path

import numpy
import provenance
from real_model_tasks import KINDS
from real_model_tables import TABLES, render

ROOT = Path(__file__).resolve().parents[2]
# Sets: the arguments by which each is fitted, and the rows that its parts give. A word that begins with @ names a file in --work.
PUBLISHED = "`oscar`, clip 0.96 / 0.92 (published)"
SETS = [(["--keys", "after-rope", "--save-stats", "@after"], {"coded": "`coded`, 2.25 bits", "with_means": "`stretch`, fisher, centred", "rotations": "`oscar`, fitted clip"}),
        (["--recipe", "oscar", "--clip", "0.96,0.92"], {"rotations": PUBLISHED}),
        (["--recipe", "oscar", "--center", "--granularity", "head"], {"with_means": "`oscar`, fitted clip, centred, per head"}),
        (["--recipe", "coded", "--keys", "before-rope", "--save-stats", "@before"], {"coded": "`coded`, 2.25 bits, before RoPE"}),
        *[(["--recipe", "coded", "--bits", bits, "--stats", f"@{keys}"], {"coded": f"`coded`, {bits} bits{what}"})
          for keys, what, widths in (("after", "", ("2.5", "1.75", "1.5", "1.25")), ("before", ", before RoPE", ("1.75", "1.5", "1.25", "4")))
          for bits in widths],
        (["--recipe", "coded", "--keys", "before-rope", "--seq-len", "2048"], {"coded": "`coded`, 2.25 bits, before RoPE, fitted on 2,048 tokens"})]
ROWS = [row for _, rows in SETS for row in rows.values()]
BASELINES = {"bf16": "bf16", "naive": "naive INT2", "hadamard_clip": "Hadamard, clip 0.96 / 0.92", "int3": "Hadamard INT3",
             "int4": "Hadamard INT4", "fp8": "fp8", "q8_0": "q8_0"}
FEW_BASELINES = {"short": ["bf16", "int4", "fp8", "q8_0"], "quick": ["bf16", "hadamard_clip", "int4"]}
SHORT_DOMAINS = ["code", "dialogue", "prose"]
CROSSED = ("rotations", "coded")  # parts that are fitted on one domain at a time
LONG = 8192
NEEDLES = {"16k": "16k", "32k": "30k"}  # of the texts of each length


class Bench:
    def __init__(self, options):
        self.options, self.texts = options, options.texts
        about = json.loads((self.texts / "texts.json").read_text())
        self.domains = SHORT_DOMAINS if options.size == "short" else sorted(about["domains"])
        self.work = options.work
        self.work.mkdir(parents=True, exist_ok=True)
        self.document = json.loads(options.out.read_text()) if options.out.exists() else {}
        self.document.update(what="tests/bench/bench_real_model.py", commit=options.commit or provenance.commit(),
                             **provenance.machine(), device=options.device, gpu=options.gpu, model=options.model.name,
                             texts=about, windows={"sink": 64, "recent": 256}, **self.sizes())

    def sizes(self):
        full = {"calibration_tokens": 32768, "sequences_per_domain": 2, "sequence_length": 4096, "queries_per_layer": 2048,
                "needles_2k": 96, "quotes_2k": 48, "needles_7k": 24, "quotes_7k": 12, "long_sequences": 4, "longest_sequences": 3}
        short = {**full, "queries_per_layer": 256, "needles_2k": 24, "quotes_2k": 0, "needles_7k": 0, "quotes_7k": 0, "long_sequences": 0,
                 "longest_sequences": 1}
        quick = {**short, "calibration_tokens": 8192, "sequences_per_domain": 1, "sequence_length": 1638, "needles_2k": 16, "quotes_2k": 8}
        return {"full": full, "short": short, "quick": quick}[self.options.size]

    def oscar(self, *arguments):
        begin = time.perf_counter()
        command = [str(word) for word in (self.options.binary, *arguments, "--quiet", "--device", self.options.device)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode not in (0, 3):  # 3: measured, and rejected
            raise SystemExit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stderr[-2000:]}")
        return time.perf_counter() - begin

    def fit(self, tokens, arguments, folder):
        """Fits a set, on tokens or on saved statistics; returns seconds."""
        self.folder = folder
        words = [self.work / f"{word[1:]}.stats" if word.startswith("@") else word for word in arguments]
        data = [] if "--stats" in arguments else \
            ["--model", self.options.model, "--tokens", tokens, "--max-tokens", self.document["calibration_tokens"]]
        return self.oscar("fit", *data, *words, "--out", folder, "--force")

    def verify(self, compare, *data):
        """Seconds, and the figures of methods and of the set's parts, by name."""
        report = self.work / "verify.json"
        queries = ["--max-queries", self.document["queries_per_layer"]] if "--tokens" in data else []
        seconds = self.oscar("verify", self.folder, "--model", self.options.model, "--compare", compare, "--no-record", "--no-default-limits",
                             *queries, *data, f"--json={report}")
        print(f"  {Path(data[1]).stem}, {compare}: {seconds:.1f} s", file=sys.stderr, flush=True)
        return seconds, {method["name"]: method for method in json.loads(report.read_text())["methods"]}

    @staticmethod
    def tokens(file):
        return ["--tokens", file, "--max-tokens", 0]

    def probes(self, kind, length):
        """Options for needles or quotations of a length; none if none are asked for."""
        count = self.document[f"{kind}_{length}"]
        return [*self.answers(kind.removesuffix("s"), f"{kind}_{length}"), f"--max-{kind}", count] if count else []

    def answers(self, option, name):
        return [f"--{option}", self.texts / f"{name}.npy", f"--{option}-answers", self.texts / f"{name}_answers.npy"]

    def measure(self, compare):
        """Figures of every method and of the set's parts."""
        reports, seconds = {}, 0
        for domain in self.domains:
            more = [*self.probes("needles", "2k"), *self.probes("quotes", "2k")] if domain == self.domains[0] else []
            took, reports[domain] = self.verify(compare, *self.tokens(self.texts / f"{domain}_measure.npy"), *self.part_of_domain(), *more)
            seconds += took
        if self.document["long_sequences"]:
            took, reports["long"] = self.verify(compare, *self.tokens(self.long_text()), "--seq-len", LONG,
                                                *self.probes("needles", "7k"), *self.probes("quotes", "7k"))
            seconds += took
        # Beside needles bfloat16 is measured without being asked for.
        named = [name for name in reports[self.domains[0]] if all(name in report for report in reports.values())]
        return seconds, {name: self.figures({part: report[name] for part, report in reports.items()}) for name in named}

    def part_of_domain(self):
        return ["--sequences", self.document["sequences_per_domain"], "--seq-len", self.document["sequence_length"]]

    def long_text(self):
        """Sequences of 8,192 tokens, each of one domain: two of the measuring part's sequences joined."""
        path = self.work / "long.npy"
        if not path.exists():
            rows = [numpy.load(self.texts / f"{domain}_measure.npy")[:2] for domain in self.domains]
            joined = [numpy.concatenate([row[0], row[1][1:]]) for row in rows if len(row) == 2]
            shortest = min(map(len, joined))
            numpy.save(path, numpy.stack([row[:shortest] for row in joined[:self.document["long_sequences"]]]))
        return path

    def figures(self, parts):
        models = {domain: parts[domain]["model"] for domain in self.domains}
        positions = {domain: model["positions"] for domain, model in models.items()}
        mean = lambda name: sum(positions[d] * models[d][name] for d in models) / sum(positions.values())
        error = math.hypot(*(positions[d] * models[d]["kld_error"] for d in models)) / sum(positions.values())
        first = parts[self.domains[0]]
        out = {"bits": {name: first["bits_per_element"][name] for name in ("fp16_params", "fp32_params")},
               "kld": mean("kld_mean"), "kld_error": error, "same_top": mean("same_top"),
               "ppl": math.exp(sum(positions[d] * math.log(models[d]["ppl"]) for d in models) / sum(positions.values())),
               "kld_by_domain": {d: models[d]["kld_mean"] for d in models}}
        for name in ("output_rel_error", "softmax_kl"):
            out[name] = sum(parts[d]["attention"][name] for d in models) / len(models)
        for length, part in (("2k", first), ("7k", parts.get("long"))):
            if part:
                kept = {name: part["model"][name] for name in ("needle_hits", "needles", "needle_nll") if name in part["model"]}
                out[f"probes_{length}"] = {**kept, **(part["model"]["quotes"] or {})}
        if "long" in parts:
            out["kld_by_position"] = [[p["begin"], p["end"], p["kld_mean"]] for p in parts["long"]["model"]["kld_by_position"]]
        return out

    def keep(self, table, row):
        rows = [kept for kept in self.document.get(table, []) if kept["name"] != row["name"] or kept.get("on") != row.get("on")]
        places = {name: place for place, name in enumerate([*BASELINES.values(), *ROWS])}
        self.document[table] = sorted([*rows, {**row, "commit": self.document["commit"]}], key=lambda each: places.get(each["name"], len(places)))
        self.options.out.write_text(json.dumps(self.document, indent=1) + "\n")
        print(row["name"], row.get("on", ""), f"KLD {row['kld']:.4f}" if "kld" in row else "", f"{row.get('fit_seconds', 0):.1f} s",
              f"{row.get('verify_seconds', 0):.1f} s", file=sys.stderr, flush=True)

    def kept(self, table, name, on=None):
        """The row that an earlier call measured with the same program and as many prompts; {} if none did."""
        for row in self.document.get(table, []):
            same = row["name"] == name and row.get("on") == on and row["commit"] == self.document["commit"]
            if same and row.get("prompts", self.options.prompts) == self.options.prompts:
                return row
        return {}

    def has(self, table, name, on=None):
        """Whether an earlier call measured all of this row."""
        row = self.kept(table, name, on)
        return bool(row) and len(row.get("hits", KINDS)) == len(KINDS)

    def is_asked_for(self, name):
        return not self.options.only or name in self.options.only

    def recipes(self):
        for number, (arguments, rows) in enumerate(SETS):
            if all(self.has("recipes", row) or not self.is_asked_for(row) for row in rows.values()):
                continue
            folder = self.work / f"set-{number}"
            fitted = self.fit(self.texts / f"calibrate{'_8k' if self.options.size == 'quick' else ''}.npy", arguments, folder)
            first = "baselines" not in self.document
            baselines = FEW_BASELINES.get(self.options.size, list(BASELINES))
            seconds, methods = self.measure(",".join(baselines) if first and baselines else "none")
            for baseline, title in BASELINES.items():
                if baseline in methods:
                    self.keep("baselines", {"name": title, **methods[baseline]})
            for part, row in rows.items():
                self.keep("recipes", {"name": row, "part": part, "arguments": " ".join(arguments), "set": folder.name,
                                      "fit_seconds": fitted, "verify_seconds": seconds, **methods[part]})

    def at_lengths(self, table, measure):
        """Keeps what measure(length, compare, names) yields of all methods, for the lengths that are asked for and the sets that recipes() left."""
        for number, (_, rows) in enumerate(SETS):
            for length in self.options.lengths:
                self.folder = self.work / f"set-{number}"
                if not self.folder.exists() or all(self.has(table, row, length) or not self.is_asked_for(row) for row in rows.values()):
                    continue
                named = {**BASELINES, **rows}
                others = [name for name, title in BASELINES.items() if number == 0 and self.is_asked_for(title)]
                for methods in measure(length, ",".join(others) or "none", named):
                    for method, row in methods.items():
                        self.keep(table, {"name": named[method], "on": length, **row})

    def long(self, length, compare, _):
        seconds, methods = self.verify(compare, *self.tokens(self.texts / f"long_{length}.npy"), "--seq-len", int(length[:-1]) * 1024,
                                       "--sequences", self.document["longest_sequences"],
                                       *self.answers("needle", f"needles_{NEEDLES[length]}"), "--max-needles", self.options.prompts)
        yield {name: {"kld": each["model"]["kld_mean"], "kld_by_position": [[p["begin"], p["end"], p["kld_mean"]] for p in each["model"]["kld_by_position"]],
                      "needle_hits": each["model"]["needle_hits"], "needles": each["model"]["needles"], "verify_seconds": seconds}
               for name, each in methods.items()}

    def tasks(self, length, compare, names):
        """One kind after the other, but for those that all rows have which are asked for."""
        hits = {name: self.kept("tasks", title, length).get("hits", {}) for name, title in names.items()}
        asked = [name for name, title in names.items() if self.is_asked_for(title)]
        for kind in KINDS:
            if all(kind in hits[name] for name in asked):
                continue
            methods = self.verify(compare, *self.answers("needle", f"{kind}_{length}"), "--max-needles", self.options.prompts)[1]
            for name, each in methods.items():
                hits[name] = {**hits[name], kind: each["model"]["needle_hits"]}
            yield {name: {"hits": hits[name], "prompts": each["model"]["needles"]} for name, each in methods.items()}

    def domains_crossed(self):
        for domain in self.domains:
            if all(self.has("crossed", SETS[0][1][part], domain) for part in CROSSED):
                continue
            fitted = self.fit(self.texts / f"{domain}_calibrate.npy", ["--for", "vllm,sglang-v1"], self.work / "set-of-a-domain")
            measured = {other: self.verify("none", *self.tokens(self.texts / f"{other}_measure.npy"), *self.part_of_domain())[1]
                        for other in self.domains}
            for part in CROSSED:
                by_domain = {other: methods[part]["model"]["kld_mean"] for other, methods in measured.items()}
                self.keep("crossed", {"name": SETS[0][1][part], "on": domain, "fit_seconds": fitted, "kld_by_domain": by_domain,
                                      "kld": sum(by_domain.values()) / len(by_domain)})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--texts", type=Path, help="the folder that real_model_texts.py wrote")
    parser.add_argument("--out", type=Path, default=ROOT / "out/real_model/real_model.json")
    parser.add_argument("--work", type=Path, default=ROOT / "out/real_model/sets", help="for sets and reports")
    parser.add_argument("--binary", type=Path, default=ROOT / "build/oscar")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--part", choices=("recipes", "long", "tasks", "domains", "all"), default="all")
    parser.add_argument("--lengths", nargs="*", default=["16k", "32k"], help="of --part long, and of tasks, which have 4k, too")
    parser.add_argument("--prompts", type=int, default=24, help="of each task and length, and of needles of --part long, at most")
    parser.add_argument("--size", choices=("full", "short", "quick"), default="full", help="short: for a large model; quick: for two CPU cores")
    parser.add_argument("--only", nargs="*", help="names of rows; sets without one of them keep theirs")
    parser.add_argument("--commit", default="", help="the commit of the binary; default: this checkout's")
    parser.add_argument("--gpu", default="", help="the GPU's name, driver and memory")
    parser.add_argument("--render", type=Path)
    parser.add_argument("--table", choices=TABLES, help="with --render: one of the tables")
    options = parser.parse_args()
    if options.render:
        return print(render(json.loads(options.render.read_text()), options.table))
    if not options.model or not options.texts:
        parser.error("give --model and --texts, or --render")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    bench = Bench(options)
    if options.part in ("recipes", "all"):
        bench.recipes()
    if options.part in ("long", "tasks"):
        bench.at_lengths(options.part, getattr(bench, options.part))
    if options.part == "domains" or options.part == "all" and options.size == "full":
        bench.domains_crossed()
    print(render(bench.document))


if __name__ == "__main__":
    main()
