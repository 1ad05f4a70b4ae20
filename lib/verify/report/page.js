// SPDX-License-Identifier: MIT
// Fills the page from the report that it carries (oscar.verify_report.v1, with eigen-spectra). Chart.js draws.
"use strict";
const report = JSON.parse(document.getElementById("report").textContent);
const measured = (part) => report.methods.filter((m) => m[part]);
const by = (id) => document.getElementById(id);
function text(value, digits = 3) {
  if (value === null || value === undefined) return "not known";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number") return String(value);
  return value !== 0 && Math.abs(value) < 1e-3 ? value.toExponential(digits - 1) : String(+value.toPrecision(digits));
}

// Names of the report in words. What is not here is shown as it is called.
const words = {
  output_rel_error: "error of attention outputs", softmax_kl: "KL of attention probabilities", kld_mean: "KL of predictions",
  ppl_increase: "increase of perplexity", given: "given", default: "default for its bits",
  accepted: "accepted", rejected: "rejected", not_measured: "not measured: no figure of the set was held to a limit",
  attention: "attention", model: "model", statistics: "statistics", source: "taken from", dump: "a dump", stock: "stock caches", computed_on: "computed on",
  data_sha256: "SHA-256 of the data", tokens_per_layer: "tokens of a layer", queries_per_layer: "queries of a layer",
  layers: "layers", tokens: "tokens", needles: "needles", sequences: "sequences", held_out: "held out",
  sequences_fitted_on: "sequences that the set was fitted on", keys_read: "keys read", keys_quantised: "of these quantised",
  quantised_share: "share that was quantised", needles_quantised_share: "share that was quantised for needles",
  quotes: "quotations", quotes_quantised_share: "share that was quantised for quotations",
  file_hashes: "files are what the manifest lists", file_contents: "files hold what a set has", finite: "all numbers are finite", layer_coverage: "every layer is there",
  sides_agree: "both sides are there", objective_side: "objectives are of their side", shape: "shapes are the model's",
  group_size: "groups divide a row", clip_ratio: "clip ratios", model_identity: "fitted on this model",
  model_revision: "fitted on this revision", model_weights: "fitted on weights with these norms", calibration_tokens: "enough calibration tokens", fp8_subnormals: "never cast to fp8",
  orthogonality: "rotations are orthogonal", orthogonality_bf16: "orthogonal in bfloat16", inverse_pair: "sides undo each other",
  inverse_pair_bf16: "sides undo each other in bfloat16", spectrum: "eigenvalues are sound", spectrum_rank: "spectra have full rank",
  stretch_metric: "stretches are what the data asks for", decomposition: "rotations diagonalise what they were fitted on",
  decomposition_on_data: "rotations fit the data at hand", composition: "composed as the objective says", derived_files: "all files say one thing",
  scales_on_data: "channels vary on the data at hand as the set says",
};
const inWords = (name) => (Object.hasOwn(words, name) ? words[name] : String(name).replaceAll("_", " "));

// A cell is a text, or a text and a smaller one that stands below it.
function fillTable(table, header, rows) {
  const addRow = (parent, cells, tag, mark) => {
    const row = parent.insertRow();
    if (mark) row.className = mark;
    for (const cell of cells) {
      const [above, below] = [cell].flat();
      const made = row.appendChild(Object.assign(document.createElement(tag), {textContent: above}));
      if (below) made.appendChild(Object.assign(document.createElement("small"), {textContent: below}));
    }
  };
  addRow(table.createTHead(), header, "th");
  const body = table.createTBody();
  for (const {cells, mark} of rows) addRow(body, cells, "td", mark);
}

// The parts of the set under test in dark colours, the others around the circle of hues.
const others = report.methods.filter((m) => m.kind !== "this");
const parts = Object.entries(report.set.parts);
const several = parts.length > 1;
// What something of a part is called: with the part, where there are several.
const ofPart = (part, name) => (several && part ? `${inWords(part)}: ${name}` : name);
const colour = (method) =>
  method.kind === "this" ? ["#000", "#00429d", "#6d0a6b"][parts.findIndex(([name]) => name === method.name)] : `hsl(${(360 * others.indexOf(method)) / Math.max(others.length, 1)} 65% 42%)`;
