//! The run file's section `[source]`, with its defaults and checks. `validate` rejects invalid
//! values before anything is read.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use crate::columns::names::{SOURCE_ERROR, is_output_column};
use crate::error::{Result, invalid_config};
use crate::one_or_many::OneOrMany;

/// `[source]`: where the pairs are and the names of their columns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SourceConfig {
    /// Container format of the pairs.
    pub format: Format,
    /// One or several paths or URIs. `*`, `?`, `[..]` and `**` are globs; a directory means every
    /// file below it, of any kind.
    /// `s3://`, `gs://`, `az://` and `abfss://` take credentials and endpoints from their usual
    /// environment variables (`AWS_*`, `GOOGLE_*`, `AZURE_*`); `http(s)://` is the URL of one file.
    /// A file's identity, and with it the sample ids of its rows, depends on its content and its
    /// name below the part before the first glob, and not on its location.
    pub uri: OneOrMany,
    /// Names of the columns.
    pub columns: Columns,
    /// The folder or URI from which relative paths of images count. By default it is the folder of
    /// the file that names them.
    pub image_root: Option<String>,
    /// WebDataset, and captions beside images: where a file's name ends and its extension begins.
    pub key_split: KeySplit,
    /// How CSV files are written.
    pub csv: CsvConfig,
    /// Further columns that are carried into the dataset unchanged.
    pub carry: Vec<String>,
    /// Target number of rows of a unit of work. Parquet: units end at row-group boundaries, so a
    /// larger row group makes a larger unit. JSON lines: lines of 512 bytes are assumed. All other
    /// files are one unit each.
    pub rows_per_unit: u64,
    /// Most rows of a record batch.
    pub rows_per_batch: usize,
}

/// Container formats.
///
/// Only the fields of Parquet have types. In all other formats, a field becomes a column if
/// `columns`, `carry` or a filter names it: a number for `width`, `height` and scores, else text as
/// it is, or its JSON text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Parquet with the encoded image in a binary column, in a struct `{bytes, path}`, or named by
    /// a path or URI.
    #[default]
    Parquet,
    /// WebDataset: tar files, plain or compressed by gzip or zstd, or zip archives, with members
    /// `<key>.jpg`, `<key>.txt`, `<key>.json`. The fields are those of the JSON object, and `caption`
    /// and `txt` with the text of `<key>.txt` if there is one.
    WebDataset,
    /// JSON lines: one object per line, with the image as a path (relative to the file) or URI.
    Jsonl,
    /// CSV (RFC 4180) with a header line, with the image as in JSON lines. An empty field is a
    /// null. [`CsvConfig`] is for TSV and files without a header.
    Csv,
    /// Image folders. A line of a `metadata.jsonl`, `.csv` or `.parquet` in the same folder or above
    /// describes each image; its `file_name` is the image's path from there. Without such a file,
    /// captions are in files beside the images, as the members of WebDataset.
    Images,
    /// Arrow IPC, as file or stream: Feather, and what `datasets.save_to_disk` writes. Columns as in
    /// Parquet.
    Arrow,
    /// Captions of COCO: one JSON object with `images` and `annotations`. A row for each image, with
    /// the image's fields and a list `caption`; the image is its `file_name`.
    Coco,
}

impl Format {
    /// Its name in the run file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Parquet => "parquet",
            Self::WebDataset => "webdataset",
            Self::Jsonl => "jsonl",
            Self::Csv => "csv",
            Self::Images => "images",
            Self::Arrow => "arrow",
            Self::Coco => "coco",
        }
    }
}

/// Where the key of a file's name ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeySplit {
    /// At the first dot, as WebDataset does: `22.05.jpg` has the key `22`.
    #[default]
    FirstDot,
    /// At the last dot: `22.05.jpg` has the key `22.05`.
    LastDot,
}

/// How CSV files are written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CsvConfig {
    /// The character between fields, one byte: `"\t"` for TSV.
    pub delimiter: String,
    /// The character around fields that contain delimiters or line ends; empty: there is none, and
    /// quotation marks are like other characters.
    pub quote: String,
    /// Names of the columns of files without a header line.
    pub columns: Vec<String>,
}

impl Default for CsvConfig {
    fn default() -> Self {
        Self { delimiter: ",".into(), quote: "\"".into(), columns: Vec::new() }
    }
}

impl CsvConfig {
    /// The delimiter, of a valid configuration.
    pub(crate) fn delimiter_byte(&self) -> u8 {
        self.delimiter.bytes().next().unwrap_or(b',')
    }

    /// The quote; `None` if there is none.
    pub(crate) fn quote_byte(&self) -> Option<u8> {
        self.quote.bytes().next()
    }

