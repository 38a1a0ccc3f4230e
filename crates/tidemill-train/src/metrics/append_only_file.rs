//! A file that is only appended to, and that survives times in which the disk is full.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::Error;

/// A file that is only appended to. Bytes that cannot be written stay in memory until the next
/// attempt, so that no record is lost or cut in two.
#[derive(Debug)]
pub(crate) struct AppendOnlyFile<W = File> {
    path: PathBuf,
    file: W,
    unwritten: Vec<u8>,
}

impl AppendOnlyFile {
    /// Opens the file, and creates it if it does not exist.
    ///
    /// # Errors
    /// If the file cannot be opened for writing.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let file = OpenOptions::new().create(true).append(true).open(path).map_err(Error::io(path))?;
        Ok(Self { path: path.into(), file, unwritten: Vec::new() })
    }
}

impl<W: Write> AppendOnlyFile<W> {
    /// Writes all bytes that are still unwritten, then `record`.
    ///
    /// # Errors
    /// If not all bytes could be written. The rest is kept for the next call.
    pub fn append(&mut self, record: &[u8]) -> Result<(), Error> {
        self.unwritten.extend_from_slice(record);
        while !self.unwritten.is_empty() {
            match self.file.write(&self.unwritten) {
                Ok(written) if written > 0 => drop(self.unwritten.drain(..written)),
                Err(error) if error.kind() == ErrorKind::Interrupted => (),
                Ok(_) => return Err(Error::io(&self.path)(ErrorKind::WriteZero.into())),
                Err(error) => return Err(Error::io(&self.path)(error)),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk with a limited number of free bytes.
    struct Disk {
        written: Vec<u8>,
        free: usize,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let fits = bytes.len().min(self.free);
            if fits == 0 {
                return Err(ErrorKind::StorageFull.into());
            }
            self.free -= fits;
            self.written.extend_from_slice(&bytes[..fits]);
            Ok(fits)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn records_that_do_not_fit_on_a_full_disk_are_written_later() {
        let disk = Disk { written: Vec::new(), free: 8 };
        let mut file = AppendOnlyFile { path: "metrics".into(), file: disk, unwritten: Vec::new() };
        file.append(b"first\n").unwrap();
        let message = file.append(b"second\n").unwrap_err().to_string();
        assert!(message.starts_with("metrics: "), "{message}");
        assert!(file.append(b"third\n").is_err());
        assert_eq!(file.file.written, b"first\nse");
        file.file.free = 100;
        file.append(b"fourth\n").unwrap();
        assert_eq!(file.file.written, b"first\nsecond\nthird\nfourth\n");
    }
}
