#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Makes the project's own zoo again: the sample model by several recipes, each verified on text that it was not fitted on and
# published with its figures, and the page about them. Sets that come out the same are left alone. Takes some minutes.
#   OSCAR=build/oscar scripts/zoo.sh [TAG...]
set -euo pipefail
cd "$(dirname "$0")/.."

oscar=${OSCAR:-build/oscar}
model=tests/data/qwen3-2m
golden=tests/data/golden/qwen3-2m
work=out/zoo
declare -A recipes=(
  [latest]="--recipe oscar"
  [stretch]="--recipe stretch --key-objective fisher"
  [coded]="--recipe coded --bits 2.25"
)
tags=("$@")
[ ${#tags[@]} -gt 0 ] || tags=(latest stretch coded)

mkdir -p "$work"
for tag in "${tags[@]}"; do
  read -ra options <<<"${recipes[$tag]}"
  "$oscar" fit --model "$model" --tokens "$golden/tokens_calib.npy" --out "$work/$tag" --force "${options[@]}"
  "$oscar" verify "$work/$tag" --model "$model" --tokens "$golden/tokens_eval.npy" --sequences 4 \
    --compare bf16,naive,hadamard,hadamard_clip --max-needles 48 \
    --needle "$golden/tokens_passkey.npy" --needle-answers "$golden/passkey_answer_len.npy" >"$work/$tag.txt"
  "$oscar" publish "$work/$tag" --zoo zoo --name "sample/qwen3-2m:$tag" --force
done
