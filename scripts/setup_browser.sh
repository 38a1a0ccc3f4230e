#!/usr/bin/env bash
# The browser in which tests/test_compare_page.py judges. It can be run again.
set -euo pipefail

command -v chromium >/dev/null && command -v chromedriver >/dev/null && exit
if ((EUID != 0)); then
  echo "A browser is missing: install it with sudo apt-get install chromium chromium-driver" >&2
  exit 1
fi
echo "Installing chromium" >&2
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium chromium-driver > /dev/null
