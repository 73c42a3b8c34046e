# make try       four unchanged programs on this disk: what does FastMap do for them here? About a minute
# make bench     the tour: FastMap beside kernel mmap on this machine, eight works: six to twelve minutes
# make           the commands fastmap and fastmap-bench, libfastmap, the preload libraries, man pages and completions, in target/release
# make install   what was made, stripped, to PREFIX (/usr/local), or below DESTDIR to be packed: needs no Rust. BENCH=1: fastmap-bench, STATIC=1: libfastmap.a, too
# make uninstall takes it away from there
# make deb       the same as packages for Debian and Ubuntu, in target/release/deb: fastmap, fastmap-bench, libfastmap0, libfastmap-dev. Takes debhelper
# make test      what a change needs to be trusted, in minutes, with nothing but Rust, gcc and make
# make test-all  everything there is, and longer (FASTMAP_EFFORT=full): what CI runs
# make programs  real programs, unchanged, under `fastmap run` and on kernel mmap: do they do the same?
# make fio       the engine for fio: does it move the right bytes?
# make papers    the experiments of the papers: the command fastmap-papers, beside the others
# make evidence  the tour and loads on all storages, the papers' experiments, about two hours: evidence/results.md and its pictures
# make packages  the crate as cargo would upload it, man pages, completions, `make install` and the packages in a root of its own: do they work?
# make containers  steering and the engine under the seccomp profiles of containers, and the Dockerfile's steps
# make vm        a virtual machine with persistent memory: what is flushed there, and what a power cut leaves
# make kernels   other kernels, those of Debian 12 and 13, in virtual machines: does steering do the same there, and what do touches cost? An hour; FASTMAP_EFFORT=quick: minutes
# make sim       the engine's simulation alone, by seed, with an end at any moment: FASTMAP_SEED=7 for one, FASTMAP_SEED=1000..5000 for many
# make policy    steering on the model of the kernel, by seed: SEEDS=0..10000 for many, `fastmap bench policy --seed 7` for what happens in one
# make loom      the models alone: page word, free frames, dirty bitmap, shared syncs
# make wheel     the Python package, in target/wheels: for PYTHON (python3), with the command and the preload libraries
# make python    the wheel in an environment of its own (target/python), and its tests
# make header    fastmap.h anew from crates/capi/src
.PHONY: try build bench papers install uninstall deb test test-all test-papers checked lint docs loom sim policy header readme programs fio evidence packages containers vm kernels wheel python
SHELL := /bin/bash
CARGO ?= cargo
CARGO_TARGET_DIR ?= target
# Of cargo: release, or dev to debug.
PROFILE ?= release
BUILT = $(CARGO_TARGET_DIR)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))
PREFIX ?= /usr/local
# Of the wheel; 3.10 or later.
PYTHON ?= python3
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
# Of tests at a time: many wait for disks and for programs of theirs.
THREADS ?= $(shell echo $$((2 * $$(nproc))))
MAJOR = $(firstword $(subst ., ,$(VERSION)))
TO = $(DESTDIR)$(PREFIX)
# The loader finds libraries by a cache.
LDCONFIG = $(if $(DESTDIR),,[ $$(id -u) != 0 ] || /sbin/ldconfig || true)

build:
	$(CARGO) build --profile $(PROFILE) -p fastmap-cli -p fastmap-capi -p fastmap-object-capi -p fastmap-preload -p fastmap-preload-heap -p fastmap-bench \
		--lib --bins --example pages
	$(BUILT)/examples/pages $(BUILT)/share

bench: build
	$(BUILT)/fastmap bench

# Only what it needs.
try:
	$(CARGO) build --profile $(PROFILE) -p fastmap-cli -p fastmap-bench
	$(BUILT)/fastmap bench try

