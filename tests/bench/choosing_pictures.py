# SPDX-License-Identifier: MIT
"""The pictures of zoo/choosing/README.md: bits against KL divergence, from a document of bench_real_model.py, and the bits of
each layer, from a set of the coded cache. Standard library only."""
import json
import math
import struct

from svg import number, picture, shape, text

NOTHING_FITTED = ("naive INT2", "Hadamard")
LEFT, RIGHT, TOP, BOTTOM = 70, 800, 56, 470
BITS, KLDS = (1.0, 5.25), (0.002, 3.0)
BETWEEN_LABELS = 15


def kind(name):
    if name.startswith("`coded`"):
        return "blue"
    return "grey" if name.startswith(NOTHING_FITTED) else "orange"


def at_bits(bits):
    return LEFT + (RIGHT - LEFT) * (bits - BITS[0]) / (BITS[1] - BITS[0])


def at_kld(kld):
    return BOTTOM - (BOTTOM - TOP) * math.log(kld / KLDS[0]) / math.log(KLDS[1] / KLDS[0])


def spread(heights):
    """Heights of labels, in order, moved apart as little as makes them readable."""
    heights = list(heights)
    for _ in range(1000):
        for i in range(1, len(heights)):
            lack = BETWEEN_LABELS - (heights[i] - heights[i - 1])
            if lack > 0:
                heights[i - 1] -= lack / 2
                heights[i] += lack / 2
    return heights


def mark(colour, x, y):
    if colour == "blue":
        return shape("circle", colour, cx=x, cy=y, r=5)
    if colour == "orange":
        return shape("rect", colour, x=x - 4, y=y - 4, width=8, height=8)
    return shape("path", colour, d=f"M{number(x)} {number(y - 6)}l6 6-6 6-6-6z")


def axes():
    parts = []
    for kld in (0.003, 0.01, 0.03, 0.1, 0.3, 1.0):
        parts += [shape("path", "grid-line", d=f"M{LEFT} {number(at_kld(kld))}H{RIGHT}"),
                  text(LEFT - 8, at_kld(kld) + 4, f"{kld:g}", "quiet small", text_anchor="end")]
    for bits in (1, 2, 3, 4, 5):
        parts += [shape("path", "grid-line", d=f"M{number(at_bits(bits))} {TOP}V{BOTTOM}"),
                  text(at_bits(bits), BOTTOM + 18, str(bits), "quiet small", text_anchor="middle")]
    return [*parts, text((LEFT + RIGHT) / 2, BOTTOM + 38, "bits a value", "quiet", text_anchor="middle"),
            text(18, (TOP + BOTTOM) / 2, "KL divergence, nats a token", "quiet", text_anchor="middle",
                 transform=f"rotate(-90 18 {number((TOP + BOTTOM) / 2)})")]


def legend():
    parts, x = [], LEFT
    for colour, words in (("blue", "coded cache"), ("orange", "fitted rotation or stretch"), ("grey", "nothing fitted")):
        parts += [mark(colour, x + 6, 24), text(x + 18, 28, words, "ink small")]
        x += 40 + 7 * len(words)
    return [*parts, shape("path", "quiet-line", d=f"M{x} 24h22", stroke_width=2),
            text(x + 30, 28, "scales and zeros of 16 to 32 bits", "ink small")]


def labels(points):
    """Beside the marks: left of them where many have the same bits, else right."""
    parts, crowd = [], [point for point in points if point["bits"][0] == 2.5]
    for point, y in zip(crowd, spread(at_kld(point["kld"]) for point in crowd)):
        x = at_bits(2.5)
        parts += [shape("path", "quiet-line", d=f"M{number(x - 8)} {number(at_kld(point['kld']))}L{number(x - 22)} {number(y)}"),
                  text(x - 26, y + 4, point["name"], "ink small halo", text_anchor="end")]
    for point in points:
        if point not in crowd:
            wide = point["bits"][1] - point["bits"][0] > 0
            x = at_bits(sum(point["bits"]) / 2) if wide else at_bits(point["bits"][1]) + 10
            parts.append(text(x, at_kld(point["kld"]) + (-10 if wide else 4), point["name"], "ink small halo",
                              text_anchor="middle" if wide else "start"))
    return parts


