//! WebDataset: a tar whose neighbouring members with the same name up to the first dot of the file name are one
//! sample, as img2dataset writes them: `<key>.jpg`, `<key>.txt`, `<key>.json`. Plain or gzipped.

use std::io::{BufRead, BufReader, Read};

use bytes::Bytes;
use flate2::bufread::MultiGzDecoder;
use serde_json::Value;

use crate::decode::{IMAGE_EXTENSIONS, MAX_BYTES};
use crate::source::records::json_object::object;
use crate::source::records::record::{MAX_TEXT, Record};
use crate::source::webdataset::tar::{Cut, Member, Members};

/// The samples of a tar, in order. What is wrong with one of them is its record's error. A tar that cannot be read
/// to its end gives one more record that says so: in place of the sample in whose middle it ends, or behind the last.
pub struct Samples<R: Read> {
    members: Members<Unpacked<R>>,
    current: Option<Sample>,
    /// The first member of the sample after `current`.
    next: Option<Member>,
    row: u64,
    ended: bool,
}

impl<R: Read> Samples<R> {
    /// Reads from the tar's first byte on.
    pub fn new(reader: R) -> Self {
        let members = Members::new(Unpacked::new(reader));
        Self { members, current: None, next: None, row: 0, ended: false }
    }

    /// Takes in one member. Gives the sample before it if the member begins another one.
    fn step(&mut self) -> Option<Record> {
        let member = match self.next.take() {
            Some(member) => member,
            None => match self.members.next() {
                Ok(Some(member)) => member,
                Ok(None) => {
                    self.ended = true;
                    return self.finish();
                }
                Err(cut) => {
                    // All that is there of the current sample is whole.
                    self.ended = true;
                    let last = self.finish();
                    self.current = Some(Sample::broken(cut));
                    return last;
                }
            },
        };
        let (key, extension) = split(&member.name)?;
        if self.current.as_ref().is_some_and(|sample| sample.key.as_deref() != Some(key)) {
            self.next = Some(member);
            return self.finish();
        }
        let sample = self.current.get_or_insert_with(|| Sample::new(key));
        let taken = sample.take(&extension, &member, &mut self.members);
        if let Err(cut) = taken {
            self.ended = true;
            let key = sample.key.take();
            self.current = Some(Sample { key, ..Sample::broken(cut) });
        }
        None
    }

    fn finish(&mut self) -> Option<Record> {
        let sample = self.current.take()?;
        self.row += 1;
        Some(sample.record(self.row - 1))
    }
}

impl<R: Read> Iterator for Samples<R> {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        while !self.ended {
            if let Some(record) = self.step() {
                return Some(record);
            }
        }
        self.finish()
    }
}

/// Key and extension of a member, as webdataset splits names: at the first dot of the last component. Hidden files
/// belong to no sample.
fn split(name: &str) -> Option<(&str, String)> {
    let file = name.rfind('/').map_or(0, |slash| slash + 1);
    let dot = file + name[file..].find('.')?;
    (dot > file).then(|| (&name[..dot], name[dot + 1..].to_lowercase()))
}

/// A sample being put together.
#[derive(Default)]
struct Sample {
    key: Option<String>,
    /// Extensions taken.
    seen: Vec<String>,
    image: Option<Bytes>,
    text: Option<Vec<u8>>,
    json: Option<Vec<u8>>,
    error: Option<String>,
}

impl Sample {
    fn new(key: &str) -> Self {
        Self { key: Some(key.to_owned()), ..Self::default() }
    }

    fn broken(Cut(problem): Cut) -> Self {
        Self { error: Some(problem), ..Self::default() }
    }

