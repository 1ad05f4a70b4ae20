# SPDX-License-Identifier: MIT
"""Second moments that transforms are fitted to, per KV head and in fp64, each written down from its definition."""
import numpy as np


def second_moment(rows, weights=None):
    """sum w x^T x / sum w of rows x (N, d); all weights 1 unless given."""
    weights = np.ones(len(rows)) if weights is None else weights
    return np.einsum("n,ni,nj->ij", weights, rows, rows, optimize=True) / max(weights.sum(), 1e-12)


def softmax(scores):
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def causal_attention(layer, head):
    """For every sequence and query of a KV head: (begin, end, q (T, d), p (T, T)), p the causal softmax."""
    queries = layer.queries_of(head)
    for begin, end in layer.sequences:
        future = np.triu(np.ones((end - begin, end - begin), bool), 1)
        keys = layer.k[begin:end, head].astype(np.float64)
        for one in range(layer.queries_per_head):
            q = queries[begin:end, one]
            scores = q @ keys.T / np.sqrt(q.shape[1])
            yield begin, end, q, softmax(np.where(future, -np.inf, scores))


def qqt(layer):
    """C_h = sum over tokens and the g query heads of q^T q / (T g)."""
    return np.stack([second_moment(layer.queries_of(h).reshape(-1, layer.q.shape[2])) for h in range(layer.kv_heads)])


def sst(layer):
    """As published: values weighted by k C_h k^T."""
    covariance, moments = qqt(layer), []
    for h in range(layer.kv_heads):
        keys = layer.k[:, h].astype(np.float64)
        weights = np.einsum("ni,ij,nj->n", keys, covariance[h], keys, optimize=True)
        moments.append(second_moment(layer.v[:, h].astype(np.float64), weights))
    return np.stack(moments)


def history(tokens, sink, recent):
    """(T, T): True where query i reads key j from the quantised history."""
    i, j = np.arange(tokens)[:, None], np.arange(tokens)[None]
    return (j >= sink) & (j <= i - recent)


def fisher(layer, sink, recent):
    """Second order of the softmax KL, f_ij = p_ij (1 - p_ij) over the history: moments of queries weighted by
    sum_j f_ij and of keys weighted by sum_i f_ij, and those weights of the keys (Hkv, T)."""
    queries, key_weights = [], np.zeros((layer.kv_heads, len(layer.k)))
    for h in range(layer.kv_heads):
        rows, weights = [], []
        for begin, end, q, p in causal_attention(layer, h):
            felt = p * (1 - p) * history(end - begin, sink, recent)
            rows.append(q)
            weights.append(felt.sum(axis=1))
            key_weights[h, begin:end] += felt.sum(axis=0)
        queries.append(second_moment(np.concatenate(rows), np.concatenate(weights)))
    return np.stack(queries), weighted_keys(layer, key_weights), key_weights


def weighted_keys(layer, weights, mean=None):
    """Second moments of keys (minus a mean key (Hkv, d)) with a weight per (head, token)."""
    keys = layer.k.astype(np.float64) - (0 if mean is None else mean)
    return np.stack([second_moment(keys[:, h], weights[h]) for h in range(layer.kv_heads)])


def mean_keys(layer):
    """(Hkv, d)"""
    return layer.k.astype(np.float64).mean(axis=0)
