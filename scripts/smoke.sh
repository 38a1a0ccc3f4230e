#!/usr/bin/env bash
# Starts each target of `make help` once, with its quickest options: this shows what a bare clone
# lacks. Not started: `test` and `lint`, which every change runs; `test-slow` and
# `test-stores`, which take minutes; `fmt` and `lock`, which change files.
set -uo pipefail
cd "$(dirname "$0")/.."

failed=()
run() { # name, command
  local started=$SECONDS
  echo "== $1" >&2
  timeout 20m "${@:2}" || failed+=("$1")
  echo "== $1: $((SECONDS - started)) s" >&2
}

run doc make doc
run wheel make wheel
run quickstart make quickstart ROWS=600 ARGS="--set train.phase.0.steps=20 --set sample.scenes=4"
for bench in data stream ray modes scaling train families compile overlap operations launches eval eval-curve sampling compare ablation dedup memory avif; do
  run "bench-$bench" make "bench-$bench" ARGS=--quick
done
# Only root may make network namespaces.
if ((EUID == 0)); then run bench-nodes make bench-nodes ARGS=--quick; fi
run soak make soak ARGS=--quick
run sd2-smoke make sd2-smoke ARGS=--quick

((${#failed[@]} == 0)) || { echo "failed: ${failed[*]}" >&2; exit 1; }
