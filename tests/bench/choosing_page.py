#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The tables and pictures of zoo/choosing/README.md, the table of zoo/README.md, and what README.md claims, from the results that are kept here
and from the sets of the zoo.

choosing_page.py            compares; exit status 1 and the names of the files that differ
choosing_page.py --write    writes them
"""
import io
import json
import sys
from pathlib import Path

import matplotlib
import numpy
from safetensors.numpy import load_file

matplotlib.use("svg")
from matplotlib import pyplot  # noqa: E402
from real_model_tables import bits, hits, table  # noqa: E402

# The same text and figures make the same bytes.
matplotlib.rcParams.update({"svg.hashsalt": "oscar", "svg.fonttype": "none", "font.size": 9})

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "tests/bench/results"
PAGE, README, ZOO = ROOT / "zoo/choosing/README.md", ROOT / "README.md", ROOT / "zoo/README.md"
SAMPLE_SET = ROOT / "zoo/sample/qwen3-2m/latest"

EVERYWHERE, WITH_MEANS, OURS = "SGLang, llama.cpp", "SGLang (newer trees)", "vLLM, transformers"
REAL = "real_model_qwen_h200.json"
MODELS = {"Qwen2.5-Coder-1.5B": REAL, "Gemma 3 270M": "real_model_gemma_h200.json", "SmolLM2-135M": "real_model_smollm2_h200.json"}
READ_BY = {"bf16": "every server", "fp8": "vLLM and others, scale 1", "q8_0": "llama.cpp",
           "Hadamard, clip 0.96 / 0.92": EVERYWHERE, "Hadamard INT3": "(to compare)", "Hadamard INT4": "(to compare)",
           "`oscar`, clip 0.96 / 0.92 (published)": EVERYWHERE, "`oscar`, fitted clip": EVERYWHERE,
           "`oscar`, fitted clip, centred, per head": WITH_MEANS, "`stretch`, fisher, centred": WITH_MEANS,
           **{f"`coded`, {width} bits{where}": OURS for width in ("4", "2.5", "2.25", "1.75", "1.5", "1.25") for where in ("", ", before RoPE")}}
CASES = {"96/8": "96 query heads"}
CONTEXTS, IN_WINDOWS = (512, 2048, 8192, 32768, 131072), 320


def kept(name):
    return json.loads((RESULTS / name).read_text())


def source(name):
    return f"[{name}](../../tests/bench/results/{name})"


def quality():
    """What each cache does to three models, where it was measured on the two smaller ones."""
    documents = {model: kept(name) for model, name in MODELS.items()}
    rows = {model: {row["name"]: row for row in [*document["baselines"], *document["recipes"]]} for model, document in documents.items()}
    names = [name for name in READ_BY if name in rows["SmolLM2-135M"]]
    lines = [[name, *(f"{rows[model][name]['kld']:.4f}" if name in rows[model] else "" for model in MODELS),
              *(hits(rows[model][name]["probes_2k"]) if name in rows[model] else "" for model in MODELS)] for name in names]
    head = ["cache", *(f"KLD, {model}" for model in MODELS), *(f"needles, {model}" for model in MODELS)]
    sources = " and ".join(f"{source(MODELS[model])} (commit {documents[model]['commit'][:7]})" for model in list(MODELS)[1:])
    return f"From {sources}, H200, and the table above:\n\n{table(head, lines)}\n"


def real_model():
    """Every cache on a model of a size that people serve; at 32K those that were measured there."""
    document = kept(REAL)
    long = {row["name"]: f"{row['kld']:.4f}" for row in document["long"] if row["on"] == "32k"}
    lines = [[row["name"], READ_BY[row["name"]], bits(row), f"{row['ppl']:.3f}", f"{row['kld']:.4f}", f"{row['same_top']:.3f}",
              hits(row["probes_2k"]), long.get(row["name"], "")]
             for row in sorted([*document["baselines"], *document["recipes"]], key=lambda row: row["kld"])]
    head = ["cache", "read by", "bits, fp16 / fp32 parameters", "ppl", "KLD", "same top", "needles 2K", "KLD, 32K"]
    long = " and ".join(sorted({row["commit"][:7] for row in document["long"]}))
    return f"From {source(REAL)}, {document['gpu'].split(',')[0]}, commit {document['commit'][:7]}, at 32K {long}:\n\n{table(head, lines)}\n"


def context_bits():
    """Computed: sink and recent tokens in bfloat16, all others at the bits of a packed value."""
    lines = [[name, *(f"{(IN_WINDOWS * 16 + (context - IN_WINDOWS) * packed) / context:.2f}" for context in CONTEXTS)]
             for name, packed in (("INT2, heads of 64, fp32 parameters", 3), ("INT2, heads of 128, fp32 parameters", 2.5),
                                  ("coded, 2.25 bits", 2.25), ("coded, 1.5 bits", 1.5))]
    return table(["bits a value at a context of", *(f"{n // 1024}K" if n >= 1024 else str(n) for n in CONTEXTS)], lines) + "\n"


def words_of_case(case):
    batch, length, *more = case.removeprefix("B=").split(", ")
    sequences = "1 sequence" if batch == "1" else f"{batch} sequences"
    return ", ".join([f"{sequences} of {length}", *(CASES.get(word, word) for word in more)])


def decode_speed():
    """A line for each batch, with bfloat16 where it was timed."""
    document, plans = kept("coded_attention_h200.json"), ("2 bits", "Qwen2.5-Coder-1.5B, 2.25 bits", "Qwen2.5-Coder-1.5B, 1.5 bits")
    us = {(row["case"], row["plan"]): row["microseconds"] for row in document["cases"] if "plan" in row}
    bf16 = {row["case"]: min(row["bf16_microseconds"].values()) for row in document["cases"] if "bf16_microseconds" in row}
    columns = [plan + where for where in ("", ", before RoPE") for plan in plans]
    lines = [[words_of_case(case), f"{peer:.1f}", *(f"{us[case, plan]:.1f} ({peer / us[case, plan]:.1f})" for plan in columns)]
             for case, peer in bf16.items()]
    head = ["us of one decode step of a layer (times as fast)", "bfloat16", *(plan.replace("Qwen2.5-Coder-1.5B", "Qwen") for plan in columns)]
    commits = " and ".join(sorted({row.get("commit", document["commit"])[:7] for row in document["cases"]}))
    return f"From {source('coded_attention_h200.json')}, {document['gpu'].removeprefix('NVIDIA ')}, commit{'s' if ' and ' in commits else ''} {commits}:\n\n{table(head, lines)}\n"


def model_speed():
    document = kept("cache_h100.json")
    lines = []
    for row in document["speed"]:
        ways = [max((row[way] for way in ("bf16", "bf16, flash")), key=lambda found: found.get("graph_tokens_per_s", 0)), row["coded"]]
        lines.append([f"{row['context'] // 1024}K", str(row["batch"]),
                      *(f"{found['graph_tokens_per_s']:.0f}" if "graph_tokens_per_s" in found else "no room" for found in ways),
                      *(f"{found['cache_bytes'] / 1e9:.1f}" if "cache_bytes" in found else "" for found in ways)])
    names = ("bfloat16", "coded")
    head = ["context", "sequences", *(f"tokens/s, {name}" for name in names), *(f"GB, {name}" for name in names)]
    return f"From {source('cache_h100.json')}, {document['gpu'].split(',')[0]}, commit {document['commit'][:7]}:\n\n{table(head, lines)}\n"


def claims():
    """README's first figures, each of the coded part but where it says otherwise."""
    decode = kept("coded_attention_h200.json")
    case = [row for row in decode["cases"] if row["case"] == "B=32, 32K"]
    us = next(row["microseconds"] for row in case if row.get("plan") == "Qwen2.5-Coder-1.5B, 2.25 bits, before RoPE")
    bf16 = next(min(row["bf16_microseconds"].values()) for row in case if "bf16_microseconds" in row)
    fit = numpy.median([row["fit"] for row in kept("real_model_times.json")["rows"] if "fit" in row][-1])
    document = kept(REAL)
    others = {row["name"]: row for row in [*document["baselines"], *document["recipes"]]}
    real, kld = others["`coded`, 2.25 bits, before RoPE"], {name: f"{row['kld']:.1f}" for name, row in others.items()}
    lines = [f"- **Memory:** {real['bits']['fp16_params']:.3g} bits a value, scales and rounding to whole bytes included; bfloat16 takes 16.",
             f"- **Speed:** one layer of Qwen3-8B's shape reads 32 sequences of 32K tokens in {us:.0f} us on an H200, in a step of decoding; of bfloat16 in {bf16:.0f} us.",
             f"- **Quality:** Qwen2.5-Coder-1.5B-Instruct with the coded cache finds {hits(real['probes_2k'])} needles, its KL divergence from bfloat16 is "
             f"{real['kld']:.4f},\n  and the next token that it likes best is the same in {real['same_top']:.1%} of places. The usual FP8 cache destroys that model "
             f"(KL divergence\n  {kld['fp8']}, {hits(others['fp8']['probes_2k'])} needles), and so do INT4 behind a Hadamard ({kld['Hadamard INT4']}) and INT2 by published "
             f"rotations ({kld['`oscar`, clip 0.96 / 0.92 (published)']}).",
             f"- **Time:** the coded cache of the Qwen model is fitted in {fit:.0f} seconds on an H200, with 32,760 tokens of text."]
    return "\n".join(lines) + "\n"


