#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs what is missing, builds, and runs the whole pipeline on the bundled sample model: dump, fit, verify, publish,
# pull. Everything it makes lies in out/quickstart; a second run makes it again.
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

step "1/5  dump: run the model, keep its queries, keys and values"
oscar dump --model "$model" --tokens "$golden/tokens_calib.npy" --out "$out/dump"

step "2/5  fit: one rotation and one clip ratio per layer, for keys and for values"
oscar fit --dump "$out/dump" --recipe oscar --out "$out/rotations"

step "3/5  verify: structure, attention and the model itself on text it was not fitted on, beside other methods"
oscar verify "$out/rotations" --model "$model" --tokens "$golden/tokens_eval.npy" --sequences 4 \
  --compare bf16,naive,hadamard,hadamard_clip \
  --needle "$golden/tokens_passkey.npy" --needle-answers "$golden/passkey_answer_len.npy" --max-needles 16 \
  --report "$out/report.html" --json "$out/report.json" >"$out/table.txt" || { status=$?; cat "$out/table.txt"; exit "$status"; }

step "4/5  publish: into a zoo that any web server can serve"
oscar publish "$out/rotations" --zoo "$out/zoo" --name "$name"

step "5/5  pull: fetch it back, every byte checked"
pulled=$(oscar pull "$name" --zoo "$out/zoo")
for file in "$out"/rotations/*.pt; do
  cmp "$file" "$pulled/$(basename "$file")"
done

printf '\n'
cat "$out/table.txt"
printf '\n'
printf '%-10s %s\n' \
  "report" "$out/report.html (figures: $out/report.json)" \
  "rotations" "$out/rotations (oscar serve-env prints how to serve them in SGLang)" \
  "zoo" "$out/zoo" \
  "pulled" "$pulled"
