# SPDX-License-Identifier: MIT
"""Writes a seeded dump in the published layout whose Q, K and V have the spectra of a real model.

synthetic_dump.py OUT [--layers 4] [--tokens 30000] [--query-heads 32] [--kv-heads 8] [--head-dim 128] [--chunk 4096]
                  [--spectra FOLDER] [--seed 0] [--device cpu]
OUT must be empty, or not there. --device cuda draws on the GPU: other numbers of the same distribution.
--spectra: a folder with one k_rotation*.pt and one v_rotation*.pt of the published format; queries are drawn with the
covariance that the key file was fitted to, values with that of the value file, keys with a mixture of the query
covariance and an independent one. Without it, eigenvalues decay like a power law in a random basis per layer.
Chunk 0 is a warm-up of six tokens, as in published dumps.
"""
import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

WARM_UP_TOKENS = 6


def normal(shape, generator):
    return torch.randn(shape, generator=generator, device=generator.device)


def random_basis(dim, generator):
    return torch.linalg.qr(normal((dim, dim), generator))[0]


def decaying_root(dim, generator):
    """A square root of a covariance whose k-th largest eigenvalue is 4 k^-1.2."""
    eigenvalues = 4.0 * torch.arange(1, dim + 1, dtype=torch.float32, device=generator.device).pow(-1.2)
    return random_basis(dim, generator) * eigenvalues.sqrt()


def hadamard(dim):
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while matrix.shape[0] < dim:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)], 0)
    return matrix / dim**0.5


def bit_reversed(i, bits):
    return int(f"{i:0{bits}b}"[::-1], 2)


def root_from_file(layer, dim):
    """Un-composes rotation = U H P and gives U diag(sqrt(eigenvalues)); columns of U belong to ascending eigenvalues."""
    bits = dim.bit_length() - 1
    columns = [dim - 1 - bit_reversed(j, bits) for j in range(dim)]
    permutation = torch.eye(dim, dtype=torch.float64)[:, columns]
    vectors = layer["rotation"].double() @ permutation.T @ hadamard(dim).T
    return (vectors * layer["eigenvalues"].double().clamp(min=0).sqrt()).float()


def read_roots(folder, side, count, dim):
    paths = sorted(Path(folder).glob(f"{side}_rotation*.pt"))
    if len(paths) != 1:
        sys.exit(f"{folder}: expected one {side}_rotation*.pt, found {len(paths)}")
    layers = list(torch.load(paths[0], map_location="cpu", weights_only=True)["layers"].values())
    if layers[0]["rotation"].shape[-1] != dim:
        sys.exit(f"{paths[0]}: head_dim is not {dim}")
    return [root_from_file(layers[i * len(layers) // count], dim) for i in range(count)]


def draw(tokens, heads, root, generator):
    """(tokens, heads, dim) rows with covariance root root^T, each head turned and scaled a little of its own; in memory
    of the CPU."""
    dim = root.shape[0]
    rows = torch.empty(tokens, heads, dim, dtype=torch.bfloat16, device=generator.device)
    for head in range(heads):
        own = root + 0.2 * root.norm() / dim * normal((dim, dim), generator)
        rows[:, head] = (normal((tokens, dim), generator) @ own.T).bfloat16()
    if rows.is_cpu:
        return rows
    return torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True).copy_(rows)


def write_chunk(layer, index, tensors):
    tokens = tensors["q"].shape[0]
    for name, tensor in {**tensors, "seq_lens": torch.tensor([tokens], dtype=torch.int32)}.items():
        torch.save(tensor.clone(), layer / name / f"{index}.pt")


def write_layer(folder, tensors, chunk, pool):
    """Futures of the layer's chunks."""
    tokens = tensors["q"].shape[0]
    bounds = [0, WARM_UP_TOKENS, *range(WARM_UP_TOKENS + chunk, tokens, chunk), tokens]
    for name in (*tensors, "seq_lens"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return [pool.submit(write_chunk, folder, index, {name: tensor[begin:end] for name, tensor in tensors.items()})
            for index, (begin, end) in enumerate(zip(bounds, bounds[1:]))]


def require_empty(out):
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        sys.exit(f"{out}: there is something already; name a new folder, or an empty one")


def make(out, layers, tokens, query_heads, kv_heads, dim, chunk, spectra, seed, device="cpu"):
    require_empty(out)
    generator = torch.Generator(device).manual_seed(seed)
    if spectra:
        query_roots, value_roots = ([root.to(device) for root in read_roots(spectra, side, layers, dim)] for side in "kv")
    else:
        query_roots = [decaying_root(dim, generator) for _ in range(layers)]
        value_roots = [decaying_root(dim, generator) for _ in range(layers)]
    total = tokens + WARM_UP_TOKENS
    torch.serialization.set_crc32_options(False)  # they would take most of the time
    writing = []
    with ThreadPoolExecutor(8) as pool:
        for layer in range(layers):
            key_root = 0.5 * query_roots[layer] + 0.5 * decaying_root(dim, generator)
            writing.append(write_layer(out / f"layer_{layer}", {
                "q": draw(total, query_heads, query_roots[layer], generator),
                "k": draw(total, kv_heads, key_root, generator),
                "v": draw(total, kv_heads, value_roots[layer], generator),
            }, chunk, pool))
            if layer >= 2:  # bounds the memory of what waits to be written
                [chunk_written.result() for chunk_written in writing[layer - 2]]
        for layer in writing:
            [chunk_written.result() for chunk_written in layer]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    for name, default in (("layers", 4), ("tokens", 30000), ("query-heads", 32), ("kv-heads", 8), ("head-dim", 128),
                          ("chunk", 4096), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--spectra", type=Path)
    parser.add_argument("--device", default="cpu")
    o = parser.parse_args()
    make(o.out, o.layers, o.tokens, o.query_heads, o.kv_heads, o.head_dim, o.chunk, o.spectra, o.seed, o.device)


if __name__ == "__main__":
    main()
