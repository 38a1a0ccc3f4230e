//! The members of a tar, from any `Read`, with all allocations bounded. The `tar` crate parses the
//! headers. Its own iteration is not used, because it reads extended headers of any size into
//! memory and does not report where a truncated tar ends.

use std::io::{self, Read};

use tar::{EntryType, Header, PaxExtensions};

use crate::source::webdataset::members::{ArchiveError, Member, Members};

/// Size of a tar's blocks in bytes.
const BLOCK: u64 = 512;

/// Most bytes of an extended header (a long name, PAX records).
const MAX_EXTENSION: u64 = 1 << 20;

/// Greatest size of a member: above any file, and small enough that sums do not overflow.
const MAX_SIZE: u64 = 1 << 60;

/// The regular files of a tar.
pub struct TarMembers<R> {
    reader: R,
    /// Name of the last member.
    name: Option<String>,
    /// Unread bytes of the last member's data, and of the padding behind it.
    data: u64,
    padding: u64,
    /// The last block was all zeros, which marks the end.
    is_after_zero_block: bool,
}

impl<R: Read> TarMembers<R> {
    pub fn new(reader: R) -> Self {
        Self { reader, name: None, data: 0, padding: 0, is_after_zero_block: false }
    }

    fn set_data(&mut self, size: u64) -> Result<(), ArchiveError> {
        if size > MAX_SIZE {
            return Err(self.error_after_member("has a damaged header (impossible size)"));
        }
        (self.data, self.padding) = (size, size.next_multiple_of(BLOCK) - size);
        Ok(())
    }

    fn read_extension(&mut self) -> Result<Vec<u8>, ArchiveError> {
        match self.data <= MAX_EXTENSION {
            true => self.read_data(),
            false => Err(self.error_after_member("has a damaged header (impossibly long name)")),
        }
    }

    /// Skips the unread bytes of the last member.
    fn skip_rest_of_member(&mut self) -> Result<(), ArchiveError> {
        let copied = io::copy(&mut (&mut self.reader).take(self.data), &mut io::sink());
        if copied.map_err(|e| self.error_inside_member(&e.to_string()))? < self.data {
            return Err(self.error_inside_member("the file ends there"));
        }
        // A file that ends within the padding is reported at the next header.
        let padding = io::copy(&mut (&mut self.reader).take(self.padding), &mut io::sink());
        padding.map_err(|e| self.error_after_member(&format!("breaks off: {e}")))?;
        (self.data, self.padding) = (0, 0);
        Ok(())
    }

    /// Reads the next header; `None` at the end of a complete tar.
    fn read_header(&mut self) -> Result<Option<Header>, ArchiveError> {
        loop {
            let mut header = Header::new_old();
            let mut block = Vec::new();
            let read = (&mut self.reader).take(BLOCK).read_to_end(&mut block);
            read.map_err(|e| self.error_after_member(&format!("breaks off: {e}")))?;
            let zeros = block.iter().all(|byte| *byte == 0);
            if block.len() < BLOCK as usize {
                return match self.is_after_zero_block && zeros {
                    true => Ok(None),
                    false => Err(self.error_after_member("ends without its end marker; it is cut or no tar")),
                };
            }
            self.is_after_zero_block = zeros;
            if zeros {
                continue;
            }
            header.as_mut_bytes().copy_from_slice(&block);
            return match header.cksum() {
                Ok(sum) if sum == compute_checksum(&block) => Ok(Some(header)),
                _ => {
                    Err(self
                        .error_after_member("has a damaged header (wrong checksum); it is damaged or no tar"))
                }
            };
        }
    }

    /// An error behind the last member.
    fn error_after_member(&self, problem: &str) -> ArchiveError {
        match &self.name {
            Some(name) => ArchiveError::Cut(format!("container: behind member `{name}` the tar {problem}")),
            None => ArchiveError::Cut(format!("container: the tar {problem}")),
        }
    }

    /// An error within the last member.
    fn error_inside_member(&self, problem: &str) -> ArchiveError {
        let name = self.name.as_deref().unwrap_or_default();
        ArchiveError::Cut(format!("container: the tar ends in the middle of member `{name}`: {problem}"))
    }
}

impl<R: Read> Members for TarMembers<R> {
    /// Skips folders, links and devices. Another tar may follow an end marker, as `cat` leaves them.
    fn next(&mut self) -> Result<Option<Member>, ArchiveError> {
        let mut long_name: Option<String> = None;
        let mut pax_size = None;
        loop {
            self.skip_rest_of_member()?;
            let Some(header) = self.read_header()? else { return Ok(None) };
            self.set_data(
                header
                    .entry_size()
                    .map_err(|e| self.error_after_member(&format!("has a damaged header ({e})")))?,
            )?;
            match header.entry_type() {
                EntryType::GNULongName => {
                    let name = self.read_extension()?;
                    let name = name.strip_suffix(b"\0").unwrap_or(&name);
                    long_name = Some(String::from_utf8_lossy(name).into_owned());
                }
                EntryType::XHeader => {
                    let records = self.read_extension()?;
                    for record in PaxExtensions::new(&records).flatten() {
                        match record.key_bytes() {
                            b"path" => long_name = Some(to_lossy_string(record.value_bytes())),
                            b"size" => pax_size = to_lossy_string(record.value_bytes()).parse().ok(),
                            _ => {}
                        }
                    }
                }
                EntryType::Regular | EntryType::Continuous => {
                    let name = long_name.unwrap_or_else(|| to_lossy_string(&header.path_bytes()));
                    if let Some(size) = pax_size {
                        self.set_data(size)?;
                    }
                    self.name = Some(name.clone());
                    return Ok(Some(Member { name, size: self.data }));
                }
                EntryType::GNUSparse => {
                    return Err(self.error_after_member("has a sparse file, which is not supported"));
                }
                EntryType::GNULongLink | EntryType::XGlobalHeader => {}
                _ => (long_name, pax_size) = (None, None),
            }
        }
    }

    fn read_data(&mut self) -> Result<Vec<u8>, ArchiveError> {
        // The buffer grows as bytes are read: a damaged size must not allocate.
        let mut data = Vec::new();
        let read = (&mut self.reader).take(self.data).read_to_end(&mut data);
        read.map_err(|e| self.error_inside_member(&e.to_string()))?;
        if (data.len() as u64) < self.data {
            return Err(self.error_inside_member("the file ends there"));
        }
        self.data = 0;
        Ok(data)
    }
}

fn to_lossy_string(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The checksum of a header: the sum of its bytes, where those of the checksum itself count as
/// spaces.
fn compute_checksum(block: &[u8]) -> u32 {
    let own = 148..156;
    let bytes = block.iter().enumerate();
    bytes.map(|(i, byte)| if own.contains(&i) { u32::from(b' ') } else { u32::from(*byte) }).sum()
}
