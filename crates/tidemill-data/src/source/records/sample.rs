//! A sample of several files with one name: members of a tar or zip, or files in a folder, such as
//! `<key>.jpg`, `<key>.txt` and `<key>.json`.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use crate::decode::{IMAGE_EXTENSIONS, MAX_BYTES};
use crate::source::config::KeySplit;
use crate::source::records::json_object::parse_object;
use crate::source::records::record::{MAX_TEXT, Record};

/// The extensions that are always read as text, each as the field of its name. They give the caption,
/// too.
pub const CAPTION_EXTENSIONS: [&str; 2] = ["txt", "caption"];

/// How files become samples.
#[derive(Debug, Clone, Default)]
pub struct SampleOptions {
    /// Where the key ends in a file's name.
    pub key_split: KeySplit,
    /// Further extensions that are read as text: the names of columns.
    pub text_extensions: Arc<[String]>,
}

/// What a file is for its sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Image,
    Text,
    Json,
}

impl SampleOptions {
    /// Splits a file's path into key and extension (in lower case). Hidden files belong to no sample.
    pub fn split_name<'a>(&self, name: &'a str) -> Option<(&'a str, String)> {
        let file = name.rfind('/').map_or(0, |slash| slash + 1);
        let dot = match self.key_split {
            KeySplit::FirstDot => name[file..].find('.')?,
            KeySplit::LastDot => name[file..].rfind('.')?,
        };
        // macOS writes its attributes of `1.jpg` as `._1.jpg`.
        let is_hidden = name[file..].starts_with('.');
        (!is_hidden).then(|| (&name[..file + dot], name[file + dot + 1..].to_lowercase()))
    }

    /// Whether files with this extension are read.
    pub fn is_read(&self, extension: &str) -> bool {
        self.part(extension).is_some()
    }

    fn part(&self, extension: &str) -> Option<Part> {
        if IMAGE_EXTENSIONS.contains(&extension) {
            return Some(Part::Image);
        }
        if extension == "json" {
            return Some(Part::Json);
        }
        let is_text = CAPTION_EXTENSIONS.contains(&extension)
            || self.text_extensions.iter().any(|text| text == extension);
        is_text.then_some(Part::Text)
    }
}

/// Whether an extension is that of an image.
pub fn is_image_extension(extension: &str) -> bool {
    IMAGE_EXTENSIONS.contains(&extension)
}

/// A sample that is being assembled.
#[derive(Debug, Default)]
pub struct Sample {
    /// Its name: the path up to the dot.
    pub key: Option<String>,
    /// Another sample in front of it has the same name.
    pub is_repeated: bool,
    /// The extensions so far.
    extensions: Vec<String>,
    image: Option<Bytes>,
    /// Texts by their extension.
    texts: Vec<(String, Bytes)>,
    json: Option<Bytes>,
    error: Option<String>,
}

impl Sample {
    /// A sample without parts.
    pub fn new(key: &str) -> Self {
        Self { key: Some(key.to_owned()), ..Self::default() }
    }

    /// A sample that is only an error.
    pub fn with_error(key: Option<String>, error: String) -> Self {
        Self { key, error: Some(error), ..Self::default() }
    }

    /// Sets the error, unless there is one already.
    pub fn set_error(&mut self, error: String) {
        self.error.get_or_insert(error);
    }

    /// Takes note of a file. True if its bytes are wanted: the extension is known and new in this
    /// sample, and the size within bounds.
    pub fn wants(&mut self, options: &SampleOptions, extension: &str, name: &str, size: u64) -> bool {
        let is_new = self.extensions.iter().all(|seen| seen != extension);
        let Some(part) = options.part(extension) else {
            if is_new {
                self.extensions.push(extension.to_owned());
            }
            return false;
        };
        let most = if part == Part::Image { MAX_BYTES } else { MAX_TEXT };
        if !is_new {
            self.set_error(format!("container: a second member `{name}`"));
        } else if size > most as u64 {
            self.set_error(format!("size: member `{name}` has {size} bytes, more than {most}"));
        } else {
            self.extensions.push(extension.to_owned());
            return true;
        }
        false
    }

    /// Adds the bytes of a wanted file.
    pub fn add(&mut self, options: &SampleOptions, extension: &str, bytes: Bytes) {
        match options.part(extension) {
            // The first of several images counts.
            Some(Part::Image) => _ = self.image.get_or_insert(bytes),
            Some(Part::Json) => self.json = Some(bytes),
            Some(Part::Text) => self.texts.push((extension.to_owned(), bytes)),
            None => {}
        }
    }

