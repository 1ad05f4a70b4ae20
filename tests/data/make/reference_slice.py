# SPDX-License-Identifier: MIT
"""Makes tests/data/reference-fit: one layer of a dump of the sample model, what the published fitter makes of it, and
what an independent numpy implementation says of attention over it.

    .venv/bin/python tests/data/make/reference_slice.py <reference-fit> tests/data/reference-fit

<reference-fit> has dump/ (all four layers, in the published layout) and expected/, the files that the published fitter
(rotation/compute_kv_rotation.py of OSCAR) wrote for it, and oracle.json. A layer's rotations depend on no other layer.
"""
import json
import shutil
import sys
from pathlib import Path

import torch

LAYER = 2


def main(source, target):
    source, target = Path(source), Path(target)
    shutil.copytree(source / f"dump/layer_{LAYER}", target / f"dump/layer_{LAYER}")
    (target / "expected").mkdir()
    values = {f"v_rotation_{name}.pt" for name in ("hadamard", "sst_plain", "sst_r_h_pbr")}
    for file in sorted((source / "expected").glob("*.pt")):
        if file.name not in values and not file.name.startswith(("k_rotation_qqt", "k_rotation_hadamard")):
            continue
        content = torch.load(file)
        layer = {name: part.clone() if isinstance(part, torch.Tensor) else part
                 for name, part in content["layers"][LAYER].items()}
        torch.save({**content, "layers": {LAYER: layer}}, target / "expected" / file.name)
    oracle = json.loads((source / "oracle.json").read_text())
    name = f"layer_{LAYER}"
    (target / "oracle.json").write_text(json.dumps({name: oracle[name]}, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:3])
