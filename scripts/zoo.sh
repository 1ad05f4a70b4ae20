#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Makes a set of the project's own zoo again, verified on text that it was not fitted on and published with its figures.
#   scripts/zoo.sh                         that of the sample model, for every server; takes some minutes. What comes out the same is left alone
#   scripts/zoo.sh ORG/NAME MODEL TEXTS    the coded part of a real one's, on the GPU; MODEL and TEXTS are what scripts/real_model.sh fetches,
#                                          MODEL under the name that the set shall tell
# Environment: OSCAR, the program (build/oscar).
set -euo pipefail
cd "$(dirname "$0")/.."

oscar=${OSCAR:-build/oscar}
work=out/zoo
mkdir -p "$work"
if [ $# -gt 0 ]; then
  name=$1 texts=$3
  # Two sequences of each of three domains.
  .venv/bin/python -c 'import sys, numpy
rows = [numpy.load(f"{sys.argv[1]}/{domain}_measure.npy")[:2] for domain in ("code", "dialogue", "prose")]
numpy.save(sys.argv[2], numpy.concatenate(rows))' "$texts" "$work/held_out.npy"
  fitted=(--model "$2" --tokens "$texts/calibrate.npy" --max-tokens 0 --for vllm,transformers)
  measured=(--model "$2" --tokens "$work/held_out.npy" --max-tokens 0 --seq-len 4096 --compare bf16,int4,fp8,q8_0 --max-queries 256
    --max-needles 24 --needle "$texts/needles_2k.npy" --needle-answers "$texts/needles_2k_answers.npy")
else
  name=sample/qwen3-2m model=tests/data/qwen3-2m golden=tests/data/golden/qwen3-2m
  fitted=(--model "$model" --tokens "$golden/tokens_calib.npy")
  measured=(--model "$model" --tokens "$golden/tokens_eval.npy" --sequences 4 --compare bf16,naive,hadamard,hadamard_clip
    --max-needles 48 --needle "$golden/tokens_passkey.npy" --needle-answers "$golden/passkey_answer_len.npy")
fi
set=$work/${name##*/}
"$oscar" fit "${fitted[@]}" --out "$set" --force
"$oscar" verify "$set" "${measured[@]}" --require-held-out >"$set.txt"
"$oscar" publish "$set" --zoo zoo --name "$name" --force
