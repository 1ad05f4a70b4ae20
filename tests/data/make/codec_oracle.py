# SPDX-License-Identifier: MIT
"""Makes tests/data/codec/oracle_rows.h5: rotated key rows of a real model, and their codes by an independent numpy codec.

    .venv/bin/python tests/data/make/codec_oracle.py <oracle.npz> tests/data/codec/oracle_rows.h5
"""
import sys

import h5py
import numpy as np

ROWS_PER_LAYER = 8
CODECS = ("minmax", "clip_sort", "clip_bisect", "lsq")
PARTS = ("packed", "scale", "minimum")


def main(source, target):
    oracle = np.load(source)
    layers = sorted({name.split(".")[0] for name in oracle.files})
    names = ["rows"] + [f"{codec}.{part}" for codec in CODECS for part in PARTS]
    with h5py.File(target, "w") as out:
        for name in names:
            out["/" + name] = np.concatenate([oracle[f"{layer}.{name}"][:ROWS_PER_LAYER] for layer in layers])


if __name__ == "__main__":
    main(*sys.argv[1:3])
