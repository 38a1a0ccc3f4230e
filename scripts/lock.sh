#!/usr/bin/env bash
# Pins requirements.in, with everything it pulls in, into requirements.lock (Linux, x86-64).
set -euo pipefail
cd "$(dirname "$0")/.."
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 -m venv "$tmp/venv"
"$tmp/venv/bin/python" -m pip install --quiet --disable-pip-version-check -r requirements.in
{
  echo "# Made by 'make lock' from requirements.in. Do not edit."
  "$tmp/venv/bin/python" -m pip freeze
} > requirements.lock
