//! What a snapshot says of all its shards, and the object that marks a folder as a dataset.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tidemill_io::{Checksum, Location};

use crate::dataset::layout::{DATASET, EMPTY_CAPTION};
use crate::dataset::spec::{DatasetSpec, FORMAT};
use crate::error::{Error, Result};

/// What a snapshot says of all its shards.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    #[serde(flatten)]
    pub(crate) spec: DatasetSpec,
    pub(crate) empty_caption: EmptyCaption,
}

/// Where the empty caption is: an object of raw values, in the form in which readers give the column `text`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EmptyCaption {
    pub path: String,
    pub xxh3: Checksum,
}

impl Header {
    /// Whether shards of one are shards of the other.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.empty_caption == other.empty_caption && self.spec.digest() == other.spec.digest()
    }

    /// Prepares a folder for shards of this kind: marks it as a dataset and puts the empty
    /// caption's row of `text`, under a name that follows from its content.
    pub(crate) fn create(location: &Location, spec: DatasetSpec, empty_caption: &[u8]) -> Result<Self> {
        spec.validate()?;
        let bytes = spec.text.given().bytes();
        if empty_caption.len() != bytes {
            let problem = format!("{} bytes, but a row of `text` has {bytes}", empty_caption.len());
            return Err(Error::Config { key: "the empty caption", problem });
        }
        mark(location)?;
        let xxh3 = Checksum::of(empty_caption);
        let path = format!("{EMPTY_CAPTION}{xxh3}.bin");
        location.put_if_absent(&path, Bytes::copy_from_slice(empty_caption))?;
        Ok(Self { spec, empty_caption: EmptyCaption { path, xxh3 } })
    }

    /// The empty caption, as readers give a row of `text`.
    pub(crate) fn empty_caption(&self, location: &Location) -> Result<Bytes> {
        let bytes = location.get(&self.empty_caption.path)?;
        if Checksum::of(&bytes) != self.empty_caption.xxh3 || bytes.len() != self.spec.text.given().bytes() {
            return Err(Error::Format {
                path: location.uri_of(&self.empty_caption.path),
                problem: "is damaged (wrong checksum or size); remove it and run `tidemill preprocess` again"
                    .into(),
            });
        }
        Ok(bytes)
    }
}

/// Marks a folder as a dataset's. The mark is put even where it is there already and stays as it is: so a folder that
/// cannot be written to shows at once.
///
/// # Errors
/// As [`is_dataset`], and if the folder cannot be written to.
pub(crate) fn mark(location: &Location) -> Result<()> {
    is_dataset(location)?;
    let text = format!("{{\"format\": {FORMAT}}}\n");
    location.put_if_absent(DATASET, text.into())?;
    Ok(())
}

/// Whether there is a dataset at all.
///
/// # Errors
/// [`Error::Format`] if it has a format that this version does not know.
pub(crate) fn is_dataset(location: &Location) -> Result<bool> {
    let Some(bytes) = location.get_if_present(DATASET)? else { return Ok(false) };
    let fail = |problem: String| Err(Error::Format { path: location.uri_of(DATASET), problem });
    let Ok(value) = serde_json::from_slice::<Value>(&bytes) else {
        return fail("is no dataset description; is this a dataset's folder?".into());
    };
    if value["format"] != FORMAT {
        return fail(format!(
            "format {} is not known to this version, which reads {FORMAT}; update Tidemill, or preprocess into another \
             output",
            value["format"]
        ));
    }
    Ok(true)
}
