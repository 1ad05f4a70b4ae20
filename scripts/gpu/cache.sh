#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# On a machine with an NVIDIA GPU, torch and transformers: cache.sh [OPTION...], PackedCache on the kernels: its tests, its
# fidelity and its speed; options: tests/bench/bench_cache.py. See place.sh for what is run. Writes cache.json and
# cache-tests.log into $OUT or .gpu/out. Exit status 1 if a test failed or the KL divergence is not that of `oscar verify`.
set -euo pipefail
. "$(dirname "$0")/place.sh"
export OSCAR_PROJECT=$source OSCAR_BINARY=$build/oscar OSCAR_TORCH_LIBRARY=$build/liboscar_torch.so PYTHONPATH=$source/apps/python
status=0
for part in cache_rows vllm_backend; do
  OSCAR_TEST_DEVICE=cuda timeout 150 python3 -B "$source/tests/python/${part}_test.py" || status=1
done >"$out/cache-tests.log" 2>&1
grep -v 'Loading weights' "$out/cache-tests.log" | tail -40 >&2
python3 -B "$source/tests/bench/bench_cache.py" --json "$out/cache.json" --commit "$commit" --gpu "$gpu" "$@" || status=1
exit "$status"
