//! The samples of a WebDataset tar. Neighbouring members with the same name up to the first dot of
//! the file name are one sample, as img2dataset writes them: `<key>.jpg`, `<key>.txt`,
//! `<key>.json`. Plain or gzipped.

use std::io::{BufRead, BufReader, Read};

use bytes::Bytes;
use flate2::bufread::MultiGzDecoder;
use serde_json::Value;

use crate::decode::{IMAGE_EXTENSIONS, MAX_BYTES};
use crate::source::records::json_object::parse_object;
use crate::source::records::record::{MAX_TEXT, Record};
use crate::source::webdataset::tar::{TarError, TarMember, TarMembers};

/// The samples of a tar, in order. An error of one sample is its record's error. A tar that cannot
/// be read to its end gives one more record with that error: in place of the sample in which it
/// ends, or behind the last one.
pub struct Samples<R: Read> {
    members: TarMembers<Decompressed<R>>,
    current: Option<Sample>,
    /// The first member of the sample after `current`.
    next: Option<TarMember>,
    row: u64,
    is_done: bool,
}

impl<R: Read> Samples<R> {
    /// Reads samples from the start of a tar.
    pub fn new(reader: R) -> Self {
        let members = TarMembers::new(Decompressed::new(reader));
        Self { members, current: None, next: None, row: 0, is_done: false }
    }

    /// Reads one member. Returns the previous sample if the member starts another one.
    fn read_member(&mut self) -> Option<Record> {
        let member = match self.next.take() {
            Some(member) => member,
            None => match self.members.next() {
                Ok(Some(member)) => member,
                Ok(None) => {
                    self.is_done = true;
                    return self.finish_sample();
                }
                Err(cut) => {
                    // The current sample is complete as far as it was read.
                    self.is_done = true;
                    let last = self.finish_sample();
                    self.current = Some(Sample::with_error(cut));
                    return last;
                }
            },
        };
        let (key, extension) = split_member_name(&member.name)?;
        if self.current.as_ref().is_some_and(|sample| sample.key.as_deref() != Some(key)) {
            self.next = Some(member);
            return self.finish_sample();
        }
        let sample = self.current.get_or_insert_with(|| Sample::new(key));
        let added = sample.add_member(&extension, &member, &mut self.members);
        if let Err(cut) = added {
            self.is_done = true;
            let key = sample.key.take();
            self.current = Some(Sample { key, ..Sample::with_error(cut) });
        }
        None
    }

    fn finish_sample(&mut self) -> Option<Record> {
        let sample = self.current.take()?;
        self.row += 1;
        Some(sample.into_record(self.row - 1))
    }
}

impl<R: Read> Iterator for Samples<R> {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        while !self.is_done {
            if let Some(record) = self.read_member() {
                return Some(record);
            }
        }
        self.finish_sample()
    }
}

/// Splits a member name into key and extension as webdataset does: at the first dot of the last
/// component. Hidden files belong to no sample.
fn split_member_name(name: &str) -> Option<(&str, String)> {
    let file = name.rfind('/').map_or(0, |slash| slash + 1);
    let dot = file + name[file..].find('.')?;
    (dot > file).then(|| (&name[..dot], name[dot + 1..].to_lowercase()))
}

/// A sample that is being assembled.
#[derive(Default)]
struct Sample {
    key: Option<String>,
    /// Extensions of the members so far.
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

    fn with_error(TarError(problem): TarError) -> Self {
        Self { error: Some(problem), ..Self::default() }
    }

    /// Adds a member if its extension is known.
    fn add_member<R: Read>(
        &mut self,
        extension: &str,
        member: &TarMember,
        members: &mut TarMembers<R>,
    ) -> Result<(), TarError> {
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
            let data = members.read_data()?;
            match extension {
                "txt" => self.text = Some(data),
                "json" => self.json = Some(data),
                // The first of several images counts.
                _ => _ = self.image.get_or_insert(data.into()),
            }
            return Ok(());
        };
        self.error.get_or_insert(problem);
        Ok(())
    }

    fn into_record(self, row: u64) -> Record {
        let text_bytes = self.text.as_ref().map_or(0, Vec::len) + self.json.as_ref().map_or(0, Vec::len);
        let mut record = Record {
            row,
            key: self.key,
            image: self.image,
            text_bytes,
            error: self.error,
            ..Record::default()
        };
        match self.json.map(|json| parse_object(&json)) {
            Some(Ok(fields)) => record.fields = fields,
            Some(Err(e)) => record.set_error(format!("json: the sample's .json: {e}")),
            None => {}
        }
        if let Some(text) = self.text {
            add_text(&mut record, text);
        }
        record
    }
}

/// Adds the content of a .txt: the field `txt`, and the caption in place of the .json's. A blank
/// one is ignored, because img2dataset writes nulls that way. An unreadable one leaves an existing
/// caption as it is.
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

/// The bytes of a tar, decompressed if their first two bytes say that they are gzipped, whatever
/// the file name is.
enum Decompressed<R: Read> {
    Tar(BufReader<R>),
    Gzip(Box<MultiGzDecoder<BufReader<R>>>),
}

impl<R: Read> Decompressed<R> {
    fn new(reader: R) -> Self {
        let mut reader = BufReader::new(reader);
        // An error here is reported, or ends the file, when the first header is read.
        match reader.fill_buf().is_ok_and(|bytes| bytes.starts_with(&[0x1f, 0x8b])) {
            true => Self::Gzip(Box::new(MultiGzDecoder::new(reader))),
            false => Self::Tar(reader),
        }
    }
}

impl<R: Read> Read for Decompressed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Tar(reader) => reader.read(buffer),
            Self::Gzip(reader) => reader.read(buffer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::split_member_name;

    #[test]
    fn member_names_are_split_as_by_webdataset() {
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
            let found = split_member_name(name);
            assert_eq!(found.as_ref().map(|(key, extension)| (*key, extension.as_str())), expected, "{name}");
        }
    }
}
