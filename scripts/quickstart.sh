#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs what is missing, builds, and runs the whole job on the bundled sample model: dump, fit, verify, publish, pull.
# Everything it makes lies in out/quickstart; a second run makes it again.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
scripts/build.sh oscar >&2

model=tests/data/qwen3-2m
golden=tests/data/golden/qwen3-2m
out=out/quickstart
name=sample/qwen3-2m
export OSCAR_CACHE=$out/cache

step() { printf '\n== %s\n' "$*" >&2; }
oscar() { printf '$ oscar %s\n' "$*" >&2; build/oscar "$@"; }

rm -rf "$out"
mkdir -p "$out"

step "1/5  fit: one set for every server, from one run of the model over the calibration text"
oscar fit --model "$model" --tokens "$golden/tokens_calib.npy" --out "$out/set"

step "2/5  dump: keep queries, keys and values of other text, as a server's dump has them"
oscar dump --model "$model" --tokens "$golden/tokens_eval.npy" --sequences 4 --out "$out/held_out"

step "3/5  verify: structure, attention in that dump and the model itself, beside other methods; a verdict for each server"
oscar verify "$out/set" --dump "$out/held_out" --model "$model" --tokens "$golden/tokens_eval.npy" --sequences 4 \
  --compare bf16,naive,hadamard_clip,int4 \
  --needle "$golden/tokens_passkey.npy" --needle-answers "$golden/passkey_answer_len.npy" --max-needles 8 \
  --report "$out/report.html" --json "$out/report.json" >"$out/table.txt" || { status=$?; cat "$out/table.txt"; exit "$status"; }

step "4/5  publish: into a zoo that any web server can serve"
oscar publish "$out/set" --zoo "$out/zoo" --name "$name"

step "5/5  pull: fetch it back, every byte checked"
pulled=$(oscar pull "$name" --zoo "$out/zoo")
diff -r "$out/set" "$pulled"

printf '\n'
cat "$out/table.txt"
printf '\n'
printf '%-7s %s\n' \
  "report" "$out/report.html (figures: $out/report.json)" \
  "set" "$out/set (vLLM: OSCAR_KV_SET=$out/set vllm serve …; SGLang: oscar serve-env $out/set)" \
  "zoo" "$out/zoo" \
  "pulled" "$pulled"
