# The everyday commands. Every target sets up what it needs first; a second run sets nothing up.

SHELL := /bin/bash
PYTHON := .venv/bin/python
export PATH := $(CURDIR)/.venv/bin:$(PATH)

# A test that hangs ends with its suite.
TEST_LIMIT := 30m

SOURCES := $(shell git ls-files 'crates/**' Cargo.toml Cargo.lock .cargo/config.toml pyproject.toml)

.PHONY: help setup test lint fmt quickstart lock clean

help:
	@echo "make quickstart   synth -> preprocess -> train -> sample -> score -> export, in minutes on two cores"
	@echo "make test         every test (Rust, and the Python module)"
	@echo "make lint         rustfmt, clippy, ruff; warnings are errors"
	@echo "make setup        what the others need: .venv, the CLI, the Python module"
	@echo "make fmt          format the code"
	@echo "make lock         pin requirements.in anew into requirements.lock"

setup: target/.native

# System packages and the Python environment with torch.
.venv/.ready: requirements.lock scripts/setup.sh
	bash scripts/setup.sh

# The CLI (target/release/tidemill) and the Python module (python/tidemill/_native).
target/.native: .venv/.ready $(SOURCES)
	cargo build --release --locked
	maturin develop --release --locked --quiet
	@touch $@

quickstart: setup
	bash scripts/quickstart.sh

test: setup
	timeout $(TEST_LIMIT) cargo test --release --locked
	timeout $(TEST_LIMIT) $(PYTHON) -m pytest -q tests

lint: .venv/.ready
	cargo fmt --all --check
	cargo clippy --release --locked --workspace --all-targets -- -D warnings
	ruff check .
	ruff format --check .

fmt: .venv/.ready
	cargo fmt --all
	ruff format .

lock: .venv/.ready
	bash scripts/lock.sh

clean:
	rm -rf target .venv runs