    /// Takes a member in if it is one of those we know.
    fn take<R: Read>(
        &mut self,
        extension: &str,
        member: &Member,
        members: &mut Members<R>,
    ) -> Result<(), Cut> {
        let image = IMAGE_EXTENSIONS.contains(&extension);
        if !image && extension != "txt" && extension != "json" {
            return Ok(());
        }
        let most = if image { MAX_BYTES } else { MAX_TEXT };
        let problem = if self.seen.iter().any(|seen| seen == extension) {
            format!("container: a second member `{}`", member.name)
        } else if member.size > most as u64 {
            format!("size: member `{}` has {} bytes, more than {most}", member.name, member.size)
        } else {
            self.seen.push(extension.to_owned());
            let data = members.data()?;
            match extension {
                "txt" => self.text = Some(data),
                "json" => self.json = Some(data),
                // Of several images the first one counts.
                _ => _ = self.image.get_or_insert(data.into()),
            }
            return Ok(());
        };
        self.error.get_or_insert(problem);
        Ok(())
    }

    fn record(self, row: u64) -> Record {
        let text_bytes = self.text.as_ref().map_or(0, Vec::len) + self.json.as_ref().map_or(0, Vec::len);
        let mut record = Record {
            row,
            key: self.key,
            image: self.image,
            text_bytes,
            error: self.error,
            ..Record::default()
        };
        match self.json.map(|json| object(&json)) {
            Some(Ok(fields)) => record.fields = fields,
            Some(Err(e)) => record.fail(format!("json: the sample's .json: {e}")),
            None => {}
        }
        if let Some(text) = self.text {
            add_text(&mut record, text);
        }
        record
    }
}

/// Adds what a .txt gives: `txt`, and the caption in place of the .json's. A blank one gives nothing, for that is how
/// img2dataset writes a null; one that cannot be read leaves a caption as it is.
fn add_text(record: &mut Record, text: Vec<u8>) {
    match String::from_utf8(text) {
        Ok(text) if text.trim().is_empty() => {}
        Ok(text) => {
            record.fields.insert("caption".into(), Value::String(text.clone()));
            record.fields.insert("txt".into(), Value::String(text));
        }
        Err(_) => {
            let problem = "encoding: the sample's .txt is not valid UTF-8";
            record.unreadable.push(("txt", problem));
            if is_blank(record.fields.get("caption")) {
                record.unreadable.push(("caption", problem));
            }
        }
    }
}

fn is_blank(field: Option<&Value>) -> bool {
    match field {
        None | Some(Value::Null) => true,
        Some(value) => value.as_str().is_some_and(|text| text.trim().is_empty()),
    }
}

/// A tar's bytes, unpacked if they are gzipped, which their first two bytes say whatever the name is.
enum Unpacked<R: Read> {
    Tar(BufReader<R>),
    Gzip(Box<MultiGzDecoder<BufReader<R>>>),
}

impl<R: Read> Unpacked<R> {
    fn new(reader: R) -> Self {
        let mut reader = BufReader::new(reader);
        // An error here comes back, or ends the file, when the first header is read.
        match reader.fill_buf().is_ok_and(|bytes| bytes.starts_with(&[0x1f, 0x8b])) {
            true => Self::Gzip(Box::new(MultiGzDecoder::new(reader))),
            false => Self::Tar(reader),
        }
    }
}

impl<R: Read> Read for Unpacked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Tar(reader) => reader.read(buffer),
            Self::Gzip(reader) => reader.read(buffer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn names_are_split_as_webdataset_does() {
        let cases = [
            ("0001.jpg", Some(("0001", "jpg"))),
            ("a.b/c/0001.JPG", Some(("a.b/c/0001", "jpg"))),
            ("0001.seg.png", Some(("0001", "seg.png"))),
            ("./0001.txt", Some(("./0001", "txt"))),
            ("0001.", Some(("0001", ""))),
            ("README", None),
            ("a.b/README", None),
            ("a/.hidden", None),
            ("._0001.jpg", None),
        ];
        for (name, expected) in cases {
            let found = split(name);
            assert_eq!(found.as_ref().map(|(key, extension)| (*key, extension.as_str())), expected, "{name}");
        }
    }
}
