# SPDX-License-Identifier: MIT
"""Writes a small float16 dump with two KV heads that differ, in two chunks: make_dump.py FOLDER. 2 layers, d = 32."""
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

HEADS, DIM = {"q": 4, "k": 2, "v": 2}, 32
LENGTHS = ((500, 30), (520,))  # tokens of each sequence, of each chunk


def main(folder):
    normal = np.random.default_rng(7).standard_normal
    for layer in range(2):
        mixing = {name: normal((heads, DIM, DIM)) / 5 for name, heads in HEADS.items()}
        shift = normal((HEADS["k"], DIM))
        for number, lengths in enumerate(LENGTHS, 1):
            tokens = sum(lengths)
            rows = {name: np.einsum("thi,hij->thj", normal((tokens, *m.shape[:2])), m) for name, m in mixing.items()}
            rows["k"] += shift
            tensors = {name: x.astype(np.float16) for name, x in rows.items()}
            tensors["seq_lens"] = np.array(lengths, np.int32)
            for name, tensor in tensors.items():
                path = Path(folder) / f"layer_{layer}" / name / f"{number}.safetensors"
                path.parent.mkdir(parents=True, exist_ok=True)
                save_file({name: tensor}, path)


if __name__ == "__main__":
    main(sys.argv[1])
