//! Linker flags of `libfastmap_object.so`.

fn main() {
    // Its threads stay: dlclose(3) must not take their code away.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
