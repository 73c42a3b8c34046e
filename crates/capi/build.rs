//! Linker flags of `libfastmap.so`.

fn main() {
    let major = env!("CARGO_PKG_VERSION_MAJOR");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libfastmap.so.{major}");
    // Signal handlers, threads and exit handlers stay: dlclose(3) must not take their code away.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
