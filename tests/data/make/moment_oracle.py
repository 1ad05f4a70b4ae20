# SPDX-License-Identifier: MIT
"""Makes tests/data/moments/oracle_moments.h5: what an independent numpy made of a real dump, each moment M as M u.

    .venv/bin/python tests/data/make/moment_oracle.py <oracle.npz> tests/data/moments/oracle_moments.h5

u_i = cos(i). A matrix that differs from M anywhere gives another vector, and vectors need 1/128 of the room.
"""
import sys

import h5py
import numpy as np

MOMENTS = ("query_moments", "key_moments", "sst")


def main(source, target):
    oracle = np.load(source)
    layers = sorted({name.split(".")[0] for name in oracle.files})
    with h5py.File(target, "w") as out:
        for name in MOMENTS:
            moments = np.stack([oracle[f"{layer}.{name}"][0] for layer in layers])
            out[name] = moments @ np.cos(np.arange(moments.shape[-1]))


if __name__ == "__main__":
    main(*sys.argv[1:3])