# Not after `build`: on the machine that it is installed on there may be no Rust. Nobody links with what is in lib/fastmap.
install:
	@test -e $(BUILT)/fastmap -a -e $(BUILT)/fastmap-bench -a -e $(BUILT)/libfastmap_capi.so -a -e $(BUILT)/share || { echo "make: nothing built in $(BUILT): run 'make$(if $(filter dev,$(PROFILE)), PROFILE=dev)' first" >&2; exit 1; }
	install -d $(TO)/bin $(TO)/lib/fastmap $(TO)/lib/pkgconfig $(TO)/include
	install -s -m 755 $(BUILT)/fastmap $(if $(BENCH),$(BUILT)/fastmap-bench) $(TO)/bin/
	install -s -m 755 $(BUILT)/libfastmap_capi.so $(TO)/lib/libfastmap.so.$(VERSION)
	ln -sf libfastmap.so.$(VERSION) $(TO)/lib/libfastmap.so.$(MAJOR)
	ln -sf libfastmap.so.$(MAJOR) $(TO)/lib/libfastmap.so
	$(if $(STATIC),install -m 644 $(BUILT)/libfastmap_capi.a $(TO)/lib/libfastmap.a && strip --strip-debug $(TO)/lib/libfastmap.a)
	install -s -m 755 $(BUILT)/libfastmap_preload.so $(BUILT)/libfastmap_preload_heap.so $(TO)/lib/fastmap/
	install -s -m 755 $(BUILT)/libfastmap_object.so $(TO)/lib/fastmap/libfastmap_object.so.$(MAJOR)
	install -m 644 crates/capi/include/fastmap.h $(TO)/include/fastmap.h
	sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|' crates/capi/fastmap.pc.in > $(TO)/lib/pkgconfig/fastmap.pc
	chmod 644 $(TO)/lib/pkgconfig/fastmap.pc
	set -e; cd $(BUILT)/share; for file in $$(find . -type f $(if $(BENCH),,! -name 'fastmap-bench*' ! -name 'fastmap-report*')); do \
		install -D -m 644 $$file $(abspath $(TO))/share/$$file; done
	@$(LDCONFIG)
	@/sbin/ldconfig -p | grep -q ' => $(TO)/lib/libfastmap.so.$(MAJOR)$$' || \
		echo "make: for programs that are linked with $(PREFIX)/lib/libfastmap.so.$(MAJOR): run ldconfig as root, or set LD_LIBRARY_PATH=$(PREFIX)/lib"

# With the same PREFIX and DESTDIR, of the same version. Directories stay: others use them, too.
uninstall:
	rm -rf $(TO)/lib/fastmap
	rm -f $(TO)/bin/fastmap $(TO)/bin/fastmap-bench $(TO)/include/fastmap.h $(TO)/lib/pkgconfig/fastmap.pc
	rm -f $(TO)/lib/libfastmap.{a,so,so.$(MAJOR),so.$(VERSION)}
	rm -f $(TO)/share/man/man1/fastmap{,-run,-attach,-warm,-warm-*,-top,-doctor,-cache,-cache-*,-report,-bench,-bench-*}.1
	rm -f $(TO)/share/{bash-completion/completions/fastmap,zsh/site-functions/_fastmap,fish/vendor_completions.d/fastmap.fish}
	@$(LDCONFIG)

# contrib/debian says what of `make install` is in which package. The library's is named after its SONAME.
deb: TREE = $(BUILT)/deb/fastmap
deb: build
	rm -rf $(BUILT)/deb
	install -d $(TREE)
	cp -r contrib/debian $(TREE)
	sed '1,/^## /d; /^## /,$$d' CHANGELOG.md | fold -s -w 76 | sed 's/ *$$//; s/^./  &/' >$(TREE)/debian/changes
	cd $(TREE)/debian && mv libfastmap.install libfastmap$(MAJOR).install && \
		sed -i -e 's/@MAJOR@/$(MAJOR)/; s/@VERSION@/$(VERSION)/' -e "s/@DATE@/$$(date -R -r $(CURDIR)/CHANGELOG.md)/" -e '/@CHANGES@/{r changes' -e 'd}' control changelog
	$(MAKE) install DESTDIR=$(abspath $(TREE))/installed PREFIX=/usr BENCH=1
	cd $(TREE) && dpkg-buildpackage -b -nc -us -uc

test:
	# The models are explored on one processor meanwhile.
	$(MAKE) -j2 --output-sync=target loom checked
	FASTMAP_BUILT=$(abspath $(CARGO_TARGET_DIR))/debug RUST_TEST_THREADS=$(THREADS) $(CARGO) test --workspace --no-fail-fast

checked:
	$(MAKE) lint
	$(MAKE) docs
	$(MAKE) build PROFILE=dev

