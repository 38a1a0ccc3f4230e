#!/usr/bin/env bash
# Prepares a checkout for building: system packages, .venv with the pinned Python packages, and
# .venv/libtorch, where .cargo/config.toml finds libtorch. It can be run again.
set -euo pipefail
cd "$(dirname "$0")/.."

print_bold() { printf '\033[1m%s\033[0m\n' "$*" >&2; }

# Pairs of command:package. libjpeg-turbo is built from source, which needs cmake and nasm.
need=()
for pair in cc:gcc c++:g++ make:make cmake:cmake nasm:nasm; do
  command -v "${pair%%:*}" >/dev/null || need+=("${pair##*:}")
done
python3 -c 'import ensurepip, venv' 2>/dev/null || need+=(python3-venv)

if ((${#need[@]})); then
  if ((EUID != 0)); then
    print_bold "These system packages are missing: ${need[*]}"
    print_bold "Install them with: sudo apt-get install ${need[*]}"
    exit 1
  fi
  print_bold "Installing ${need[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${need[@]}" >/dev/null
fi

command -v cargo >/dev/null || { print_bold "Rust is missing: install rustup, then Rust 1.95 or later"; exit 1; }
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { print_bold "Python 3.11 or later is needed"; exit 1; }

lock=$(cat requirements.lock requirements-nodeps.lock scripts/install_packages.sh | sha256sum | cut -d' ' -f1)
if [[ "$(cat .venv/.lock 2>/dev/null)" != "$lock" ]]; then
  print_bold "Installing the Python packages of requirements.lock into .venv (torch is large)"
  python3 -m venv .venv
  bash scripts/install_packages.sh .venv -r requirements.lock
  bash scripts/install_packages.sh .venv --no-deps -r requirements-nodeps.lock
  echo "$lock" > .venv/.lock
fi

torch=$(.venv/bin/python -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])')
ln -sfn "$torch" .venv/libtorch
# With this file `import tidemill` finds the package in the checkout.
site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "$PWD/python" > "$site/tidemill.pth"
touch .venv/.ready