    fn validate(&self) -> Result<()> {
        if self.delimiter.len() != 1 {
            return invalid_config(
                "source.csv.delimiter",
                "must be one ASCII character, such as \",\" or \"\\t\"",
            );
        }
        if self.quote.len() > 1 || self.quote == self.delimiter {
            return invalid_config("source.csv.quote", "must be one ASCII character, or empty for none");
        }
        let mut names = HashSet::new();
        match self.columns.iter().find(|name| !names.insert(*name)) {
            Some(name) => invalid_config("source.csv.columns", format!("`{name}` is listed twice")),
            None => Ok(()),
        }
    }
}

/// Names of the columns by role.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Columns {
    /// Encoded image: Binary, LargeBinary, BinaryView, a struct of `bytes` and `path`, or strings
    /// that are paths or URIs. All columns may be paths into nested fields: `images[0]`,
    /// `meta.caption`, `sentences[*].raw`.
    pub image: String,
    /// Captions, one column or several: any string type, dictionaries of strings, lists of strings,
    /// or UTF-8 in a binary column.
    pub caption: OneOrMany,
    /// The source's own name of a row: strings or integers. By default `<file>#<row>`.
    pub key: Option<String>,
    /// Declared width. It is not used, but a row whose declared width is not a finite number is
    /// quarantined.
    pub width: Option<String>,
    /// Declared height, as `width`.
    pub height: Option<String>,
    /// The image's URL, for blocklists of URLs and domains: strings.
    pub url: Option<String>,
}

impl Columns {
    /// Every column with its role, which is also its key in the run file.
    pub fn by_role(&self) -> impl Iterator<Item = (&'static str, &String)> {
        let Self { image, caption, key, width, height, url } = self;
        let captions = caption.as_slice().iter().map(|name| ("caption", name));
        let optional = [("key", key), ("width", width), ("height", height), ("url", url)];
        let optional = optional.into_iter().filter_map(|(role, name)| Some((role, name.as_ref()?)));
        std::iter::once(("image", image)).chain(captions).chain(optional)
    }
}

impl Default for Columns {
    fn default() -> Self {
        Self {
            image: "image".into(),
            caption: OneOrMany::One("caption".into()),
            key: None,
            width: None,
            height: None,
            url: None,
        }
    }
}

impl Default for SourceConfig {
    fn default() -> Self {
        Self {
            format: Format::default(),
            uri: OneOrMany::default(),
            columns: Columns::default(),
            image_root: None,
            key_split: KeySplit::default(),
            csv: CsvConfig::default(),
            carry: Vec::new(),
            rows_per_unit: 4096,
            rows_per_batch: 256,
        }
    }
}

impl SourceConfig {
    /// Checks what can be checked without opening a file.
    ///
    /// # Errors
    /// [`crate::Error::Config`] that names the key and says which values are valid.
    pub fn validate(&self) -> Result<()> {
        let uris = self.uri.as_slice();
        if uris.is_empty() || uris.iter().any(|uri| uri.trim().is_empty()) {
            return invalid_config("source.uri", "give at least one path or URI, such as \"data/*.parquet\"");
        }
        self.validate_columns()?;
        self.csv.validate()?;
        if self.rows_per_unit == 0 {
            return invalid_config("source.rows_per_unit", "must be at least 1");
        }
        if !(1..=65_536).contains(&self.rows_per_batch) {
            return invalid_config("source.rows_per_batch", "must be between 1 and 65536");
        }
        Ok(())
    }

    /// The part of [`validate`](Self::validate) that does not concern files.
    ///
    /// # Errors
    /// As for [`validate`](Self::validate).
    pub(crate) fn validate_columns(&self) -> Result<()> {
        if self.columns.caption.as_slice().is_empty() {
            return invalid_config("source.columns.caption", "name at least one column");
        }
        let mut names = HashSet::new();
        for (_, name) in self.columns.by_role() {
            if name.is_empty() {
                return invalid_config("source.columns", "a column's name is empty");
            }
            if !names.insert(name) {
                return invalid_config(
                    "source.columns",
                    format!("`{name}` is named twice; name each column once"),
                );
            }
        }
        let mut carried = HashSet::new();
        for name in &self.carry {
            if *name == self.columns.image {
                return invalid_config(
                    "source.carry",
                    format!("`{name}` is the image column; images are not carried"),
                );
            }
            if is_output_column(name) || name == SOURCE_ERROR {
                return invalid_config(
                    "source.carry",
                    format!(
                        "`{name}` is written by the pipeline itself; it cannot be carried under that name"
                    ),
                );
            }
            if !carried.insert(name) {
                return invalid_config("source.carry", format!("`{name}` is listed twice"));
            }
        }
        Ok(())
    }
}
