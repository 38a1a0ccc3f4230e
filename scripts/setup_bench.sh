#!/usr/bin/env bash
# Makes .venv-bench: the packages of requirements-bench.lock as an overlay over .venv, so that torch
# is installed only once and .venv has only what the tests need. It can be run again.
set -euo pipefail
cd "$(dirname "$0")/.."

python=.venv-bench/bin/python
lock=$(cat requirements-bench.lock requirements.lock | sha256sum | cut -d' ' -f1)
if [[ "$(cat .venv-bench/.lock 2>/dev/null)" != "$lock" ]]; then
  echo "Installing the Python packages of requirements-bench.lock into .venv-bench" >&2
  python3 -m venv --clear .venv-bench
  site=$($python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  # Includes what .pth files of .venv refer to, such as this checkout's module.
  echo "import site; site.addsitedir('$(ls -d "$PWD"/.venv/lib/python*/site-packages)')" > "$site/venv.pth"
  # uv would not see those that .venv has.
  bash scripts/install_packages.sh .venv-bench --no-deps \
    -r <(grep -Fxv -f requirements.lock requirements-bench.lock)
  echo "$lock" > .venv-bench/.lock
fi
touch .venv-bench/.ready
