//! How many files and sockets this process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// As many as Ray's processes ask for. The system may allow billions, which programs that a process starts go through one by one to
/// close them.
const ENOUGH: u64 = 65_536;

/// Lets the process open more files, if the system does. Systems give 1,024 to begin with, for programs that are old and count on
/// small numbers; 16 readers with 64 images each on their way take as many alone, and models, shards, libtorch's threads and
/// Ray some more. Where the system says no, all stays as it is, and who opens one too many is told.
pub fn allow_many() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.unwrap_or(ENOUGH).min(ENOUGH);
    if current.is_some_and(|current| current < wanted) {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_are_allowed_within_what_the_system_does_and_never_fewer() {
        let before = getrlimit(Resource::Nofile);
        allow_many();
        let after = getrlimit(Resource::Nofile);
        assert_eq!(after.maximum, before.maximum);
        let least = after.maximum.unwrap_or(ENOUGH).min(ENOUGH).max(before.current.unwrap_or(0));
        assert!(after.current.is_none_or(|current| current >= least), "{before:?}, {after:?}");
    }
}
