//! Tells the linker to keep one copy of functions whose code is equal. Dependencies are compiled
//! unoptimised (the workspace's Cargo.toml), so there are many. This is safe as long as nothing tells
//! two functions apart by their addresses, which Rust does not promise.

fn main() {
    println!("cargo:rustc-link-arg-cdylib=-Wl,--icf=all");
    println!("cargo:rerun-if-changed=build.rs");
}
