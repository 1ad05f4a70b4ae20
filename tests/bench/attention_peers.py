# SPDX-License-Identifier: MIT
"""Decode attention of others, timed as the kernels are: torch's over bfloat16 rows, and FlashInfer's over paged bfloat16 and fp8 caches, which
comes from PyPI (flashinfer-python) and is no requirement: where it is missing, the benchmarks say so."""
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpu_timing import time_graph

PAGE = 16


def time_sdpa(batch, heads, kv_heads, dim, length, layers, tokens=1):
    best = {}
    q = torch.randn(batch, heads, tokens, dim, device="cuda", dtype=torch.bfloat16)
    kv = [torch.randn(2, batch, kv_heads, length, dim, device="cuda", dtype=torch.bfloat16) for _ in range(layers)]
    for name in ("CUDNN_ATTENTION", "FLASH_ATTENTION"):
        try:
            with sdpa_kernel(getattr(SDPBackend, name)):
                best[name.split("_")[0].lower()] = time_graph(
                    lambda i: torch.nn.functional.scaled_dot_product_attention(
                        q, kv[i % layers][0], kv[i % layers][1], enable_gqa=True), max(layers, 5), 15)
        except RuntimeError as error:
            print("peer", name, "cannot run:", str(error).splitlines()[0], file=sys.stderr)
    return best


def time_flashinfer(batch, heads, kv_heads, dim, length, layers):
    """Microseconds of one step, by the type of the cache; of CUDA cores and tensor cores, the faster. What failed: its message."""
    try:
        import flashinfer
    except ImportError as error:
        return {"missing": str(error)}
    found = {"version": flashinfer.__version__}
    for name, dtype in (("bf16", torch.bfloat16), ("fp8", torch.float8_e4m3fn)):
        times = {}
        for cores, tensor_cores in (("cuda cores", False), ("tensor cores", True)):
            try:
                times[cores] = _time(flashinfer, dtype, tensor_cores, batch, heads, kv_heads, dim, length, layers)
            except Exception as error:  # whatever a peer raises is a result
                times[cores] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        numbers = [x for x in times.values() if not isinstance(x, str)]
        found[name] = {"microseconds": min(numbers, default=None), **times}
    return found


def _time(flashinfer, dtype, tensor_cores, batch, heads, kv_heads, dim, length, layers):
    pages = -(-length // PAGE)
    options = {"use_tensor_cores": True, "backend": "fa2"} if tensor_cores else {}
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(torch.zeros(256 << 20, dtype=torch.uint8, device="cuda"), "NHD", **options)
    indptr = torch.arange(batch + 1, dtype=torch.int32) * pages
    indices = torch.randperm(batch * pages, dtype=torch.int32)
    last = torch.full((batch,), length - (pages - 1) * PAGE, dtype=torch.int32)
    wrapper.plan(indptr.cuda(), indices.cuda(), last.cuda(), heads, kv_heads, dim, PAGE, q_data_type=torch.bfloat16, kv_data_type=dtype)
    q = torch.randn(batch, heads, dim, device="cuda", dtype=torch.bfloat16)
    caches = [torch.randn(batch * pages, 2, PAGE, kv_heads, dim, device="cuda", dtype=torch.bfloat16).to(dtype) for _ in range(layers)]
    out = torch.empty_like(q)
    _check(wrapper.run(q, caches[0]), q, caches[0], indices, length)
    return time_graph(lambda i: wrapper.run(q, caches[i % layers], out=out), max(layers, 5), 15)


def _check(out, q, cache, indices, length):
    """The first sequence, against the definition: the peer reads what we read."""
    dim, kv_heads = cache.shape[4], cache.shape[3]
    rows = cache[indices[:-(-length // PAGE)].cuda().long()].float().transpose(0, 1).flatten(1, 2)[:, :length]
    k, v = rows.transpose(1, 2).double()
    scores = q[0].double().reshape(kv_heads, -1, dim) @ k.transpose(1, 2) * dim**-0.5
    expected = (scores.softmax(-1) @ v).reshape(q.shape[1:])
    error = float((out[0].double() - expected).norm() / expected.norm())
    if not error < 0.02:
        raise ValueError(f"its first output is {error:.3f} from the definition")
