#!/usr/bin/env bash
# Azurite, the emulator of Azure Blob Storage for tests/test_azurite.py, in .venv-emulators. It can be run
# again.
set -euo pipefail
cd "$(dirname "$0")/.."

azurite=azurite@3.37.0

if ! command -v npm >/dev/null; then
  if ((EUID != 0)); then
    echo "npm is missing: install it with sudo apt-get install npm" >&2
    exit 1
  fi
  echo "Installing npm" >&2
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends npm >/dev/null
fi

if [[ "$(cat .venv-emulators/.lock 2>/dev/null)" != "$azurite" ]]; then
  echo "Installing $azurite into .venv-emulators" >&2
  rm -rf .venv-emulators
  npm install --silent --ignore-scripts --no-audit --no-fund --prefix .venv-emulators "$azurite"
  echo "$azurite" > .venv-emulators/.lock
fi
touch .venv-emulators/.ready
