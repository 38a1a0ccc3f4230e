//! Shared by all targets: a bound on memory, and a panic hook.

use std::alloc::System;
use std::collections::BTreeSet;
use std::panic;
use std::sync::Mutex;

use cap::Cap;

/// Most bytes that a target may allocate at a time. If it allocates more, its process ends, which
/// libFuzzer reports. libFuzzer's own limits count touched memory, not reserved memory.
#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, 512 << 20);

/// Lets the code under test catch panics of its libraries, as it does in production. Without this,
/// the hook of `libfuzzer-sys` would end the process first. Uncaught panics still end it. Each
/// location that panics is printed once.
pub fn allow_caught_panics() {
    static PRINTED_LOCATIONS: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    panic::set_hook(Box::new(|info| {
        let location = info.location().map(ToString::to_string).unwrap_or_default();
        if PRINTED_LOCATIONS.lock().is_ok_and(|mut printed| printed.insert(location)) {
            eprintln!("{info}");
        }
    }));
}
