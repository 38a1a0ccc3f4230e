//! Finds out what pairs lie at a path or URI: their container format, the fields of a row, and which of
//! them is the image, the caption and so on.
//!
//! * `container`: the format, by the names of files
//! * `fields`: the fields of the first file
//! * `roles`: columns, by the names and kinds of fields

mod container;
mod fields;
mod roles;

use tidemill_io::{block_on, uri};

pub use self::container::Container;
pub use self::fields::{Field, FieldKind};
pub use self::roles::Roles;
use crate::error::Result;

/// What lies at a path or URI.
#[derive(Debug, Clone, PartialEq)]
pub struct Discovered {
    /// The files of the pairs.
    pub container: Container,
    /// The fields of a row.
    pub fields: Vec<Field>,
    /// What the fields are for.
    pub roles: Roles,
    /// Rows in the first file. `None` if only reading it would tell.
    pub first_rows: Option<u64>,
}

/// Looks at the names of all files at a path or URI, and into the first file of the pairs.
///
/// # Errors
/// If there is nothing, no file has a known format, or the first file cannot be read.
pub fn discover(path: &str) -> Result<Discovered> {
    let address = uri::parse(path)?;
    let objects = block_on(address.expand())?;
    let files: Vec<(&str, u64)> = objects.iter().map(|(uri, meta)| (uri.as_str(), meta.size)).collect();
    let container = Container::find(path, &address.uri(), &files)?;
    let (fields, first_rows) = fields::read_fields(&container)?;
    let roles = Roles::guess(&container, &fields);
    Ok(Discovered { container, fields, roles, first_rows })
}
