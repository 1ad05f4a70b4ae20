# SPDX-License-Identifier: MIT
"""The tables of tests/bench/README.md from what bench_real_model.py kept."""
from real_model_tasks import KINDS


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def bits(row):
    fp16, fp32 = row["bits"]["fp16_params"], row["bits"]["fp32_params"]
    return f"{fp16:.3g}" if fp16 == fp32 else f"{fp16:.3g} / {fp32:.3g}"


def hits(probes):
    return f"{probes['needle_hits']}/{probes['needles']}" if "needles" in probes else ""


def main_table(document):
    rows = [*document.get("baselines", []), *document.get("recipes", [])]
    head = ["method", "bits, fp16 / fp32 parameters", "ppl", "KLD", "same top", "needles 2K"]
    has_long = any("probes_7k" in row for row in rows)
    lines = []
    for row in rows:
        cells = [row["name"], bits(row), f"{row['ppl']:.3f}", f"{row['kld']:.4f} ±{1.96 * row['kld_error']:.4f}",
                 f"{row['same_top']:.3f}", hits(row.get("probes_2k", {}))]
        lines.append(cells + ([hits(row.get("probes_7k", {}))] if has_long else []))
    return table(head + (["needles 7K"] if has_long else []), lines)


def domain_table(document):
    rows = [*document.get("baselines", []), *document.get("recipes", [])]
    domains = sorted(rows[0]["kld_by_domain"]) if rows else []
    lines = [[row["name"], "all"] + [f"{row['kld_by_domain'][d]:.4f}" for d in domains] for row in rows]
    lines += [[row["name"], row["on"]] + [f"{row['kld_by_domain'][d]:.4f}" for d in domains]
              for row in document.get("crossed", [])]
    return table(["method", "fitted on", *domains], lines)


def kld_between(row, begin, end):
    """The mean over positions; None where no text was as long."""
    inside = [kld for first, last, kld in row["kld_by_position"] if begin <= (first + last) / 2 < end]
    return sum(inside) / len(inside) if inside else None


def position_table(document):
    rows = [row for row in [*document.get("baselines", []), *document.get("recipes", [])] if row.get("kld_by_position")]
    if not rows:
        return ""
    edges = [0, 512, 1024, 2048, 4096, 8192]
    lines = []
    for row in rows:
        cells = [row["name"]]
        for begin, end in zip(edges, edges[1:]):
            kld = kld_between(row, begin, end)
            cells.append("" if kld is None else f"{kld:.4f}")
        lines.append(cells)
    return table(["KLD at positions", *(f"{b}–{e}" for b, e in zip(edges, edges[1:]))], lines)


def quote_table(document):
    rows = [row for row in [*document.get("baselines", []), *document.get("recipes", [])]
            if "quotes" in row.get("probes_2k", {})]
    head = ["quotations", "tokens right, 2K", "to the end, 2K", "tokens right, 7K", "to the end, 7K"]
    lines = []
    for row in rows:
        cells = [row["name"]]
        for length in ("2k", "7k"):
            probes = row.get(f"probes_{length}", {})
            cells += [f"{probes['tokens_right']:.3f}", f"{probes['right_to_the_end']}/{probes['quotes']}"] if "quotes" in probes \
                else ["", ""]
        lines.append(cells)
    return table(head, lines) if rows else ""


def long_table(document):
    rows = document.get("long", [])
    lines = [[row["name"], row["on"].upper(), f"{row['kld']:.4f}", f"{row['kld_by_position'][-1][2]:.4f}", hits(row)] for row in rows]
    return table(["method", "tokens", "KLD", "KLD at the end", "needles"], lines) if rows else ""


def tasks_table(document):
    rows = document.get("tasks", [])
    lines = [[row["name"], row["on"].upper(), *(str(row["hits"].get(kind, "")) for kind in KINDS),
              f"{100 * sum(row['hits'].values()) / row['prompts'] / len(KINDS):.1f}" if len(row["hits"]) == len(KINDS) else ""] for row in rows]
    return table([f"of {rows[0]['prompts']} prompts", "tokens", *KINDS, "mean, %"], lines) if rows else ""


TABLES = {"main": main_table, "domains": domain_table, "positions": position_table, "quotations": quote_table,
          "long": long_table, "tasks": tasks_table}


def render(document, name=None):
    """One table, or all that have rows."""
    tables = [make(document) for each, make in TABLES.items() if name in (None, each)]
    return "\n\n".join(table for table in tables if table)
