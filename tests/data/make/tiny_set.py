# SPDX-License-Identifier: MIT
"""Makes tests/data/tiny-set: a real rotation set of one layer, small enough to be copied by every test of the zoo.

    .venv/bin/python tests/data/make/tiny_set.py build/oscar tests/data/tiny-set
"""
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

TOKENS, QUERY_HEADS, KV_HEADS, HEAD_DIM = 256, 3, 1, 16


def main(oscar, target):
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        rows = {"q": torch.randn(TOKENS, QUERY_HEADS, HEAD_DIM), "k": torch.randn(TOKENS, KV_HEADS, HEAD_DIM),
                "v": torch.randn(TOKENS, KV_HEADS, HEAD_DIM), "seq_lens": torch.tensor([TOKENS], dtype=torch.int32)}
        for name, tensor in rows.items():
            path = Path(folder) / "layer_0" / name / "1.pt"
            path.parent.mkdir(parents=True)
            torch.save(tensor, path)
        subprocess.run([oscar, "fit", "--dump", folder, "--recipe", "oscar", "--clip", "0.96,0.92", "--format", "pt",
                        "--sink", "4", "--recent", "8", "--out", target], check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
