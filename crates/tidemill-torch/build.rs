//! Compiles the C++ shim against the libtorch that `LIBTORCH` names (see `.cargo/config.toml`).

use std::{env, path::PathBuf};

fn main() {
    println!("cargo:rerun-if-changed=shim");
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    let Some(libtorch) = env::var_os("LIBTORCH").map(PathBuf::from) else {
        println!(
            "cargo:error=LIBTORCH is not set: run `make setup`, which links .venv/libtorch to the torch wheel"
        );
        return;
    };
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .warnings(false)
        .flag("-D_GLIBCXX_USE_CXX11_ABI=1")
        .include(libtorch.join("include"))
        .include(libtorch.join("include/torch/csrc/api/include"))
        .file("shim/shim.cpp")
        .compile("tidemill_shim");
    // The linker resolves symbols from left to right: libtorch must come after the shim.
    println!("cargo:rustc-link-search=native={}", libtorch.join("lib").display());
    println!("cargo:rustc-link-lib=torch_cpu");
    println!("cargo:rustc-link-lib=c10");
}
