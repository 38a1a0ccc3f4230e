#!/usr/bin/env bash
# How cargo calls rustc for the crates of this workspace (.cargo/config.toml).
#
# Tests compile unoptimised: they call optimised crates, and took a fifth of a build otherwise.
# With TIDEMILL_CLIPPY=1 (.ci/run), clippy lints what is compiled. `cargo clippy` beside
# `cargo build` would compile every dependency twice.
set -euo pipefail
rustc=$1
shift

is_test=false source=
for argument; do
  case $argument in
    --test) is_test=true ;;
    *.rs) source=$argument ;;
  esac
done

lint() {
  # Clippy only checks: it writes its metadata aside, and tells cargo of no files.
  local aside argument value status=0 previous='' arguments=()
  aside=$(mktemp -d)
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
  clippy-driver "$rustc" "${arguments[@]}" -D warnings || status=$?
  rm -rf "$aside"
  return $status
}

options=()
if [[ $is_test == true ]]; then options+=(-C opt-level=0); fi
# Cargo also asks rustc for its version.
if [[ ${TIDEMILL_CLIPPY:-} == 1 && -n ${CARGO_CRATE_NAME:-} ]]; then
  # The unit tests of a crate compile its code once more, and clippy sees it there.
  case $is_test:$source in
    false:*src/lib.rs | false:*src/main.rs) options+=(-D warnings) ;;
    *) lint "$@" ;;
  esac
fi
exec "$rustc" "$@" "${options[@]}"
