//! Looks for particular errors among the causes of an error.

use std::error::Error as StdError;
use std::io;

/// A local file could not be given a second name. The system's error is not its `source`, because
/// the advice for that error would be wrong here.
#[derive(Debug, thiserror::Error)]
#[error("no hard link can be made there: {0}")]
pub(crate) struct NoHardLinks(pub io::Error);

/// All errors of type `T` among an error and its causes.
pub fn causes<'a, T: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a T> {
    std::iter::successors(Some(error), |&error| error.source()).filter_map(|error| error.downcast_ref())
}

/// EMFILE and ENFILE. They have no [`io::ErrorKind`], and have these numbers on all systems.
const TOO_MANY_OPEN_FILES: [i32; 2] = [24, 23];

/// Whether this process, or the machine, has reached its limit on open files and sockets.
pub fn is_too_many_open_files(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(|code| TOO_MANY_OPEN_FILES.contains(&code))
}
