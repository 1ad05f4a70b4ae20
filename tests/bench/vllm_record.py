# SPDX-License-Identifier: MIT
"""Records what a real vLLM asks of oscar_kv's attention backend, for vllm_replay.py: vllm_record.py OUT.pt [--set NAME] [--model FOLDER]

Serves the model with the set on the CPU (an environment of scripts/setup.sh --vllm) and lets three requests run: two long prompts in
chunks, one that shares a prefix, decode steps together. OUT.pt has each step's metadata as vLLM built it, and of two layers
queries, keys, values and outputs. In the server this module is a plugin of vLLM.
"""
import argparse
import concurrent.futures
import os
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
STEPS, LAYERS = 120, 2


def register():
    """In the server's processes: wraps the backend's builder and its layers."""
    out = os.environ.get("OSCAR_TEST_RECORD")
    if not out:
        return
    import torch
    from oscar_kv import vllm_backend

    builder, impl = vllm_backend.PackedMetadataBuilder, vllm_backend.PackedImpl
    build, forward, made = builder.build, impl.forward, builder.__init__
    state = {"steps": [], "layers": {}, "config": None}

    def record_config(self, kv_cache_spec, layer_names, vllm_config, device):
        made(self, kv_cache_spec, layer_names, vllm_config, device)
        scheduler = vllm_config.scheduler_config
        state["config"] = {"block_size": kv_cache_spec.block_size, "blocks": vllm_config.cache_config.num_gpu_blocks,
                           "requests": scheduler.max_num_seqs, "tokens": scheduler.max_num_batched_tokens}

    def record_step(self, prefix, common, *args, **kwargs):
        fields = ("query_start_loc_cpu", "num_actual_tokens", "seq_lens", "block_table_tensor", "slot_mapping")
        kept = {name: getattr(common, name) for name in fields}
        state["steps"].append({name: x.clone() if isinstance(x, torch.Tensor) else x for name, x in kept.items()} | {"calls": {}})
        return build(self, prefix, common, *args, **kwargs)

    def record_call(self, layer, query, key, value, kv_cache, metadata, output, *args, **kwargs):
        found = forward(self, layer, query, key, value, kv_cache, metadata, output, *args, **kwargs)
        if metadata is None or not state["steps"]:
            return found
        if layer.layer_name in state["layers"] or len(state["layers"]) < LAYERS:
            state["layers"].setdefault(layer.layer_name, {"heads": self.num_heads, "kv_heads": self.num_kv_heads, "dim": self.head_size,
                                                          "scale": self.scale})
            count = metadata.num_actual_tokens
            state["steps"][-1]["calls"][layer.layer_name] = [x[:count].clone() for x in (query, key, value, output)]
            if len(state["steps"]) <= STEPS and len(state["steps"][-1]["calls"]) == LAYERS:
                torch.save(state, out + ".new")
                os.replace(out + ".new", out)
        return found

    builder.__init__, builder.build, impl.forward = record_config, record_step, record_call


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--set", default=str(PROJECT / "zoo/sample/qwen3-2m/latest"))
    options = parser.parse_args()
    os.environ.setdefault("OSCAR_PROJECT", str(PROJECT))
    os.environ.setdefault("OSCAR_BINARY", str(PROJECT / "build/oscar"))
    sys.path[:0] = [str(PROJECT / "tests/python"), str(PROJECT / "apps/python")]
    import numpy as np
    import vllm_server_test

    case = vllm_server_test.ServerTest("test_a_coded_set")
    case.setUp()
    for known in case.folder.glob("oscar_kv-*"):
        entries = known / "entry_points.txt"
        entries.write_text(entries.read_text() + "record = vllm_record:register\n")
    paths = f"{PROJECT / 'apps/python'}:{case.folder}:{Path(__file__).parent}"
    try:
        case.served("--max-num-batched-tokens", "256", OSCAR_KV_SET=options.set, PYTHONPATH=paths,
                    OSCAR_TEST_RECORD=str(Path(options.out).resolve()))
        ids = np.load(vllm_server_test.TOKENS).reshape(-1).tolist()
        prompts = [ids[:500], ids[9000:9420], ids[:300] + ids[5000:5080]]
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda prompt: case.complete(prompt, 40), prompts))
    finally:
        case.doCleanups()


if __name__ == "__main__":
    main()
