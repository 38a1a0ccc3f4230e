#!/usr/bin/env bash
# How cargo calls rustc for the crates of this workspace (.cargo/config.toml).
#
# Tests compile unoptimised: they call optimised crates, and took a fifth of a build otherwise.
# With TIDEMILL_CLIPPY=1 (.ci/run), clippy's compiler lints and compiles the tests, and with them each
# crate. `cargo clippy` beside `cargo build` would compile every dependency twice.
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

options=()
if [[ $is_test == true ]]; then options+=(-C opt-level=0); fi
# Cargo also asks rustc for its version.
if [[ ${TIDEMILL_CLIPPY:-} == 1 && -n ${CARGO_CRATE_NAME:-} ]]; then
  options+=(-D warnings)
  # Unit tests compile the code of their crate once more, where clippy sees it. It optimises less.
  case $is_test:$source in
    false:*src/lib.rs | false:*src/main.rs) ;;
    *) exec clippy-driver "$rustc" "$@" "${options[@]}" ;;
  esac
fi
exec "$rustc" "$@" "${options[@]}"
