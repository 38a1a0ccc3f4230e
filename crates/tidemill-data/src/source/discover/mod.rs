//! Finds out what pairs lie at a path or URI: their container format, the fields of a row, and which of
//! them is the image, the caption and so on.
//!
//! * `container`: the format, by the names of files
//! * `csv_dialect`: delimiter and header of CSV
//! * `fields`: the fields of the first file
//! * `roles`: columns, by the names and kinds of fields

mod container;
mod csv_dialect;
mod fields;
mod roles;

use tidemill_io::{block_on, uri};

pub use self::container::Container;
pub use self::fields::{Field, FieldKind};
pub use self::roles::Roles;
use crate::error::Result;
use crate::one_or_many::OneOrMany;
use crate::source::config::{Format, SourceConfig};

/// What lies at a path or URI.
#[derive(Debug, Clone, PartialEq)]
pub struct Discovered {
    /// The files of the pairs.
    pub container: Container,
    /// The fields of a row.
    pub fields: Vec<Field>,
    /// What the fields are for.
    pub roles: Roles,
    /// The source that the run file should have.
    pub config: SourceConfig,
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
    let mut config = SourceConfig {
        format: container.format,
        uri: OneOrMany::One(container.uri.clone()),
        ..SourceConfig::default()
    };
    if container.format == Format::Csv {
        config.csv = csv_dialect::guess(&container)?;
    }
    let (fields, first_rows) = fields::read_fields(&container, &config)?;
    let roles = Roles::guess(&container, &fields);
    config.columns = roles.columns.clone();
    Ok(Discovered { container, fields, roles, config, first_rows })
}
