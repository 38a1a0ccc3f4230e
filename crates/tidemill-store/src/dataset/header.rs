//! The header of a snapshot, which describes all its shards, and the object that marks a folder as
//! a dataset.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tidemill_io::{Checksum, Location};

use crate::dataset::object_keys::{DATASET, EMPTY_CAPTION};
use crate::dataset::spec::{DatasetSpec, FORMAT_VERSION};
use crate::error::{Error, Result};

/// The description that all shards of a snapshot share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    #[serde(flatten)]
    pub(crate) spec: DatasetSpec,
    pub(crate) empty_caption: EmptyCaption,
}

/// The object that holds the empty caption: raw values of all text columns, one behind the other, in the form in
/// which readers give them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EmptyCaption {
    pub path: String,
    pub xxh3: Checksum,
}

impl Header {
    /// Whether shards under one header can be mixed with shards under the other.
    pub(crate) fn is_compatible_with(&self, other: &Self) -> bool {
        self.empty_caption == other.empty_caption && self.spec.digest() == other.spec.digest()
    }

    /// Prepares a folder for shards of this kind. Marks it as a dataset and puts the text columns of the empty
    /// caption under a name that follows from its content.
    pub(crate) fn create(location: &Location, spec: DatasetSpec, empty_caption: &[u8]) -> Result<Self> {
        spec.validate()?;
        let bytes = spec.text_row_bytes();
        if empty_caption.len() != bytes {
            let problem = format!("{} bytes, but a row of the text columns has {bytes}", empty_caption.len());
            return Err(Error::Config { key: "the empty caption", problem });
        }
        mark_as_dataset(location)?;
        let xxh3 = Checksum::compute(empty_caption);
        let path = format!("{EMPTY_CAPTION}{xxh3}.bin");
        location.put_if_absent(&path, Bytes::copy_from_slice(empty_caption))?;
        Ok(Self { spec, empty_caption: EmptyCaption { path, xxh3 } })
    }

    /// Reads the empty caption, in the form in which readers give a row of the text columns.
    pub(crate) fn empty_caption(&self, location: &Location) -> Result<Bytes> {
        let bytes = location.get(&self.empty_caption.path)?;
        if Checksum::compute(&bytes) != self.empty_caption.xxh3 || bytes.len() != self.spec.text_row_bytes() {
            return Err(Error::Format {
                path: location.uri_of(&self.empty_caption.path),
                problem: "is damaged (wrong checksum or size); remove it and run `tidemill preprocess` again"
                    .into(),
            });
        }
        Ok(bytes)
    }
}

/// Marks a folder as a dataset. Writes the mark even if it exists already (which changes nothing),
/// so that a folder without write permission is reported at once.
///
/// # Errors
/// The errors of [`is_dataset`], and a folder that cannot be written to.
pub(crate) fn mark_as_dataset(location: &Location) -> Result<()> {
    is_dataset(location)?;
    let text = format!("{{\"format\": {FORMAT_VERSION}}}\n");
    location.put_if_absent(DATASET, text.into())?;
    Ok(())
}

/// Whether the location holds a dataset.
///
/// # Errors
/// [`Error::Format`] if the dataset has a format that this version does not know.
pub(crate) fn is_dataset(location: &Location) -> Result<bool> {
    let Some(bytes) = location.get_if_present(DATASET)? else { return Ok(false) };
    let fail = |problem: String| Err(Error::Format { path: location.uri_of(DATASET), problem });
    let Ok(value) = serde_json::from_slice::<Value>(&bytes) else {
        return fail("is not a dataset description; check that the path is the folder of a dataset".into());
    };
    if value["format"] != FORMAT_VERSION {
        return fail(format!(
            "has format {}, but this version reads only format {FORMAT_VERSION}; update Tidemill, or preprocess into another \
             output",
            value["format"]
        ));
    }
    Ok(true)
}