def zoo_sets():
    """What the manifests of the zoo's sets say of their coded parts."""
    lines = []
    for path in sorted(ROOT.glob("zoo/*/*/latest/manifest.json")):
        methods = {name: method["model"] for name, method in json.loads(path.read_text())["verification"]["methods"].items()}
        needles = (f"{methods[name]['needle_hits']}/{methods[name]['needles']}" for name in ("coded", "bf16"))
        lines.append([f"`{path.parents[1].relative_to(ZOO.parent)}`", f"{methods['coded']['kld_mean']:.4f}", *needles])
    return table(["set", "KL divergence from bfloat16", "needles within 2K", "needles, bfloat16"], lines) + "\n"


PAGES = {ZOO: {"sets": zoo_sets},
         PAGE: {"real model": real_model, "quality": quality, "bits by context": context_bits, "decode speed": decode_speed, "model speed": model_speed},
         README: {"claims": claims}}


def svg(figure):
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)
    return "\n".join(line.rstrip() for line in drawn.getvalue().splitlines()) + "\n"


def bits_against_kld(document):
    figure, axes = pyplot.subplots(figsize=(8.2, 5))
    kinds = {"coded cache": ("o", "tab:blue"), "fitted rotation or stretch": ("s", "tab:orange"), "nothing fitted": ("D", "tab:gray")}
    height = numpy.inf  # of the last label: labels stand at least a tenth of a decade apart
    for row in sorted([*document["baselines"], *document["recipes"]], key=lambda row: -row["kld"]):
        if row["kld"] == 0:
            continue
        name = row["name"].replace("`", "")
        kind = "coded cache" if name.startswith("coded") else "fitted rotation or stretch" if name.startswith(("oscar", "stretch")) \
            else "nothing fitted"
        mark, colour = kinds[kind]
        few, many = row["bits"]["fp16_params"], row["bits"]["fp32_params"]
        axes.plot([few, many], [row["kld"]] * 2, color=colour)
        axes.scatter([few], [row["kld"]], marker=mark, color=colour, zorder=3)
        height = min(numpy.log10(row["kld"]), height - 0.1)
        axes.text(many + 0.12, 10**height, name, va="center")
    for kind, (mark, colour) in kinds.items():
        axes.scatter([], [], marker=mark, color=colour, label=kind)
    axes.plot([], [], color="black", label="scales and zeros of 16 to 32 bits")
    axes.set(yscale="log", xlim=(0, 10), xlabel="bits a value", ylabel="KL divergence, nats a token",
             title="Bits a value against KL divergence, Qwen2.5-Coder-1.5B-Instruct")
    axes.grid(alpha=0.3)
    axes.legend()
    return svg(figure)


