#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The coded part of a set, its layers and the KV heads of each dealt to so many: plans of a real model for the shape of another, to be timed.

dealt_set.py SET OUT LAYERS HEADS. Needs numpy and safetensors.
"""
import copy
import hashlib
import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

source, out, layers, heads = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
tensors, manifest = load_file(source / "coded.safetensors"), json.loads((source / "manifest.json").read_text())
part, dealt, listed = manifest["parts"]["coded"], {}, []
for i in range(layers):
    layer = copy.deepcopy(part["layers"][i % len(part["layers"])])
    chosen = [(i + head) % len(layer["key"]["row_bytes"]) for head in range(heads)]
    for side in ("key", "value"):
        for name in ("row_bytes", "most_levels"):
            layer[side][name] = [layer[side][name][head] for head in chosen]
        layer[side]["bits"] = 8 * sum(layer[side]["row_bytes"]) / (heads * layer["head_dim"])
    prefix = f"layers.{layer['layer_id']}."
    dealt |= {f"layers.{i}.{name[len(prefix):]}": np.ascontiguousarray(x[chosen]) for name, x in tensors.items() if name.startswith(prefix)}
    listed.append(layer | {"layer_id": i})
out.mkdir(parents=True, exist_ok=True)
save_file(dealt, out / "coded.safetensors")
data = (out / "coded.safetensors").read_bytes()
part["layers"], part["codec"]["bits"] = listed, sum(layer[side]["bits"] for layer in listed for side in ("key", "value")) / (2 * layers)
manifest["model"] |= {"id": "", "config_sha256": "", "weights_sha256": "", "num_layers": layers, "num_attention_heads": 4 * heads, "num_key_value_heads": heads}
manifest["files"] = [{"path": "coded.safetensors", "sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}]
for name in ("verification", "signature"):
    manifest.pop(name, None)
(out / "manifest.json").write_text(json.dumps(manifest))
