#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# One step of a fit whose data lie in parts, for jobs that share a folder and nothing else: map_reduce.sh STEP [INDEX]
#   first INDEX    sums of part INDEX, from 0
#   join           the sums of all parts
#   second INDEX   value moments of part INDEX, which weigh values by the query moments of everything
#   reduce         the rotation set, $WORK/set
# Environment: PARTS, a folder with one entry a part, in the order of their names: a dump, or for MODEL a file of token ids
# (.npy, .jsonl) or of text; WORK, the shared folder; FIT_OPTIONS, further options of "oscar fit", the same in every step;
# AWAIT, seconds that a step may wait for files of the steps before it, which some shared file systems show late (0).
# What a step made is not made again: after a failure, run everything once more. $WORK/inputs.txt says what it was made of: other
# parts, another model or other options are refused there.
set -euo pipefail

die() { printf 'map_reduce: error: %s\n' "$*" >&2; exit 1; }

[ $# -ge 1 ] || die "which step? first INDEX, join, second INDEX or reduce"
: "${PARTS:?a folder with one entry for each part}" "${WORK:?a folder that all steps share}"
read -ra fit_options <<<"${FIT_OPTIONS:-}"
parts=("$PARTS"/*)

# The options by which oscar reads a part.
input() {
  local part=${parts[$1]:-}
  [ -e "$part" ] || die "there is no part $1 in $PARTS"
  if [ -d "$part" ]; then printf '%s\n' --dump "$part"; return; fi
  printf '%s\n' --model "${MODEL:?the model that runs on the parts}"
  case $part in *.npy | *.jsonl) printf '%s\n' --tokens "$part" ;; *) printf '%s\n' --text "$part" ;; esac
}

# What tells a part or a model: of a file its size, beginning and end, of a folder names, sizes and manifests.
print_of() {
  if [ -f "$1" ]; then { stat -Lc %s "$1" && head -c 1000000 "$1" && tail -c 1000000 "$1"; } | sha256sum; return; fi
  (cd "$1" && find -L . -type f -printf '%P %s\n' | LC_ALL=C sort && cat manifest.json config.json 2>/dev/null || true) | sha256sum
}

inputs() {
  local part
  for part in "${parts[@]}"; do printf 'part %s %s\n' "${part##*/}" "$(print_of "$part")"; done
  printf 'options %s\n' "${fit_options[*]}"
  # Steps that add up need no model, and may run where there is none.
  if [ -e "${MODEL:-}" ]; then
    printf 'model %s\n' "$(print_of "$MODEL")"
  elif [[ ${MODEL:-} == *://* ]]; then
    printf 'model %s\n' "$(printf %s "$MODEL" | sha256sum)" # an address may hold a password
  fi
}

# The first job leaves the record; many may begin at once.
require_same_inputs() {
  local record=$WORK/inputs.txt own other
  own=$(mktemp "$WORK/inputs.XXXXXX")
  inputs >"$own"
  ln "$own" "$record" 2>/dev/null || true
  other=$(grep -vxFf "$record" "$own" || true)
  if ! grep -q '^model ' "$record" && [[ $other == "model "* ]]; then
    printf '%s\n' "$other" >>"$record"
    other=
  fi
  [ -n "$other" ] || other=$(grep -vxFf "$own" "$record" | grep -v '^model ' || true)
  rm -f "$own"
  [ -z "$other" ] || die "$WORK is of other inputs ($record); choose another WORK or remove it. What differs: ${other%%$'\n'*}"
}

# Statistics appear whole or not at all.
await() {
  local file waited=0
  for file; do
    until [ -e "$file" ]; do
      [ "$waited" -lt "${AWAIT:-0}" ] || die "$file is not there: run the steps before this one"
      sleep 1
      waited=$((waited + 1))
    done
  done
}

of_parts() { for i in "${!parts[@]}"; do printf '%s\n' "$WORK/$1_$i.safetensors"; done; }

# save FILE OPTION...
save() {
  local file=$1
  shift
  if [ -e "$file" ]; then printf 'map_reduce: %s is there already\n' "$file" >&2; return; fi
  oscar fit "$@" --save-stats "$file" "${fit_options[@]}"
}

mkdir -p "$WORK"
require_same_inputs
all=$WORK/all.safetensors
mapfile -t firsts < <(of_parts first)
mapfile -t seconds < <(of_parts second)
case $1 in
  first)
    options=$(input "$2")
    mapfile -t source <<<"$options"
    save "${firsts[$2]}" "${source[@]}"
    ;;
  join)
    await "${firsts[@]}"
    save "$all" --stats "${firsts[@]}"
    ;;
  second)
    await "$all"
    options=$(input "$2")
    mapfile -t source <<<"$options"
    save "${seconds[$2]}" "${source[@]}" --stats "$all"
    ;;
  reduce)
    await "$all" "${seconds[@]}"
    [ -e "$WORK/set" ] || oscar fit --stats "$all" "${seconds[@]}" --out "$WORK/set" "${fit_options[@]}"
    ;;
  *) die "unknown step $1" ;;
esac
