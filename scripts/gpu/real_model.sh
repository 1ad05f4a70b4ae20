#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# On a machine with an NVIDIA GPU, torch and transformers: real_model.sh MODEL.gguf TEXTS PART […], a part of what
# scripts/real_model.sh measures, with further options: recipes, long, tasks or domains. TEXTS is the folder
# out/real_model/texts/MODEL of that script (--fetch-only makes it). The parts add up in one document, $OUT/real_model.json, which a later part of the same model finds in /tmp/oscar-real-model. See place.sh for what is run.
set -euo pipefail
. "$(dirname "$0")/place.sh"
model=$1 texts=$2 part=$3
kept=/tmp/oscar-real-model/${model##*/}
mkdir -p "$kept"
export PYTHONPATH=$source/apps/python${PYTHONPATH:+:$PYTHONPATH} OSCAR_TORCH_LIBRARY=$build/liboscar_torch.so
case "$part" in
  recipes | long | tasks | domains)
    python3 -B "$source/tests/bench/bench_real_model.py" --model "$model" --texts "$texts" --binary "$build/oscar" \
      --device cuda --part "$part" --work "$kept/work" --out "$kept/real_model.json" --commit "$commit" --gpu "$gpu" \
      "${@:4}"
    ;;
  *) die "no part $part; there are recipes, long, tasks and domains" ;;
esac
cp "$kept/real_model.json" "$out"
