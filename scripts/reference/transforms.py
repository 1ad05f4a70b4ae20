# SPDX-License-Identifier: MIT
"""Rotations and stretches from second moments. Rows are vectors: written rows are x T, queries are read with T^-T."""
import numpy as np

MAX_CONDITION = 1000


def hadamard(d):
    """Sylvester's, orthonormal."""
    if d & (d - 1):
        raise SystemExit(f"head_dim {d} is not a power of two: the reference has no Hadamard matrix for it")
    h = np.ones((1, 1))
    while len(h) < d:
        h = np.kron([[1, 1], [1, -1]], h)
    return h / np.sqrt(d)


def permutation(d):
    """P = I[:, perm] with perm[bitrev(i)] = the index of the i-th largest eigenvalue; they ascend, so d - 1 - i."""
    bits = d.bit_length() - 1
    perm = np.empty(d, int)
    for i in range(d):
        perm[int(format(i, f"0{bits}b")[::-1], 2)] = d - 1 - i
    return np.eye(d)[:, perm]


def eigh(c):
    """Ascending; the largest |component| of each eigenvector is positive."""
    values, vectors = np.linalg.eigh((c + c.T) / 2)
    largest = vectors[np.abs(vectors).argmax(axis=0), np.arange(len(values))]
    return values, vectors * np.where(largest < 0, -1.0, 1.0)


def compose(vectors, composition):
    """U, or U H P ("r_h_pbr")."""
    return vectors if composition == "plain" else vectors @ hadamard(len(vectors)) @ permutation(len(vectors))


def uncompose(rotation, composition):
    """The eigenvectors in a composition."""
    d = len(rotation)
    return rotation if composition == "plain" else rotation @ permutation(d).T @ hadamard(d).T


def power(c, exponent):
    values, vectors = np.linalg.eigh((c + c.T) / 2)
    return (vectors * np.maximum(values, 1e-300)**exponent) @ vectors.T


def regularised(c, part):
    """Scaled to a mean eigenvalue of 1, plus `part` of it."""
    return c / (np.trace(c) / len(c)) + part * np.eye(len(c))


def predicted_gain(key, query):
    """tr(C_K) tr(C_Q) / tr((C_K^1/2 C_Q C_K^1/2)^1/2)^2: how much less logit error than under any rotation."""
    root = power(key, 0.5)
    inner = np.linalg.eigvalsh(root @ query @ root)
    return np.trace(key) * np.trace(query) / np.sqrt(np.maximum(inner, 0)).sum()**2


def stretch_metric(key, query, lambda_):
    """M = C_K^-1/2 (C_K^1/2 C_Q C_K^1/2)^1/2 C_K^-1/2, the geometric mean of C_K^-1 and C_Q."""
    a, b = regularised(key, lambda_), regularised(query, lambda_)
    root, inverse = power(a, 0.5), power(a, -0.5)
    return inverse @ power(root @ b @ root, 0.5) @ inverse


def stretch(key, query, lambda_, exponent, composition):
    """(T, T^-T, eigenvalues): T = M^(p/2) E ..., E the eigenvectors of M^(p/2) C_K M^(p/2)."""
    values, vectors = np.linalg.eigh(stretch_metric(key, query, lambda_))
    values = np.maximum(values, values[-1] / MAX_CONDITION**(2 / exponent))
    half = (vectors * values**(exponent / 2)) @ vectors.T
    inverse = (vectors * values**(-exponent / 2)) @ vectors.T
    spectrum, basis = eigh(half @ regularised(key, lambda_) @ half)
    tail = compose(basis, composition)
    return half @ tail, inverse @ tail, spectrum
