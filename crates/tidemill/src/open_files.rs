//! The limit of files and sockets that this process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit to set: the same as Ray's processes ask for. The system may allow billions, but some
/// child processes close every possible file one by one when they start.
const TARGET_LIMIT: u64 = 65_536;

/// Raises the limit as far as the system allows, up to `TARGET_LIMIT`. The usual default of 1,024
/// is for old programs that rely on small numbers. 16 readers with 64 images each in flight alone
/// need as many files, and models, shards, libtorch's threads and Ray need more. If the system
/// refuses, the limit stays as it is, and opening one file too many is an error where it happens.
pub fn raise_open_file_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let target = maximum.unwrap_or(TARGET_LIMIT).min(TARGET_LIMIT);
    if current.is_some_and(|current| current < target) {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(target), maximum });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_is_raised_within_the_maximum_and_never_lowered() {
        let before = getrlimit(Resource::Nofile);
        raise_open_file_limit();
        let after = getrlimit(Resource::Nofile);
        assert_eq!(after.maximum, before.maximum);
        let least = after.maximum.unwrap_or(TARGET_LIMIT).min(TARGET_LIMIT).max(before.current.unwrap_or(0));
        assert!(after.current.is_none_or(|current| current >= least), "{before:?}, {after:?}");
    }
}
