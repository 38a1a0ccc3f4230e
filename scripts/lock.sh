#!/usr/bin/env bash
# Pins the packages of requirements.in and requirements-bench.in with their dependencies, and those
# of requirements-nodeps.in without, in the .lock file beside each (Linux, x86-64). Packages of both
# have the same version, because .venv-bench is an overlay over .venv.
set -euo pipefail
cd "$(dirname "$0")/.."
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

lock() { # name of the .in file, and more arguments of pip install
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
lock requirements-docs
