//! The members of a tar, from any `Read`, with every allocation bounded. The `tar` crate understands the headers; the
//! walk is ours, for its own reads extended headers of any size into memory and does not say where a cut tar ends.

use std::io::{self, Read};

use tar::{EntryType, Header, PaxExtensions};

/// Size of a tar's blocks.
const BLOCK: u64 = 512;

/// Most bytes of an extended header (a long name, PAX records).
const MAX_EXTENSION: u64 = 1 << 20;

/// Above any file; keeps sums of sizes from overflowing.
const MAX_SIZE: u64 = 1 << 60;

/// A regular file in a tar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Path, `/` between folders.
    pub name: String,
    /// Bytes.
    pub size: u64,
}

/// The tar cannot be read any further: why, and where, for people.
#[derive(Debug)]
pub struct Cut(pub String);

/// The members in order. After a [`Cut`] there is nothing more to ask for.
pub struct Members<R> {
    reader: R,
    /// The latest member's name.
    name: Option<String>,
    /// What is still unread of its data, and then of the padding to a whole block.
    data: u64,
    padding: u64,
    /// Whether the latest block was one of zeros, which mark the end.
    ended: bool,
}

impl<R: Read> Members<R> {
    pub fn new(reader: R) -> Self {
        Self { reader, name: None, data: 0, padding: 0, ended: false }
    }

    /// The next regular file; none at the end. Folders, links and devices are passed over. Behind an end marker
    /// another tar may follow, as `cat` leaves them.
    pub fn next(&mut self) -> Result<Option<Member>, Cut> {
        let mut longer: Option<String> = None;
        let mut pax_size = None;
        loop {
            self.skip()?;
            let Some(header) = self.header()? else { return Ok(None) };
            self.set_data(
                header.entry_size().map_err(|e| self.cut(&format!("has a damaged header ({e})")))?,
            )?;
            match header.entry_type() {
                EntryType::GNULongName => {
                    let name = self.extension()?;
                    let name = name.strip_suffix(b"\0").unwrap_or(&name);
                    longer = Some(String::from_utf8_lossy(name).into_owned());
                }
                EntryType::XHeader => {
                    let records = self.extension()?;
                    for record in PaxExtensions::new(&records).flatten() {
                        match record.key_bytes() {
                            b"path" => longer = Some(lossy(record.value_bytes())),
                            b"size" => pax_size = lossy(record.value_bytes()).parse().ok(),
                            _ => {}
                        }
                    }
                }
                EntryType::Regular | EntryType::Continuous => {
                    let name = longer.unwrap_or_else(|| lossy(&header.path_bytes()));
                    if let Some(size) = pax_size {
                        self.set_data(size)?;
                    }
                    self.name = Some(name.clone());
                    return Ok(Some(Member { name, size: self.data }));
                }
                EntryType::GNUSparse => return Err(self.cut("has a sparse file, which is not supported")),
                EntryType::GNULongLink | EntryType::XGlobalHeader => {}
                _ => (longer, pax_size) = (None, None),
            }
        }
    }

    /// The latest member's data.
    pub fn data(&mut self) -> Result<Vec<u8>, Cut> {
        // Grows as bytes come: a damaged size must not allocate.
        let mut data = Vec::new();
        let read = (&mut self.reader).take(self.data).read_to_end(&mut data);
        read.map_err(|e| self.inside(&e.to_string()))?;
        if (data.len() as u64) < self.data {
            return Err(self.inside("the file ends there"));
        }
        self.data = 0;
        Ok(data)
    }

    fn set_data(&mut self, size: u64) -> Result<(), Cut> {
        if size > MAX_SIZE {
            return Err(self.cut("has a damaged header (impossible size)"));
        }
        (self.data, self.padding) = (size, size.next_multiple_of(BLOCK) - size);
        Ok(())
    }

    fn extension(&mut self) -> Result<Vec<u8>, Cut> {
        match self.data <= MAX_EXTENSION {
            true => self.data(),
            false => Err(self.cut("has a damaged header (impossibly long name)")),
        }
    }

    /// Passes over what is unread of the latest member.
    fn skip(&mut self) -> Result<(), Cut> {
        let copied = io::copy(&mut (&mut self.reader).take(self.data), &mut io::sink());
        if copied.map_err(|e| self.inside(&e.to_string()))? < self.data {
            return Err(self.inside("the file ends there"));
        }
        // A file that ends within the padding ends before the next header.
        let padding = io::copy(&mut (&mut self.reader).take(self.padding), &mut io::sink());
        padding.map_err(|e| self.cut(&format!("breaks off: {e}")))?;
        (self.data, self.padding) = (0, 0);
        Ok(())
    }

    /// The next header; none at the end of a complete tar.
    fn header(&mut self) -> Result<Option<Header>, Cut> {
        loop {
            let mut header = Header::new_old();
            let mut block = Vec::new();
            let read = (&mut self.reader).take(BLOCK).read_to_end(&mut block);
            read.map_err(|e| self.cut(&format!("breaks off: {e}")))?;
            let zeros = block.iter().all(|byte| *byte == 0);
            if block.len() < BLOCK as usize {
                return match self.ended && zeros {
                    true => Ok(None),
                    false => Err(self.cut("ends without its end marker; it is cut or no tar")),
                };
            }
            self.ended = zeros;
            if zeros {
                continue;
            }
            header.as_mut_bytes().copy_from_slice(&block);
            return match header.cksum() {
                Ok(sum) if sum == checksum(&block) => Ok(Some(header)),
                _ => Err(self.cut("has a damaged header (wrong checksum); it is damaged or no tar")),
            };
        }
    }

    /// Something is wrong behind the latest member.
    fn cut(&self, problem: &str) -> Cut {
        match &self.name {
            Some(name) => Cut(format!("container: behind member `{name}` the tar {problem}")),
            None => Cut(format!("container: the tar {problem}")),
        }
    }

    /// Something is wrong within the latest member.
    fn inside(&self, problem: &str) -> Cut {
        let name = self.name.as_deref().unwrap_or_default();
        Cut(format!("container: the tar ends in the middle of member `{name}`: {problem}"))
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The sum of a header's bytes, those of the sum itself taken as spaces.
fn checksum(block: &[u8]) -> u32 {
    let own = 148..156;
    let bytes = block.iter().enumerate();
    bytes.map(|(i, byte)| if own.contains(&i) { u32::from(b' ') } else { u32::from(*byte) }).sum()
}
