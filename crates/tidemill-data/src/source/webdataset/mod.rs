//! WebDataset: samples as neighbouring members of a tar, plain or compressed, or of a zip.

mod members;
mod samples;
mod tar;
mod zip;

pub use self::members::{Member, Members};
pub use self::samples::Samples;
pub use self::zip::ZipMembers;
pub(crate) use self::zip::is_zip;