    /// The sample as a row.
    pub fn into_record(mut self, row: u64) -> Record {
        let text_bytes = self.texts.iter().map(|(_, text)| text.len()).sum::<usize>()
            + self.json.as_ref().map_or(0, Bytes::len);
        let mut record = Record {
            row,
            key: self.key,
            image: self.image,
            text_bytes,
            error: self.error,
            members: self.extensions,
            is_repeated: self.is_repeated,
            ..Record::default()
        };
        match self.json.map(|json| parse_object(&json)) {
            Some(Ok(fields)) => record.fields = fields,
            Some(Err(e)) => record.set_error(format!("json: the sample's .json: {e}")),
            None => {}
        }
        // `.caption` comes after `.txt`, so that it is the caption if there are both.
        self.texts.sort_by_key(|(extension, _)| extension == "caption");
        for (extension, text) in self.texts {
            add_text(&mut record, &extension, &text);
        }
        record
    }
}

/// Adds the content of a text: the field of its extension, and the caption in place of the .json's.
/// A blank one is ignored, because img2dataset writes nulls that way. An unreadable one leaves an
/// existing caption as it is.
fn add_text(record: &mut Record, extension: &str, text: &[u8]) {
    let is_caption = CAPTION_EXTENSIONS.contains(&extension);
    match std::str::from_utf8(text) {
        Ok(text) if text.trim().is_empty() => {}
        Ok(text) => {
            if is_caption {
                record.fields.insert("caption".into(), Value::String(text.to_owned()));
            }
            record.fields.insert(extension.to_owned(), Value::String(text.to_owned()));
        }
        Err(_) => {
            let problem = format!("encoding: the sample's .{extension} is not valid UTF-8");
            if is_caption && extension != "caption" && is_blank(record.fields.get("caption")) {
                record.unreadable.push(("caption".into(), problem.clone()));
            }
            record.unreadable.push((extension.to_owned(), problem));
        }
    }
}

fn is_blank(field: Option<&Value>) -> bool {
    match field {
        None | Some(Value::Null) => true,
        Some(value) => value.as_str().is_some_and(|text| text.trim().is_empty()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_as_by_webdataset_or_at_the_last_dot() {
        let cases = [
            ("0001.jpg", Some(("0001", "jpg")), Some(("0001", "jpg"))),
            ("a.b/c/0001.JPG", Some(("a.b/c/0001", "jpg")), Some(("a.b/c/0001", "jpg"))),
            ("0001.seg.png", Some(("0001", "seg.png")), Some(("0001.seg", "png"))),
            ("./22.05.txt", Some(("./22", "05.txt")), Some(("./22.05", "txt"))),
            ("0001.", Some(("0001", "")), Some(("0001", ""))),
            ("README", None, None),
            ("a.b/README", None, None),
            ("a/.hidden", None, None),
            ("._0001.jpg", None, None),
        ];
        for (name, first, last) in cases {
            for (key_split, expected) in [(KeySplit::FirstDot, first), (KeySplit::LastDot, last)] {
                let options = SampleOptions { key_split, ..SampleOptions::default() };
                let found = options.split_name(name);
                let found = found.as_ref().map(|(key, extension)| (*key, extension.as_str()));
                assert_eq!(found, expected, "{name}, {key_split:?}");
            }
        }
    }

    #[test]
    fn caption_comes_from_the_most_telling_file() {
        let options =
            SampleOptions { text_extensions: ["cls".to_owned()].into(), ..SampleOptions::default() };
        let record = |files: &[(&str, &[u8])]| {
            let mut sample = Sample::new("1");
            for (extension, bytes) in files {
                if sample.wants(&options, extension, extension, bytes.len() as u64) {
                    sample.add(&options, extension, Bytes::copy_from_slice(bytes));
                }
            }
            sample.into_record(0)
        };
        let json: (&str, &[u8]) = ("json", br#"{"caption": "j", "n": 1}"#);
        for (files, expected) in [
            (&[json, ("txt", b"t"), ("caption", b"c")][..], "c"),
            (&[("caption", b"c"), ("txt", b"t"), json], "c"),
            (&[json, ("txt", b"t")], "t"),
            (&[json, ("txt", b" \n")], "j"),
            (&[json, ("txt", b"\xff")], "j"),
        ] {
            let record = record(files);
            assert_eq!(record.fields["caption"], expected, "{files:?}");
        }
        let record = record(&[("txt", b"\xff"), ("cls", b"7"), ("npy", b"..")]);
        assert_eq!((record.fields.len(), &record.fields["cls"]), (1, &Value::from("7")));
        let unreadable: Vec<&str> = record.unreadable.iter().map(|(field, _)| field.as_str()).collect();
        assert_eq!(
            (unreadable, record.members),
            (vec!["caption", "txt"], vec!["txt".into(), "cls".into(), "npy".into()])
        );
    }
}
