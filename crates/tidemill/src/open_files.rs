//! How many files and sockets this process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Lets the process open as many as the system allows it. Systems give 1,024 to begin with, for programs that are old and
/// count on small numbers; 16 readers with 64 images each on their way take as many alone, and models, shards, libtorch's
/// threads and Ray some more. Where the system says no, all stays as it is, and who opens one too many is told.
pub fn allow_most() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_allowed_than_the_system_does_and_no_less() {
        let before = getrlimit(Resource::Nofile);
        allow_most();
        let after = getrlimit(Resource::Nofile);
        assert_eq!(after.maximum, before.maximum);
        assert!([before.current, before.maximum].contains(&after.current), "{after:?}");
    }
}
