//! The name of this machine.

/// The host name, for messages. It is empty if the system does not report one.
pub fn hostname() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}
