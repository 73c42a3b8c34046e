//! `fastmap.h` is what cbindgen makes of the sources: in the repository, so that it can be read and installed without cbindgen.

use std::path::Path;

const BEGINNING: &str = "\
/* FastMap for C and C++: memory-mapped files behind ordinary pointers, with a hard memory budget.
 *
 * Link with `pkg-config --cflags --libs fastmap`. Linux on x86-64; pages are 4096 bytes. The functions
 * are shaped like mmap(2) and its kin, and may be called from any thread, though not from signal
 * handlers. One that fails sets errno, and fm_last_error() says what happened and what to do; one that
 * succeeds leaves errno alone. `fastmap doctor` says what this machine offers.
 *
 * Made by cbindgen from crates/capi/src: change those, then `make header`. */";

#[test]
fn the_header_is_what_the_sources_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config {
        language: cbindgen::Language::C,
        style: cbindgen::Style::Tag,
        header: Some(BEGINNING.into()),
        include_guard: Some("FASTMAP_H".into()),
        no_includes: true,
        sys_includes: ["stddef.h", "stdint.h", "sys/mman.h", "sys/types.h"].map(String::from).into(),
        cpp_compat: true,
        usize_is_size_t: true,
        documentation: true,
        documentation_style: cbindgen::DocumentationStyle::Doxy,
        line_length: 100,
        // Between the two libraries (`table.rs`), not for programs.
        export: cbindgen::ExportConfig {
            exclude: ["Limit", "FOR_EVER"].map(String::from).into(),
            ..Default::default()
        },
        ..Default::default()
    };
    let made =
        cbindgen::Builder::new().with_crate(root).with_config(config).generate().expect("sources that cbindgen reads");
    let mut text = Vec::new();
    made.write(&mut text);
    let text = String::from_utf8(text).unwrap() + "\n";
    let path = root.join("include/fastmap.h");
    if std::env::var_os("FASTMAP_WRITE_HEADER").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == text, "{} is stale: run `make header`", path.display());
}
