# SPDX-License-Identifier: MIT
"""How much two rotation sets of one dump differ, by what they store in rotations.h5: float32, composition r_h_pbr.

compare_sets.py SET REFERENCE
"""
import json
import sys
from pathlib import Path

import h5py
import numpy as np

from synthetic_dump import bit_reversed, hadamard


def eigenvectors(rotation):
    """Un-composes rotation = U H P; columns belong to ascending eigenvalues."""
    dim = rotation.shape[0]
    columns = [dim - 1 - bit_reversed(j, dim.bit_length() - 1) for j in range(dim)]
    return rotation @ np.eye(dim)[:, columns].T @ hadamard(dim).numpy().T


def compare_side(ours, reference):
    """Errors of one side of one layer. Eigenvectors are judged by what they do to the other's covariance: where
    eigenvalues are close, the vectors themselves mean nothing."""
    covariance, values, rotation = (ours[name][:].astype(np.float64) for name in ("covariance", "eigenvalues", "rotation"))
    covariance_, values_ = (reference[name][:].astype(np.float64) for name in ("covariance", "eigenvalues"))
    vectors = eigenvectors(rotation)
    diagonal = vectors.T @ covariance_ @ vectors
    off = diagonal - np.diag(np.diag(diagonal))
    return {"covariance_relative_frobenius": np.linalg.norm(covariance - covariance_) / np.linalg.norm(covariance_),
            "eigenvalue_relative": np.max(np.abs(values - values_) / np.abs(values_)),
            "eigenvalue_relative_to_largest": np.max(np.abs(values - values_)) / np.max(np.abs(values_)),
            "off_diagonal_relative_frobenius": np.linalg.norm(off) / np.linalg.norm(covariance_),
            "orthogonality": np.max(np.abs(rotation @ rotation.T - np.eye(rotation.shape[0]))),
            "clip_ratio": abs(ours.attrs["clip_ratio"] - reference.attrs["clip_ratio"])}


def compare_sets(ours, reference):
    """The largest of each error over layers and sides."""
    worst = {}
    with h5py.File(Path(ours) / "rotations.h5") as a, h5py.File(Path(reference) / "rotations.h5") as b:
        assert set(a["layers"]) == set(b["layers"]), "the two sets have different layers"
        for layer in a["layers"]:
            for side in ("key", "value"):
                for name, error in compare_side(a["layers"][layer][side], b["layers"][layer][side]).items():
                    worst[name] = max(worst.get(name, 0.0), float(error))
    return worst


if __name__ == "__main__":
    print(json.dumps(compare_sets(*sys.argv[1:]), indent=1))