# The same tests, many of them for longer, and those that need packages.
test-all: export FASTMAP_EFFORT = full
test-all: test
	$(MAKE) test-papers
	$(MAKE) readme PROFILE=dev
	$(MAKE) fio PROFILE=dev
	# In this order: some may install packages.
	$(MAKE) -j2 --output-sync=target programs packages containers vm python PROFILE=dev

readme: build
	FASTMAP=$(abspath $(BUILT))/fastmap tests/readme/run

containers: build
	FASTMAP=$(abspath $(BUILT))/fastmap tests/containers/run

programs: build
	FASTMAP=$(abspath $(BUILT))/fastmap tests/programs/run

fio: build
	FASTMAP=$(abspath $(BUILT))/fastmap fio/test

# A workspace of its own; it shares what is built of the same crates.
papers: build
	cd papers && $(CARGO) build --profile $(PROFILE) --target-dir $(abspath $(CARGO_TARGET_DIR))

test-papers:
	$(MAKE) papers PROFILE=dev
	cd papers && $(CARGO) clippy --target-dir $(abspath $(CARGO_TARGET_DIR)) --all-targets -- -D warnings
	cd papers && $(CARGO) test --target-dir $(abspath $(CARGO_TARGET_DIR))

evidence: papers
	FASTMAP=$(abspath $(BUILT))/fastmap scripts/evidence

packages: deb
	FASTMAP=$(abspath $(BUILT))/fastmap tests/packages/run

# With it go the engine's own tests of direct mappings.
vm: papers
	SUITE=$$($(CARGO) test --workspace --test suite --no-run --message-format=json | \
		sed -n '/crates\/engine#/s/.*"name":"suite".*"executable":"\([^"]*\)".*/\1/p') \
	FASTMAP=$(abspath $(BUILT))/fastmap tests/vm/run

# With it go the tests, which are built here, and the model of the kernel.
kernels:
	$(CARGO) build --profile $(PROFILE) -p fastmap-cli -p fastmap-bench
	TESTS=$$($(CARGO) test -p fastmap-steer -p fastmap-cli -p fastmap-io --no-run --message-format=json | \
		sed -n '/"test":true/s/.*"manifest_path":"[^"]*\/crates\/\([a-z]*\)\/Cargo.toml".*"name":"\([^"]*\)","src_path.*"executable":"\([^"]*\)".*/\1-\2=\3/p') \
	MODEL=$(abspath $(BUILT))/fastmap-bench FASTMAP=$(abspath $(BUILT))/fastmap tests/kernels/run

lint:
	$(CARGO) fmt --all --check
	cd papers && $(CARGO) fmt --check
	CARGO=$(CARGO) scripts/features
	$(CARGO) clippy --workspace --all-targets -- -D warnings

docs:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps

loom:
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target-loom $(CARGO) test --release -p fastmap-io -p fastmap-tier --lib models

policy:
	$(CARGO) run --release -p fastmap-bench -- policy --seeds $(or $(SEEDS),0..500)

sim:
	$(CARGO) test -p fastmap-io --lib tests::sim:: -- --nocapture

# maturin is the package's builder, from PyPI.
target/maturin/bin/maturin:
	$(PYTHON) -m venv target/maturin
	target/maturin/bin/pip install -q --only-binary :all: 'maturin>=1.9,<2'

wheel: target/maturin/bin/maturin
	$(CARGO) build --profile $(PROFILE) -p fastmap-cli -p fastmap-object-capi -p fastmap-preload -p fastmap-preload-heap
	rm -rf crates/python/data target/wheels
	install -D -s -m 755 $(BUILT)/fastmap crates/python/data/scripts/fastmap
	install -d crates/python/data/data/lib/fastmap
	install -s -m 755 $(BUILT)/libfastmap_preload.so $(BUILT)/libfastmap_preload_heap.so crates/python/data/data/lib/fastmap/
	# Beside the module, which opens it there.
	install -s -m 755 $(BUILT)/libfastmap_object.so crates/python/python/fastmap/
	target/maturin/bin/maturin build --profile $(PROFILE) -m crates/python/Cargo.toml -i $(PYTHON) --out target/wheels

python: wheel
	PYTHON=$(PYTHON) crates/python/test

header:
	FASTMAP_WRITE_HEADER=1 $(CARGO) test -p fastmap-capi --test header
