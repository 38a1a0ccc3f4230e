//! A file that a run adds records to as long as it lives, through times in which its disk is full.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::Error;

/// A file that is only added to. What cannot be written waits for the next try, so that no record is lost or cut in two.
#[derive(Debug)]
pub struct Records<W = File> {
    path: PathBuf,
    file: W,
    waiting: Vec<u8>,
}

impl Records {
    /// Opens the file, or makes it.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let file = OpenOptions::new().create(true).append(true).open(path).map_err(Error::io(path))?;
        Ok(Self { path: path.into(), file, waiting: Vec::new() })
    }
}

impl<W: Write> Records<W> {
    /// Adds a record, behind those that wait.
    ///
    /// # Errors
    /// Why it waits, too.
    pub fn add(&mut self, record: &[u8]) -> Result<(), Error> {
        self.waiting.extend_from_slice(record);
        while !self.waiting.is_empty() {
            match self.file.write(&self.waiting) {
                Ok(written) if written > 0 => drop(self.waiting.drain(..written)),
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

    /// A disk with room for so many bytes.
    struct Disk {
        written: Vec<u8>,
        room: usize,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let fits = bytes.len().min(self.room);
            if fits == 0 {
                return Err(ErrorKind::StorageFull.into());
            }
            self.room -= fits;
            self.written.extend_from_slice(&bytes[..fits]);
            Ok(fits)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_a_full_disk_has_no_room_for_comes_once_it_has() {
        let disk = Disk { written: Vec::new(), room: 8 };
        let mut records = Records { path: "metrics".into(), file: disk, waiting: Vec::new() };
        records.add(b"first\n").unwrap();
        let message = records.add(b"second\n").unwrap_err().to_string();
        assert!(message.starts_with("metrics: "), "{message}");
        assert!(records.add(b"third\n").is_err());
        assert_eq!(records.file.written, b"first\nse");
        records.file.room = 100;
        records.add(b"fourth\n").unwrap();
        assert_eq!(records.file.written, b"first\nsecond\nthird\nfourth\n");
    }
}