const shapes = ["circle", "rect", "triangle", "rectRot", "star", "cross", "crossRot"];
const style = (method) => ({
  label: method.name,
  borderColor: colour(method),
  backgroundColor: colour(method),
  borderWidth: method.kind === "this" ? 3 : 1.3,
  pointRadius: method.kind === "this" ? 5 : 3,
  pointStyle: shapes[Math.max(others.indexOf(method), 0) % shapes.length],
  order: method.kind === "this" ? 0 : 1,
  clip: false,  // points on the edge are drawn whole
});

Chart.defaults.animation = false;
Chart.defaults.maintainAspectRatio = false;
Chart.defaults.color = "#333";
const charts = [];

function plot(title, note, config) {
  const section = by("plots");
  const figure = section.appendChild(document.createElement("figure"));
  figure.appendChild(Object.assign(document.createElement("h2"), {textContent: title}));
  figure.appendChild(Object.assign(document.createElement("p"), {textContent: note, className: "note"}));
  const frame = figure.appendChild(Object.assign(document.createElement("div"), {className: "plot"}));
  const canvas = frame.appendChild(document.createElement("canvas"));
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${title}: ${note}`);
  charts.push(new Chart(canvas, config));
}

const axis = (title, extra = {}) => ({title: {display: true, text: title}, ...extra});
const legend = {legend: {position: "bottom", labels: {usePointStyle: true, boxHeight: 6, font: {size: 11}}}};
// As far as the values go: logarithmic where they differ by more than a digit, with ticks that have one digit.
function fitted(title, values) {
  const low = Math.min(...values), high = Math.max(...values);
  if (!(high > 8 * low)) {
    const room = (high - low || high) * 0.08;
    return axis(title, {type: "linear", min: Math.max(0, low - room), max: high + room, ticks: {callback: (v) => text(v), includeBounds: false, maxTicksLimit: 8}});
  }
  const step = (value, round) => { const unit = 10 ** Math.floor(Math.log10(value)); return round(value / unit) * unit; };
  return axis(title, {type: "logarithmic", min: step(low, Math.floor), max: step(high, Math.ceil), ticks: {callback: (v) => text(v), maxTicksLimit: 8}});
}
// What rounds, but quantises nothing, would only stretch the axis of errors.
const quantising = (part) => measured(part).filter((m) => m.kind !== "exact");
// Zero cannot stand on a logarithmic axis.
const positive = (points) => points.filter((p) => p.y > 0);

function lines(title, note, x, y, datasets, ticks = {}) {
  const filled = datasets.filter((d) => d.data.length > 0);
  if (filled.length === 0) return;
  const points = filled.flatMap((d) => d.data);
  const least = Math.min(...points.map((p) => p.x)), most = Math.max(...points.map((p) => p.x));
  const room = most > least ? 0 : 0.5;
  plot(title, note, {
    type: "line",
    data: {datasets: filled},
    options: {
      scales: {
        x: axis(x, {type: "linear", min: least - room, max: most + room, ticks: {includeBounds: false, ...ticks}}),
        y: fitted(y, points.map((p) => p.y)),
      },
      plugins: legend,
    },
  });
}

function byLayer(figure, title, note) {
  lines(title, note, "layer", inWords(figure), quantising("attention").map((m) =>
    ({...style(m), data: positive(m.layers.map((l) => ({x: l.layer, y: l.attention[figure]})))})), {precision: 0});
}

function frontier(part, figure, title, note) {
  const datasets = quantising(part)
    .map((m) => ({...style(m), data: positive([{x: m.bits_per_element.at_context, y: m[part][figure]}])}))
    .filter((d) => d.data.length > 0);
  if (datasets.length === 0) return;
  const points = datasets.flatMap((d) => d.data);
  plot(title, note, {
    type: "scatter",
    data: {datasets},
    options: {
      scales: {
        x: fitted("bits per element, fp16 parameters, windows included", points.map((p) => p.x)),
        y: fitted(inWords(figure), points.map((p) => p.y)),
      },
      plugins: legend,
    },
  });
}

function spectra(target, title) {
  for (const [part] of parts) {
    const layers = report.spectra.filter((s) => s.target === target && s.part === part);
    lines(ofPart(part, title), "Eigenvalues over the largest, mean over heads; the flatter, the less a rotation gains.", "direction", "share of the largest",
      layers.map((s, i) => {
        const shade = `hsl(${210 + (150 * i) / Math.max(layers.length - 1, 1)} 60% 45%)`;
        return {label: `layer ${s.layer}`, borderColor: shade, backgroundColor: shade, borderWidth: 1.3, pointRadius: 0,
          data: positive(s.values.map((y, x) => ({x, y})))};
      }));
  }
}

// A bar for each KV head of each layer: how its channels were planned, those with most bits at the bottom.
function plan(target, title) {
  const heads = report.plan.filter((p) => p.target === target);
  if (heads.length === 0) return;
  const several = heads.some((p) => p.head > 0);
  const bits = [...heads[0].channels.keys()].reverse();
  const used = bits.filter((b) => heads.some((p) => p.channels[b] > 0));
  const shade = (b) => (b === 0 ? "#e4e4e4" : `hsl(${220 - 24 * b} 70% ${82 - 5 * b}%)`);
  plot(title, "Channels of each head by the bits that they are stored in; those without bits are left out of the cache.", {
    type: "bar",
    data: {
      labels: heads.map((p) => (several ? `${p.layer}.${p.head}` : String(p.layer))),
      datasets: used.map((b) => ({label: `${b} ${b === 1 ? "bit" : "bits"}`, backgroundColor: shade(b), categoryPercentage: 1, barPercentage: 0.96,
        pointStyle: "rect", data: heads.map((p) => p.channels[b])})),
    },
    options: {
      scales: {x: axis(several ? "layer.head" : "layer", {stacked: true}), y: axis("channels", {stacked: true, max: heads[0].channels.reduce((sum, n) => sum + n, 0)})},
      plugins: legend,
    },
  });
}

// Shares in the cells of a grid of methods and depths.
const labels = {
  id: "labels",
  afterDatasetsDraw(chart) {
    const {ctx} = chart;
    ctx.save();
    Object.assign(ctx, {textAlign: "center", textBaseline: "middle", font: "11px sans-serif", fillStyle: "#000"});
    chart.getDatasetMeta(0).data.forEach((point, i) => ctx.fillText(chart.data.datasets[0].data[i].label, point.x, point.y));
    ctx.restore();
  },
};

function needleGrid() {
  const methods = measured("model").filter((m) => m.model.retrieval_by_depth.length > 0);
  if (methods.length === 0) return;
  const depth = (bin) => `${Math.round(100 * bin.depth[0])}–${Math.round(100 * bin.depth[1])} %`;
  const depths = methods[0].model.retrieval_by_depth.map(depth);
  const cells = methods.flatMap((m) => m.model.retrieval_by_depth.map((bin) =>
    ({x: depth(bin), y: m.name, share: bin.hits / bin.needles, label: `${bin.hits}/${bin.needles}`})));
  plot("Needles", "Answers found, by how deep in the prompt they stand (0 %: its beginning) and by method.", {
    type: "scatter",
    plugins: [labels],
    data: {datasets: [{data: cells, pointStyle: "rect", pointRadius: 15, pointHoverRadius: 15,
      pointBackgroundColor: cells.map((c) => `hsl(${Math.round(120 * c.share)} 70% 70%)`), pointBorderWidth: 0}]},
    options: {
      scales: {x: axis("depth", {type: "category", labels: depths, offset: true}), y: {type: "category", labels: methods.map((m) => m.name), offset: true}},
      plugins: {legend: {display: false}},
    },
  });
}

function heading() {
  const set = report.set, recipes = [...new Set(parts.map(([, part]) => part.recipe).filter(Boolean))].join(", ");
  const name = [set.model?.id, recipes && `recipe ${recipes}`].filter(Boolean).join(", ") || set.path;
  by("verdict").hidden = set.format === "none";
  by("title").textContent = document.title = `oscar verify: ${name}`;
  Object.assign(by("verdict"), {textContent: inWords(report.verdict), className: report.verdict});
  const readers = Object.entries(report.readers);
  fillTable(by("readers"), ["server", "reads", "verdict"], readers.map(([reader, said]) =>
    ({cells: [reader, inWords(said.part), inWords(said.verdict)]})));
  by("readers").closest("section").hidden = readers.length === 0;
  for (const note of [...report.reasons, ...report.warnings]) {
    by("notes").appendChild(Object.assign(document.createElement("li"), {textContent: note}));
  }
}

// A part in a line.
function partInWords(part) {
  const sides = Object.entries(part.objectives ?? {}).map(([side, objective]) => `${side}: ${objective}`);
  return [part.recipe && `recipe ${part.recipe}`, ...sides, part.layers && `${part.layers} layers`, `${text(part.bits)} bits`].filter(Boolean).join(", ");
}

function about() {
  const set = report.set, windows = report.windows;
  const fitted = set.calibration?.tokens > 0 ? `${set.calibration.tokens} tokens, ${set.calibration.sequences} ${set.calibration.sequences === 1 ? "sequence" : "sequences"}` : null;
  const rows = [["model", set.model?.id || null], ...parts.map(([name, part]) => [inWords(name), partInWords(part)]),
    ["fitted on", fitted], ["windows", `first ${windows.sink} and last ${windows.recent} tokens in bfloat16`],
    ["arithmetic", report.precision === "serving" ? "bfloat16, as servers round" : "float32"], ["set", set.path], ["date", report.date],
    ["command", report.command], ["written by", `oscar ${report.oscar_version}`]];
  const ofSets = set.format === "none" ? ["fitted on", "windows", "set"] : [];
  fillTable(by("about"), ["", ""], rows.filter(([name]) => !ofSets.includes(name)).map(([name, value]) => ({cells: [name, text(value, 6)]})));
}

// Of the heads of a layer: what they have in common, or how far they differ.
function clips() {
  const mean = (all) => all.reduce((sum, x) => sum + x, 0) / all.length;
  const cells = (all) => [mean(all), Math.min(...all), Math.max(...all)].map((x) => text(x, 4));
  fillTable(by("clips"), ["layer", "keys: mean", "least", "most", "values: mean", "least", "most"],
    report.clips.map((c) => ({cells: [ofPart(c.part, c.layer), ...cells(c.key), ...cells(c.value)]})));
  by("clips").closest("section").hidden = report.clips.length === 0;
}

function tables() {
  for (const m of report.methods) {
    if (m.model?.quotes) m.quotes = {...m.model.quotes, intervals: {tokens_right: m.model.intervals.quoted_tokens_right}};
  }
  const figures = [["attention", "output_rel_error", "output error"], ["attention", "softmax_kl", "softmax KL"], ["attention", "needle_mass_kept", "needles kept"],
    ["model", "ppl", "ppl"], ["model", "kld_mean", "KLD"], ["model", "kld_p99", "KLD 99 %"], ["model", "same_top", "same top"], ["model", "retrieval", "retrieval"], ["quotes", "tokens_right", "quoted tokens right"]]
    .filter(([part]) => measured(part).length > 0);
  const cell = (m, part, figure) => {
    const interval = m[part]?.intervals?.[figure];
    return [text(m[part]?.[figure]), interval && `${text(interval[0], 2)} … ${text(interval[1], 2)}`];
  };
  fillTable(by("methods"), ["method", "bits fp16", "bits fp32", ...figures.map((f) => f[2])], report.methods.map((m) => ({
    mark: m.kind,
    cells: [m.name, m.bits_per_element.at_context.toFixed(2), m.bits_per_element.at_context_fp32_params.toFixed(2),
      ...figures.map(([part, figure]) => cell(m, part, figure))],
  })));
  by("methods").closest("section").hidden = report.set.format === "none";
  const context = report.methods[0]?.bits_per_element.context;
  by("context").textContent = context ? `Bits per element of a context of ${context} tokens, windows included.` : "";
  fillTable(by("descriptions"), ["method", ""], [...report.methods, ...report.stock].map((m) => ({cells: [m.name, m.description]})));
  fillTable(by("limits"), ["figure", "measured", "limit", "origin"], report.limits.map((l) =>
    ({cells: [ofPart(l.part, inWords(l.figure)), text(l.value), text(l.limit), inWords(l.origin)]})));
  const origins = [...new Set(report.limits.map((l) => l.measured_on).filter(Boolean))];
  by("measured_on").textContent = origins.length > 0 ? `Default limits were measured on ${origins.join("; ")}.` : "";
  by("limits").closest("section").hidden = report.limits.length === 0;
  const counts = {};
  for (const check of report.structure.checks) {
    counts[check.name] ??= {ok: 0, unknown: 0, failed: 0, message: ""};
    counts[check.name][check.status]++;
    counts[check.name].message ||= check.message;
  }
  fillTable(by("checks"), ["check", "ok", "unknown", "failed", ""], Object.entries(counts).map(([name, c]) =>
    ({cells: [inWords(name), c.ok, c.unknown, c.failed, c.message]})));
  const rows = Object.entries(report.data).flatMap(([part, data]) => Object.entries(data).map(([name, value]) => ({cells: [`${inWords(part)}: ${inWords(name)}`, typeof value === "string" ? inWords(value) : text(value, 6)]})));
  fillTable(by("data"), ["", ""], rows);
}

// Caches that engines ship: as they are, and with the least in bfloat16 that keeps the model.
function stock() {
  const kept = (mixture) => {
    if (mixture.sides.length === 0) return "nothing";
    return mixture.sides.length === 1 ? `${mixture.sides[0]}s` : `layers ${mixture.layers.join(", ")}`;
  };
  fillTable(by("stock"), ["cache", "KLD", "to leave in bfloat16", "KLD then", "bits", "options"], report.stock.map((s) => ({cells: [
    s.name, text(s.tried[0].model.kld_mean),
    ...(s.plan ? [kept(s.plan), text(s.plan.model.kld_mean), s.plan.bits.toFixed(2), s.plan.setting] : [`nothing keeps it at ${text(s.limit)}`, "", "", ""])]})));
  by("stock").closest("section").hidden = report.stock.length === 0;
  for (const side of ["key", "value"]) {
    lines(`Stock caches: error of attention by layer, ${side}s alone`, `Share of the energy of exact outputs where only ${side}s are quantised.`, "layer", inWords("output_rel_error"), report.stock.map((s, i) => {
      const shade = `hsl(${(360 * i) / report.stock.length} 65% 42%)`;
      return {label: s.name, borderColor: shade, backgroundColor: shade, pointStyle: shapes[i % shapes.length], data: positive(s.layers.map((l) => ({x: l.layer, y: l[`${side}_error`]})))};
    }), {precision: 0});
  }
}

heading();
about();
stock();
tables();
clips();
byLayer("output_rel_error", "Error of attention outputs, by layer", "Share of the energy of exact outputs.");
byLayer("softmax_kl", "Softmax KL, by layer", "Nats per query and head.");
frontier("attention", "output_rel_error", "Bits and attention error", "Lower left is better.");
frontier("model", "kld_mean", "Bits and KL of predictions", "Lower left is better.");
lines("KL of predictions, by position", "Nats; the windows keep the first positions exact.", "position", "mean KL", quantising("model").map((m) =>
  ({...style(m), data: positive(m.model.kld_by_position.map((b) => ({x: (b.begin + b.end) / 2, y: b.kld_mean})))})));
needleGrid();
plan("key", "Bits of keys");
plan("value", "Bits of values");
spectra("key", "Eigen-spectra of keys");
spectra("value", "Eigen-spectra of values");
addEventListener("beforeprint", () => charts.forEach((chart) => chart.resize()));
document.body.dataset.plots = charts.length;
