# SPDX-License-Identifier: MIT
"""What a KV method does to attention: softmax KL, relative output error, logit NMSE, with windows and bf16 rounding."""
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from layers import Layer, to_bf16, to_f32
from moments import history, softmax


class Side(NamedTuple):
    """Keys or values of a layer; stacks of 1 matrix, or of one per KV head."""
    write: np.ndarray
    read: np.ndarray  # of queries, or of outputs: o = o' read^T
    codecs: list  # one, or one per KV head, that say what is read of rows: row_codecs.Codec or coded.CodedCodec
    mean: np.ndarray = None  # (Hkv, d), subtracted from every key
    turn: Callable = None  # of keys that are stored before RoPE: coded.turn_of()


class Windows(NamedTuple):
    sink: int = 64
    recent: int = 256


METRICS = ("softmax_kl", "output_rel_error", "logit_nmse")


class Sums:
    """Adds up over sequences, heads and layers."""

    def __init__(self):
        self.kl = self.queries = self.output_error = self.output_norm = self.logit_error = self.logit_norm = 0.0

    def __iadd__(self, other):
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)
        return self

    def metrics(self):
        return dict(zip(METRICS, (self.kl / self.queries, self.output_error / self.output_norm,
                                  self.logit_error / self.logit_norm)))


def of_head(stack, head):
    return stack[head if len(stack) > 1 else 0]


def centred_energy(scores, causal):
    """sum_i sum_j (s_ij - mean_j s_ij)^2 over causal pairs."""
    means = np.where(causal, scores, 0).sum(axis=1, keepdims=True) / causal.sum(axis=1, keepdims=True)
    return (np.where(causal, scores - means, 0)**2).sum()


def stored(rows, side, head, rounded):
    """(as stored in the window, as decoded from the history), fp64. Keys before RoPE: as attention reads them."""
    if side.turn:
        write, read, mean = (of_head(x, head).astype(np.float64) for x in (side.write, side.read, side.mean))
        decoded = rounded(of_head(side.codecs, head).quantized(rounded(side.turn(rows, True, mean) @ write)))
        return rounded(rows).astype(np.float64), rounded(side.turn(decoded @ read.T, False, mean)).astype(np.float64)
    if side.mean is not None:
        rows = rows - to_f32(side.mean[head])
    kept = rounded(rounded(rows) @ rounded(of_head(side.write, head)))
    return kept.astype(np.float64), rounded(of_head(side.codecs, head).quantized(kept)).astype(np.float64)


def compare_head(layer, head, begin, end, key, value, windows, rounded):
    sums, d = Sums(), layer.q.shape[2]
    causal = np.tril(np.ones((end - begin, end - begin), bool))
    old = history(end - begin, *windows)
    k, v = layer.k[begin:end, head], layer.v[begin:end, head]
    (window_k, history_k), (window_v, history_v) = stored(k, key, head, rounded), stored(v, value, head, rounded)
    native_v = rounded(of_head(value.read, head)).astype(np.float64).T
    for one in range(layer.queries_per_head):
        q = layer.q[begin:end, head * layer.queries_per_head + one]
        exact = q.astype(np.float64) @ k.T.astype(np.float64) / np.sqrt(d)
        read = rounded(q) if key.turn else rounded(rounded(q) @ rounded(of_head(key.read, head)))
        read = read.astype(np.float64)
        mixed = np.where(old, read @ history_k.T, read @ window_k.T) / np.sqrt(d)
        p, p_mixed = (softmax(np.where(causal, scores, -np.inf)) for scores in (exact, mixed))
        output = p @ v.astype(np.float64)
        mixed_output = rounded((p_mixed * ~old) @ window_v + (p_mixed * old) @ history_v).astype(np.float64) @ native_v
        logs = np.log(np.maximum(p, 1e-300)) - np.log(np.maximum(p_mixed, 1e-300))
        sums.kl += (p * logs * causal).sum()
        sums.queries += end - begin
        sums.output_error += ((output - mixed_output)**2).sum()
        sums.output_norm += (output**2).sum()
        sums.logit_error += centred_energy(mixed - exact, causal)
        sums.logit_norm += centred_energy(exact, causal)
    return sums


def compare(layer: Layer, key: Side, value: Side, windows=Windows(), precision="serving"):
    """precision: serving (matrices, rows, decoded rows and outputs in bfloat16) or fp32."""
    rounded, sums = (to_bf16 if precision == "serving" else to_f32), Sums()
    for begin, end in layer.sequences:
        for head in range(layer.kv_heads):
            sums += compare_head(layer, head, begin, end, key, value, windows, rounded)
    return sums
