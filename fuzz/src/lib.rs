//! What the targets share: a bound on memory, and what becomes of panics.

use std::alloc::System;
use std::collections::BTreeSet;
use std::panic;
use std::sync::Mutex;

use cap::Cap;

/// Most bytes that a target may have allocated at a time; at more its process ends, which libFuzzer reports. Its own
/// limits count what is touched, not what is reserved.
#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, 512 << 20);

/// Lets the code under test catch panics of its libraries, as it does in use; `libfuzzer-sys` installs a hook that ends
/// the process before it can. Panics that nobody catches still end it. Each place that panics is printed once.
pub fn let_panics_be_caught() {
    static PLACES: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    panic::set_hook(Box::new(|info| {
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        if PLACES.lock().is_ok_and(|mut places| places.insert(place)) {
            eprintln!("{info}");
        }
    }));
}
