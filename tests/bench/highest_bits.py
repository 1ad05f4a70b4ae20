# SPDX-License-Identifier: MIT
"""Sets whose codes are the highest bits of another set's, so that one cache could be read at several sizes.

highest_bits.py SET OUT BITS [--kernels oscar_cuda.so]
Each head keeps the same share of its codes' bits; those go first whose loss is least, by the errors of the best scalar code of a normal
variable at each width. OUT is a set that oscar verify reads. With --kernels it prints what the decode kernel would pay for pages of two
parts, which have the highest bits in front and the others behind: operands of keys and values, and bytes of a token, of a layer in the mean.
"""
import argparse
import ctypes
import hashlib
import json
from pathlib import Path

import numpy
import torch
from coded_library import Format, Layout, open_library
from coded_plans import bits_of
from safetensors.numpy import load_file, save_file

ERRORS = numpy.array([1, .3634, .1188, .03744, .01154, .003495, .001041, .000304, .0000876])
SCALES = 2  # bytes of a head's row that are no codes


def kept_bits(widths, energies, share):
    kept = widths.copy()
    while kept.sum() > round(share * widths.sum()):
        losses = numpy.where(kept > 0, energies * (ERRORS[numpy.maximum(kept - 1, 0)] - ERRORS[kept]), numpy.inf)
        kept[losses.argmin()] -= 1
    return kept


def shorten(tensors, prefix, share):
    """Keeps the highest bits of a layer's side. Returns the widths of each head's blocks before and after, in the order of before."""
    levels, step, sigma, write = (tensors[prefix + name] for name in ("levels", "step", "sigma", "write"))
    before = numpy.array(bits_of(levels))
    after = numpy.array([kept_bits(widths, (row.astype(float) ** 2).reshape(-1, 8).sum(1), share) for widths, row in zip(before, sigma)])
    for head, (old, new) in enumerate(zip(before, after)):
        step[head] *= numpy.repeat(2.0 ** (old - new), 8).astype(step.dtype)
        order = numpy.argsort(-numpy.repeat(new, 8), kind="stable")
        levels[head], step[head], sigma[head] = numpy.repeat(2 ** new, 8)[order], step[head][order], sigma[head][order]
        write[head] = write[head][:, order]
    return before, after


def layout_of(library, key, value):
    """Operands of keys and of values, and bytes of a token."""
    bits = [torch.from_numpy(-numpy.sort(-side, axis=1)).to(torch.uint8) for side in (key, value)]
    steps = torch.ones(len(key), 8 * key.shape[1])
    shape, found = Format(steps.shape[1], len(key), *(x.data_ptr() for x in (*bits, steps, steps))), Layout()
    if library.oscar_coded_layout_of(ctypes.byref(shape), ctypes.byref(found), None) != 0:
        raise ValueError(library.oscar_last_error().decode())
    return found.key_operands, found.value_operands, found.token_bytes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("bits", type=float)
    parser.add_argument("--kernels")
    options = parser.parse_args()
    tensors, manifest = load_file(options.set / "coded.safetensors"), json.loads((options.set / "manifest.json").read_text())
    part, sizes = manifest["parts"]["coded"], []
    layers, library = part["layers"], options.kernels and open_library(options.kernels)
    for layer in layers:
        sides = {}
        for name in ("key", "value"):
            levels = tensors[f"layers.{layer['layer_id']}.{name}.levels"]
            scales = 8 * SCALES / levels.shape[1]
            before, after = sides[name] = shorten(tensors, f"layers.{layer['layer_id']}.{name}.", (options.bits - scales) / (part["codec"]["bits"] - scales))
            rows = [int(widths.sum()) + SCALES for widths in after]
            layer[name] |= {"row_bytes": rows, "most_levels": levels.max(1).tolist(), "bits": 8 * sum(rows) / levels.size}
        if library:
            sizes.append([layout_of(library, *(cut(*sides[name]) for name in ("key", "value")))
                          for cut in (lambda old, new: old, lambda old, new: new, lambda old, new: old - new)])
    part["codec"]["bits"] = sum(layer[name]["bits"] for layer in layers for name in ("key", "value")) / (2 * len(layers))
    options.out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, options.out / "coded.safetensors")
    data = (options.out / "coded.safetensors").read_bytes()
    manifest |= {"parts": {"coded": part}, "readers": {name: of for name, of in manifest["readers"].items() if of == "coded"},
                 "files": [{"path": "coded.safetensors", "sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}]}
    (options.out / "manifest.json").write_text(json.dumps({name: each for name, each in manifest.items() if name not in ("verification", "signature")}))
    print(f"{part['codec']['bits']:.3f} bits a value")
    for name, means in zip(("whole", "highest bits", "the rest"), numpy.mean(sizes, 0).round(2).tolist() if sizes else ()):
        print(f"{name}: operands {means[0]} and {means[1]}, {means[2]} bytes of a token")


if __name__ == "__main__":
    main()
