#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# On a machine with an NVIDIA GPU, torch and transformers: cache.sh [OPTION...], the speed of PackedCache on the kernels; options:
# tests/bench/bench_cache.py. See place.sh for what is run. Writes cache.json into $OUT or .gpu/out.
set -euo pipefail
. "$(dirname "$0")/place.sh"
export OSCAR_PROJECT=$source OSCAR_BINARY=$build/oscar OSCAR_TORCH_LIBRARY=$build/liboscar_torch.so PYTHONPATH=$source/apps/python
exec python3 -B "$source/tests/bench/bench_cache.py" --json "$out/cache.json" --commit "$commit" --gpu "$gpu" "$@"