def tasks_by_length(document):
    """Of each cache: how many tasks it has the model answer for each that the exact cache does, of the kinds that were asked."""
    rows = {(row["name"], row["on"]): row["hits"] for row in document["tasks"]}
    lengths = [on for on in ("4k", "16k", "32k") if ("bf16", on) in rows]
    figure, axes = pyplot.subplots(figsize=(8.2, 4.4))
    for name in dict.fromkeys(row["name"] for row in document["tasks"] if row["name"] != "bf16"):
        asked = [(at, rows[name, on], rows["bf16", on]) for at, on in enumerate(lengths) if (name, on) in rows]
        shares = [100 * sum(own.values()) / sum(exact[kind] for kind in own) for _, own, exact in asked]
        axes.plot([at for at, _, _ in asked], shares, marker="o" if name.startswith("`coded") else "s", label=name.replace("`", ""))
    axes.set_xticks(range(len(lengths)), [f"{on[:-1]}K tokens" for on in lengths])
    axes.set(ylim=(0, 105), ylabel="answers, per cent of the exact cache's", title="Tasks by length, Qwen2.5-Coder-1.5B-Instruct")
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return svg(figure)


def plan_by_layer(folder):
    layers = json.loads((folder / "manifest.json").read_text())["parts"]["coded"]["layers"]
    tensors = load_file(folder / "coded.safetensors")
    rows, names, means = [], [], []
    for layer in layers:
        for side in ("key", "value"):
            levels = tensors[f"layers.{layer['layer_id']}.{side}.levels"]
            for head, row_bytes in zip(levels, layer[side]["row_bytes"]):
                rows.append(numpy.log2(head[::8]).astype(int))
                names.append(f"layer {layer['layer_id']}, {side}s")
                means.append(f"{row_bytes * 8 / len(head):g}")
    figure, axes = pyplot.subplots(figsize=(8.2, 3.4))
    axes.imshow(rows, cmap="Blues", aspect="auto", vmin=0, vmax=12)
    for y, row in enumerate(rows):
        for x, width in enumerate(row):
            axes.text(x, y, str(width), ha="center", va="center")
    axes.set(xticks=[], xlabel=f"blocks of 8 of {8 * len(rows[0])} channels of the coded basis, widest first",
             title="Bits of a channel that the coded cache gives each layer, sample model")
    axes.set_yticks(range(len(rows)), names)
    right = axes.secondary_yaxis("right")
    right.set_yticks(range(len(rows)), means)
    right.set_ylabel("bits a value, scales included")
    return svg(figure)


def page(path):
    text = path.read_text()
    for name, make in PAGES[path].items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        first, rest = text.split(begin)
        text = first + begin + make() + end + rest.split(end)[1]
    return text


def main():
    files = {PAGE.parent / "bits_against_kld.svg": bits_against_kld(kept(REAL)),
             PAGE.parent / "tasks_by_length.svg": tasks_by_length(kept(REAL)),
             PAGE.parent / "plan_by_layer.svg": plan_by_layer(SAMPLE_SET), **{path: page(path) for path in PAGES}}
    if sys.argv[1:] == ["--write"]:
        for path, text in files.items():
            path.write_text(text)
    else:
        differ = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
        for path in differ:
            print(f"{path.relative_to(ROOT)} is not what the kept results say: run tests/bench/choosing_page.py --write")
        sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()
