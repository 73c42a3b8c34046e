# make bench     the tour: FastMap beside kernel mmap on this machine, about two minutes
# make           the command, libfastmap and the preload libraries, in target/release
# make install   what was made, to PREFIX (/usr/local), or below DESTDIR to be packed: needs no Rust
# make test      everything CI checks
# make programs  real programs, unchanged, under `fastmap run` and on kernel mmap: do they do the same?
# make fio       the engine for fio: does it move the right bytes?
# make evidence  every experiment of the papers at its default size, about 45 minutes: evidence/report.html
# make vm        a virtual machine with persistent memory: what is flushed there, and what a power cut leaves
# make loom      the models alone: page word, credits, dirty bitmap, shared syncs
# make header    fastmap.h anew from crates/capi/src
.PHONY: build bench install test lint docs loom header programs fio evidence vm
SHELL := /bin/bash
CARGO ?= cargo
CARGO_TARGET_DIR ?= target
# Of cargo: release, or dev to debug.
PROFILE ?= release
BUILT = $(CARGO_TARGET_DIR)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))
PREFIX ?= /usr/local
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
MAJOR = $(firstword $(subst ., ,$(VERSION)))
TO = $(DESTDIR)$(PREFIX)

build:
	$(CARGO) build --profile $(PROFILE) -p fastmap-cli -p fastmap-capi -p fastmap-preload -p fastmap-preload-heap

bench: build
	$(BUILT)/fastmap bench

# Not after `build`: whoever installs for all users may have no Rust.
install:
	@test -e $(BUILT)/fastmap -a -e $(BUILT)/libfastmap_capi.so || { echo "make: nothing built in $(BUILT): run 'make' first" >&2; exit 1; }
	install -d $(TO)/bin $(TO)/lib/pkgconfig $(TO)/include
	install -m 755 $(BUILT)/fastmap $(TO)/bin/fastmap
	install -m 755 $(BUILT)/libfastmap_capi.so $(TO)/lib/libfastmap.so.$(VERSION)
	ln -sf libfastmap.so.$(VERSION) $(TO)/lib/libfastmap.so.$(MAJOR)
	ln -sf libfastmap.so.$(MAJOR) $(TO)/lib/libfastmap.so
	install -m 644 $(BUILT)/libfastmap_capi.a $(TO)/lib/libfastmap.a
	install -m 755 $(BUILT)/libfastmap_preload.so $(BUILT)/libfastmap_preload_heap.so $(TO)/lib/
	install -m 644 crates/capi/include/fastmap.h $(TO)/include/fastmap.h
	sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|' crates/capi/fastmap.pc.in > $(TO)/lib/pkgconfig/fastmap.pc
	chmod 644 $(TO)/lib/pkgconfig/fastmap.pc

test: lint docs loom
	$(CARGO) test --workspace
	$(MAKE) programs PROFILE=dev
	$(MAKE) fio PROFILE=dev
	$(MAKE) vm PROFILE=dev

programs: build
	FASTMAP=$(abspath $(BUILT))/fastmap tests/programs/run

fio: build
	FASTMAP=$(abspath $(BUILT))/fastmap fio/test

evidence: build
	FASTMAP=$(abspath $(BUILT))/fastmap scripts/evidence

# With it go the engine's own tests of direct mappings.
vm: build
	DIRECT=$$($(CARGO) test -p fastmap --test direct --no-run --message-format=json | \
		sed -n 's/.*"name":"direct".*"executable":"\([^"]*\)".*/\1/p') \
	FASTMAP=$(abspath $(BUILT))/fastmap tests/vm/run

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

docs:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps

loom:
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target-loom $(CARGO) test --release -p fastmap --lib models

header:
	FASTMAP_WRITE_HEADER=1 $(CARGO) test -p fastmap-capi --test header
