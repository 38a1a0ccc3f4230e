//! The columns that a source of typed columns needs, and their checks against each file.

use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};

use crate::caption::config::CaptionConfig;
use crate::columns::typed::ColumnRequest;
use crate::error::{Error, Result};
use crate::filter::config::FilterConfig;
use crate::source::batch_schema::{build_batch_schema, is_convertible, key_column_name};
use crate::source::columnar::image_column::resolve_image_fields;
use crate::source::columnar::nested_column::{find_field, find_root};
use crate::source::config::SourceConfig;
use crate::source::needed_columns::list_needed_columns;
use crate::source::units::InputFile;

/// The needed columns of a source.
#[derive(Debug, Clone)]
pub struct NeededColumns {
    /// Name and configuration key of every column to read.
    needed: Arc<[(String, String)]>,
    /// The column of images.
    pub image: Arc<str>,
    /// The folder from which relative names of images count, if it is not that of the naming file.
    pub image_root: Option<Arc<str>>,
    /// The schema of the source's batches.
    pub schema: SchemaRef,
}

impl NeededColumns {
    /// The columns that a configuration needs, with the types of the source's first file.
    ///
    /// # Errors
    /// If that file lacks a column or has it with a wrong type.
    pub fn new(
        config: &SourceConfig,
        filter: &FilterConfig,
        caption: &CaptionConfig,
        first: &InputFile,
        file_schema: &Schema,
    ) -> Result<Self> {
        let needed = list_needed_columns(config, filter, caption)?;
        let image = &config.columns.image;
        let fields = resolve_image_fields(find_fields(first, file_schema, &needed)?, image);
        Ok(Self {
            needed: needed.into(),
            image: image.as_str().into(),
            image_root: config.image_root.as_deref().map(Arc::from),
            schema: build_batch_schema(&Schema::new(fields), key_column_name(config)),
        })
    }

    /// The same columns but for that of the images.
    pub fn without_image(&self) -> Self {
        let others = self.needed.iter().filter(|(name, _)| **name != *self.image);
        Self { needed: others.cloned().collect(), ..self.clone() }
    }

    /// The names of the columns to read.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.needed.iter().map(|(name, _)| name.as_str())
    }

    /// The indices of a file's columns that have them.
    pub fn roots(&self, file_schema: &Schema) -> Vec<usize> {
        let mut roots: Vec<usize> = self.names().filter_map(|name| find_root(file_schema, name)).collect();
        roots.sort_unstable();
        roots.dedup();
        roots
    }

    /// Checks that a file has all columns, with types that can be converted to those of the first
    /// file.
    ///
    /// # Errors
    /// The first that does not fit.
    pub fn check(&self, file: &InputFile, file_schema: &Schema) -> Result<()> {
        let fields = resolve_image_fields(find_fields(file, file_schema, &self.needed)?, &self.image);
        // The first three fields are sample id, source row and key, which becomes text.
        let (_, others) = self.schema.fields().split_at(3);
        for field in fields {
            let first = others.iter().find(|first| first.name() == field.name());
            if let Some(first) = first.filter(|first| !is_convertible(field.data_type(), first.data_type())) {
                let problem = format!(
                    "its column `{}` is {}, but {} in the source's first file; write both with the same type, or put them into different datasets",
                    field.name(),
                    field.data_type(),
                    first.data_type()
                );
                return Err(Error::Read { file: file.uri.clone(), problem });
            }
        }
        Ok(())
    }
}

/// The fields of the needed columns, in their order.
fn find_fields(file: &InputFile, schema: &Schema, needed: &[(String, String)]) -> Result<Vec<Field>> {
    let fields = needed.iter().map(|(column, config_key)| {
        let field = find_field(schema, column).ok_or_else(|| Error::MissingColumn {
            file: file.uri.clone(),
            column: column.clone(),
            config_key: config_key.clone(),
            available: schema.fields().iter().map(|field| field.name().clone()).collect(),
        })?;
        ColumnRequest { file: &file.uri, column, config_key }.check_type(field.data_type())?;
        // Files of one source may disagree on whether a column is required.
        Ok(field.with_nullable(true))
    });
    fields.collect()
}
