# The everyday commands. Every target sets up what it needs first; a second run sets nothing up.

SHELL := /bin/bash
PYTHON := .venv/bin/python
BENCH_PYTHON := .venv-bench/bin/python
export PATH := $(CURDIR)/.venv/bin:$(PATH)

# A test that hangs ends with its suite.
TEST_LIMIT := 30m
# Processes of pytest: a test has pauses in which another one can use the core.
TEST_WORKERS := 2
# Rust tests at a time: one more than there are cores, because some wait for stores and processes.
TEST_THREADS := $(shell expr $$(nproc) + 1)

SOURCES := $(shell git ls-files 'crates/**' Cargo.toml Cargo.lock .cargo/config.toml pyproject.toml)

.PHONY: help setup test test-slow test-stores lint style doc docs fmt quickstart bench-data bench-programs bench-stream bench-ray bench-modes bench-scaling bench-train bench-families bench-compile bench-overlap bench-nodes bench-operations bench-launches bench-eval bench-eval-curve bench-sampling bench-compare bench-ablation bench-dedup bench-memory bench-avif soak sd2-smoke smoke wheel wheel-test lock clean
# Tests and the module are looked for here.
unexport CARGO_TARGET_DIR

help:
	@echo "make quickstart   synth -> preprocess -> train -> sample -> score -> export, in minutes on two cores"
	@echo "make test         every test (Rust, and the Python module)"
	@echo "make test-slow    the tests that are too slow for every change"
	@echo "make test-stores  the tests on Azure's emulator, which it installs with npm"
	@echo "make bench-data   measure the data side against other libraries; redraws docs/benchmarks.md"
	@echo "make bench-stream measure the training stream against other loaders; redraws its part of that page"
	@echo "make bench-ray    measure the Ray engine against plain Ray Data and the local engine; redraws its part"
	@echo "make bench-modes  train offline, online and co-located; redraws its part"
	@echo "make bench-scaling throughput by the number of encoders that sleep; redraws its part and charts"
	@echo "make bench-ablation  one change at a time, from a co-located baseline; redraws its part"
	@echo "make bench-train  train the U-Net beside diffusers on PyTorch; redraws its part"
	@echo "make bench-families  the same with SDXL's U-Net and Stable Diffusion 3's transformer"
	@echo "make bench-compile  beside torch.compile, and with diffusers' U-Net in Tidemill; redraws its part"
	@echo "make bench-overlap  how much communication hides behind computation; redraws its part"
	@echo "make bench-nodes   what two nodes send to each other, by train.sharding; redraws its part; needs root"
	@echo "make bench-operations  where a training step's time goes; redraws docs/performance.md"
	@echo "make bench-launches  what a training step asks of a GPU, counted without one; redraws docs/performance.md"
	@echo "make bench-eval   FID beside torch-fidelity and torchmetrics; redraws its part"
	@echo "make bench-eval-curve  distances by the number of images; redraws docs/evaluation.md"
	@echo "make bench-sampling  draw images beside diffusers' pipeline; redraws its part"
	@echo "make bench-compare  raters who judge at once; redraws its part"
	@echo "make bench-dedup  similar images among ten million embeddings: time, memory, recall; redraws its part"
	@echo "make bench-memory  a GPU's memory as planned beside what tensors take, without a GPU; redraws docs/plan.md"
	@echo "make bench-avif   AVIF to pixels beside Pillow; redraws its part"
	@echo "make soak         two million pairs with faults, kills and a full disk; redraws its part"
	@echo "make sd2-smoke    two steps of Stable Diffusion 2 in its real size on a CPU; redraws docs/performance.md"
	@echo "make smoke        start each of these targets once, with its quickest options"
	@echo "make lint         rustfmt, clippy, ruff; warnings are errors"
	@echo "make docs         the documentation as a site, in target/site; broken links are errors"
	@echo "make doc          the crates' pages, in target/doc; warnings are errors"
	@echo "make setup        what the others need: .venv, the CLI, the Python module"
	@echo "make wheel        the Python module as a wheel, an sdist, the program as a tar: target/wheels"
	@echo "make wheel-test   install the wheel in fresh environments of several Pythons, and use it"
	@echo "make fmt          format the code"
	@echo "make lock         pin the requirements*.in anew into the .lock beside each"

setup: target/.native

# System packages and the Python environment with torch.
.venv/.ready: requirements.lock requirements-nodeps.lock scripts/setup.sh
	bash scripts/setup.sh

# The CLI (target/release/tidemill), the Python module, tests, benches and examples. One cargo
# command for all of them: cargo unifies the features of what it builds together, and arrow, parquet
# and torch-sys take minutes for every other set.
target/.native: .venv/.ready $(SOURCES)
	cargo build --release --locked --workspace --all-targets
	install -m 755 target/release/libtidemill_native.so python/tidemill/_native.abi3.so
	ln -sfn ../../target/release/tidemill .venv/bin/tidemill
	@touch $@

# For other machines, in target/wheels/: the Python module as a wheel, an sdist, the program as a tar. It
# packs what `setup` has built.
wheel: setup
	bash scripts/wheel.sh

# Needs the network: each environment gets its own torch. PYTHONS="3.12" names one version only.
wheel-test: wheel
	bash scripts/wheel_test.sh

quickstart: setup
	bash scripts/quickstart.sh $(ARGS)

