#!/usr/bin/env bash
# Pins requirements.in and requirements-bench.in, with everything they pull in, and requirements-nodeps.in without, into
# the .lock beside each (Linux, x86-64). What both need has the same version, for .venv-bench is laid over .venv.
set -euo pipefail
cd "$(dirname "$0")/.."
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

lock() { # name, and further arguments of pip install
  local name=$1 pip=("$tmp/$1/bin/python" -m pip)
  python3 -m venv "$tmp/$name"
  "${pip[@]}" install --quiet --disable-pip-version-check -r "$name.in" "${@:2}"
  {
    echo "# Made by 'make lock' from $name.in. Do not edit."
    "${pip[@]}" freeze
  } > "$name.lock"
}

lock requirements
lock requirements-nodeps --no-deps
lock requirements-bench -c requirements.lock