def bits_against_kld(document):
    points = [{"name": row["name"].replace("`", ""), "colour": kind(row["name"]), "kld": row["kld"],
               "bits": (round(row["bits"]["fp16_params"], 6), round(row["bits"]["fp32_params"], 6))}
              for row in [*document["baselines"], *document["recipes"]] if row["kld"] > 0]
    points.sort(key=lambda point: -point["kld"])
    marks = []
    for point in points:
        y, (first, last) = at_kld(point["kld"]), point["bits"]
        marks += [shape("path", f"{point['colour']}-line", d=f"M{number(at_bits(first))} {number(y)}H{number(at_bits(last))}", stroke_width=2),
                  mark(point["colour"], at_bits(first), y)]
    said = "; ".join(f"{point['name']}: {'–'.join(dict.fromkeys(f'{bits:g}' for bits in point['bits']))} bits, {point['kld']:.4f}"
                     for point in points)
    return picture(820, 520, "Bits a value against KL divergence, SmolLM2-135M-Instruct",
                   f"Lower and further left is better. KL divergence of predictions from those in bfloat16, in nats a token. {said}.",
                   [*axes(), *legend(), *labels(points), *marks])


def block_bits(folder):
    """[(layer, side, mean bits of a value, [bits of each block of 8 channels])], a row for each KV head."""
    manifest, data = json.loads((folder / "manifest.json").read_text()), (folder / "coded.safetensors").read_bytes()
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    entries, rows = json.loads(data[8:begin]), []
    for layer in manifest["layers"]:
        for side in ("key", "value"):
            entry = entries[f"layers.{layer['layer_id']}.{side}.levels"]
            heads, channels = entry["shape"]
            first, last = entry["data_offsets"]
            levels = struct.unpack(f"<{heads * channels}i", data[begin + first:begin + last])
            for head in range(heads):
                blocks = [round(math.log2(n)) for n in levels[head * channels:(head + 1) * channels:8]]
                rows.append((layer["layer_id"], side, layer[side]["row_bytes"][head] * 8 / channels, blocks))
    return rows


def plan_by_layer(folder):
    rows, cell, left, top = block_bits(folder), 36, 130, 66
    blocks, parts, said, y = max(len(row[3]) for row in rows), [], [], top
    end = left + cell * blocks
    for i, (layer, side, mean, bits) in enumerate(rows):
        y += 10 if i and layer != rows[i - 1][0] else 0
        parts += [text(left - 12, y + 19, f"layer {layer}, {side}s", text_anchor="end"), text(end + 14, y + 19, f"{mean:g}", "ink bold")]
        for b, width in enumerate(bits):
            x = left + cell * b
            parts += [shape("rect", "blue grid-line", x=x, y=y, width=cell - 2, height=26, rx=3, fill_opacity=f"{0.075 * width:.3f}"),
                      text(x + cell / 2 - 1, y + 18, str(width), "ink small" if width else "quiet small", text_anchor="middle")]
        said.append(f"layer {layer}, {side}s: {mean:g} bits a value, blocks {' '.join(map(str, bits))}")
        y += 30
    head = [text(left, 26, "Bits of a channel, in blocks of 8 channels, widest first", "ink bold"),
            text(end + 14, 52, "bits a value", "quiet small"), text(left, 52, f"of {8 * blocks} channels of the coded basis", "quiet small")]
    return picture(end + 100, y + 14, "What the coded cache gives each layer, sample model",
                   f"2.25 bits a value in the mean. {'; '.join(said)}.", [*head, *parts])