# The other libraries, in an environment of their own over .venv.
.venv-bench/.ready: requirements-bench.lock scripts/setup_bench.sh .venv/.ready
	bash scripts/setup_bench.sh

# Options of benches/data.py go into ARGS: make bench-data ARGS="--rounds 3 --seed 7". Every bench
# has --quick: the smallest useful run, which records nothing.
bench-data: setup .venv-bench/.ready
	$(BENCH_PYTHON) -m benches.data $(ARGS)

# The S3 server of bench-stream. The same cargo targets as in target/.native, so that cargo unifies
# the same features.
bench-programs: setup
	cargo build --release --locked --workspace --all-targets --features tidemill-testing/s3

# As bench-data.
bench-stream: bench-programs .venv-bench/.ready
	$(BENCH_PYTHON) -m benches.stream $(ARGS)

# As bench-data.
bench-ray: setup .venv-bench/.ready
	$(BENCH_PYTHON) -m benches.ray_engine $(ARGS)

# As bench-data.
bench-modes: setup
	$(PYTHON) -m benches.modes $(ARGS)

# As bench-data.
bench-ablation: setup .venv-bench/.ready
	$(BENCH_PYTHON) -m benches.ablation $(ARGS)

# As bench-data, after bench-modes, whose figures it draws, too (not with --quick).
bench-scaling: setup .venv-bench/.ready
	$(BENCH_PYTHON) -m benches.scaling $(ARGS)

# As bench-data.
bench-train: setup
	$(PYTHON) -m benches.train $(ARGS)

# As bench-data.
bench-families: setup
	$(PYTHON) -m benches.families $(ARGS)

# As bench-data.
bench-compile: setup
	$(PYTHON) -m benches.train --compile --models small $(ARGS)

# As bench-data.
bench-overlap: setup
	$(PYTHON) -m benches.overlap $(ARGS)

# As bench-data. It makes network namespaces, so it needs root.
bench-nodes: setup
	$(PYTHON) -m benches.node_traffic $(ARGS)

# As bench-data. It takes the models of bench-train, and makes those that are missing.
bench-operations: setup
	$(PYTHON) -m benches.operations $(ARGS)

# It needs no GPU.
bench-launches: setup
	$(PYTHON) -m benches.launches $(ARGS)

# As bench-data.
bench-eval: setup .venv-bench/.ready
	$(BENCH_PYTHON) -m benches.eval $(ARGS)

# As bench-data.
bench-eval-curve: setup .venv-bench/.ready
	$(BENCH_PYTHON) -m benches.eval_curve $(ARGS)

# As bench-data.
bench-sampling: setup
	$(PYTHON) -m benches.sampling $(ARGS)

# As bench-data.
bench-compare: setup
	$(PYTHON) -m benches.compare $(ARGS)

# As bench-data.
bench-dedup: setup
	$(PYTHON) -m benches.dedup $(ARGS)

# It needs no GPU.
bench-memory: setup
	$(PYTHON) -m benches.memory $(ARGS)

# As bench-data.
bench-avif: setup
	$(PYTHON) -m benches.avif $(ARGS)

# As bench-data.
soak: setup
	$(PYTHON) -m benches.soak $(ARGS)

sd2-smoke: setup
	$(PYTHON) -m benches.sd2 $(ARGS)

# Tests run beside each other. OpenMP's threads would keep the others' cores busy while they wait
# for work.
test test-slow test-stores: export OMP_WAIT_POLICY = passive

# Each target once, with its quickest options.
smoke:
	bash scripts/smoke.sh

# The browser of the tests.
.venv/.browser: scripts/setup_browser.sh .venv/.ready
	bash scripts/setup_browser.sh
	@touch $@

test: setup .venv/.browser
	timeout $(TEST_LIMIT) cargo test --release --locked --workspace --lib --bins --tests -- --test-threads $(TEST_THREADS)
	timeout $(TEST_LIMIT) $(PYTHON) -m pytest -q tests -n $(TEST_WORKERS) --dist loadfile --durations=25

test-slow: setup
	timeout $(TEST_LIMIT) $(PYTHON) -m pytest -q -rP tests -m "faults or slow"

# Emulators of object stores, in an environment of their own.
.venv-emulators/.ready: scripts/setup_emulators.sh
	bash scripts/setup_emulators.sh

test-stores: setup .venv-emulators/.ready
	timeout $(TEST_LIMIT) $(PYTHON) -m pytest -q -rP tests/test_azurite.py -m stores

lint: style
	cargo clippy --release --locked --workspace --all-targets -- -D warnings

doc: .venv/.ready
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked

# What needs no compiler.
style: .venv/.ready
	cargo fmt --all --check
	ruff check .
	ruff format --check .
	$(PYTHON) scripts/check_structure.py

fmt: .venv/.ready
	cargo fmt --all
	ruff format .

# The site's generator, in an environment of its own.
.venv-docs/.ready: requirements-docs.lock .venv/.ready
	python3 -m venv --clear .venv-docs
	bash scripts/install_packages.sh .venv-docs -r requirements-docs.lock
	touch $@

docs: setup .venv-docs/.ready
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --quiet --strict

lock: .venv/.ready
	bash scripts/lock.sh

clean:
	rm -rf target .venv .venv-bench .venv-docs .venv-emulators runs
