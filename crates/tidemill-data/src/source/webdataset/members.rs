//! What archives of all formats have in common: files, one after the other.

/// A file in an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Path, `/` between folders.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
}

/// What is wrong with an archive, as `kind: detail`.
#[derive(Debug)]
pub enum ArchiveError {
    /// It cannot be read further.
    Cut(String),
    /// One member is unreadable.
    Member(String),
}

/// The files of an archive, in order. There are none after it is cut.
pub trait Members {
    /// The next file; `None` at the end.
    ///
    /// # Errors
    /// If the archive is cut or damaged, or one member is.
    fn next(&mut self) -> Result<Option<Member>, ArchiveError>;

    /// Reads the data of the last member.
    ///
    /// # Errors
    /// As for [`next`](Self::next).
    fn read_data(&mut self) -> Result<Vec<u8>, ArchiveError>;
}
