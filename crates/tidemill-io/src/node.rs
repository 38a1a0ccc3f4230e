//! Which machine this is.

/// The name of this machine, for messages; empty if the system does not say.
pub fn node() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}
