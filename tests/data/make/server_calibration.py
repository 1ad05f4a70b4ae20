# SPDX-License-Identifier: MIT
"""Makes what OSCAR's SGLang keeps of its calibration (lib/dump/server_file.hpp), and the dump of the same rows: some layers,
random. Needs torch. server_calibration.py FOLDER makes FOLDER/{server,dump}, of two ranks."""
import sys
from pathlib import Path

import torch

LAYERS, LENGTHS, QUERIES, KEYS, DIM = (0, 3), (200, 140), 4, 2, 16
TOKENS = sum(LENGTHS)


def made_rows():
    """{layer: (q, k, v)}, correlated, with keys that have a mean; bfloat16 as a server has them."""
    generator = torch.Generator().manual_seed(7)

    def rows(heads, mean):
        mixed = torch.randn(TOKENS, heads, DIM, generator=generator) @ torch.randn(heads, DIM, DIM, generator=generator).mul(0.3)[0]
        return (mixed + mean * torch.randn(heads, DIM, generator=generator)).to(torch.bfloat16)

    return {layer: (rows(QUERIES, 0.2), rows(KEYS, 1), rows(KEYS, 0)) for layer in LAYERS}


def sums_of(q, k, v, rho):
    """Of a rank's heads, in float64; q are those that it has of the heads that read its keys."""
    q, k, v = (x.to(torch.float64) for x in (q, k, v))
    heads, group = k.shape[1], q.shape[1] // k.shape[1]
    grouped = q.reshape(TOKENS, heads, group, DIM)
    queries = torch.einsum("thgd,thge->hde", grouped, grouped) / (TOKENS * group)
    scores = torch.einsum("thd,hde,the->th", k, queries, k)
    values = torch.einsum("th,thd,the->hde", scores, v, v) / scores.sum(0)[:, None, None]
    return {"M_q": queries, "k_sum": k.sum(0), "M_k": torch.einsum("thd,the->hde", k, k), "S_v": values,
            "rho": torch.eye(group, dtype=torch.float64).repeat(heads, 1, 1) if rho else None}


def save(folder, rows, ranks=1, copies=1, stride=32, rho=True, scaling=DIM ** -0.5, kinds=("moments", "rows")):
    """The files of `ranks` ranks, each of which stood for `copies` that held the same KV heads, and part of the queries."""
    folder.mkdir(parents=True, exist_ok=True)
    keys, queries = KEYS // ranks, QUERIES // (ranks * copies)
    positions = torch.cat([torch.arange(length, dtype=torch.int32) for length in LENGTHS])
    for rank in range(ranks):
        own = {"moments": {}, "rows": {}}
        for layer, (q, k, v) in rows.items():
            q = q[:, rank * copies * queries:][:, :queries]
            k, v = (x[:, rank * keys:][:, :keys].contiguous() for x in (k, v))
            shared = {"q_scaling": scaling, "count": TOKENS}
            own["moments"][layer] = {**sums_of(q, k, v, rho), **shared}
            own["rows"][layer] = {"k": k, "v": v, "q_samples": q[::stride].float().contiguous(), "positions": positions, **shared}
        common = {"model_path": "test/model", "model_revision": None, "prompt_sha256": "a" * 64, "tokens": TOKENS, "tp_rank": rank,
                  "tp_size": ranks, "local_kv_heads": keys, "global_kv_heads": KEYS, "global_q_heads": QUERIES, "head_dim": DIM, "v_head_dim": DIM}
        also = {"moments": {"format_version": 2},
                "rows": {"format_version": 1, "q_head_offset": rank * copies * queries, "q_sample_stride": stride}}
        for kind in kinds:
            torch.save({**common, **also[kind], "layers": own[kind]}, folder / f"oscar_{kind}_rank{rank}.pt")
    return folder


def dump(folder, rows):
    for layer, parts in rows.items():
        for name, tensor in zip(("q", "k", "v", "seq_lens"), (*parts, torch.tensor(LENGTHS, dtype=torch.int32))):
            (folder / f"layer_{layer}/{name}").mkdir(parents=True)
            torch.save(tensor, folder / f"layer_{layer}/{name}/1.pt")
    return folder


if __name__ == "__main__":
    save(Path(sys.argv[1]) / "server", made_rows(), ranks=2)
    dump(Path(sys.argv[1]) / "dump", made_rows())
