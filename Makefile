# make bench   the tour: FastMap beside kernel mmap on this machine, about two minutes
# make test    everything CI checks
# make loom    the models alone: page word, credits, dirty bitmap, shared syncs
.PHONY: build bench test lint docs loom
SHELL := /bin/bash
CARGO ?= cargo

build:
	$(CARGO) build --release --bin fastmap

bench: build
	./target/release/fastmap bench

test: lint docs loom
	$(CARGO) test --workspace

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

docs:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps

loom:
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target-loom $(CARGO) test --release -p fastmap --lib models
