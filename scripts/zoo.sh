#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Makes the project's own zoo again: a set of the sample model for every server, verified on text that it was not fitted on and
# published with its figures. If it comes out the same it is left alone. Takes some minutes.
#   OSCAR=build/oscar scripts/zoo.sh
set -euo pipefail
cd "$(dirname "$0")/.."

oscar=${OSCAR:-build/oscar}
model=tests/data/qwen3-2m
golden=tests/data/golden/qwen3-2m
work=out/zoo

mkdir -p "$work"
"$oscar" fit --model "$model" --tokens "$golden/tokens_calib.npy" --out "$work/latest" --force
"$oscar" verify "$work/latest" --model "$model" --tokens "$golden/tokens_eval.npy" --sequences 4 \
  --compare bf16,naive,hadamard,hadamard_clip --max-needles 48 \
  --needle "$golden/tokens_passkey.npy" --needle-answers "$golden/passkey_answer_len.npy" >"$work/latest.txt"
"$oscar" publish "$work/latest" --zoo zoo --name sample/qwen3-2m:latest --force
