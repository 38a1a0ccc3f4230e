#!/usr/bin/env bash
# The RUSTC_WORKSPACE_WRAPPER of .ci/run: lints a crate with clippy, then compiles it with rustc.
# `cargo clippy` beside `cargo build` would compile every dependency twice.
set -euo pipefail
rustc=$1
shift

# Clippy only checks: it writes its metadata aside, and tells cargo of no files.
aside=$(mktemp -d)
trap 'rm -rf "$aside"' EXIT
arguments=() previous=
for argument; do
  value=$argument
  [[ $previous != --out-dir ]] || value=$aside
  case $argument in
    --emit=*) value=--emit=metadata ;;
    --json=*) value=${argument/artifacts,/} ;;
  esac
  arguments+=("$value")
  previous=$argument
done

# Cargo also asks rustc for its version.
[[ -z ${CARGO_CRATE_NAME:-} ]] || clippy-driver "$rustc" "${arguments[@]}" -D warnings
"$rustc" "$@"
