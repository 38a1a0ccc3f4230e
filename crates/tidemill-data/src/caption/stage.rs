//! The caption stage: from the caption columns of a batch to one caption per row.

use std::collections::HashMap;

use arrow::array::{Array, AsArray, RecordBatch, StringArray, UInt64Array};
use arrow::datatypes::{DataType, Schema};
use rayon::prelude::*;

use crate::caption::choice::{self, Candidate};
use crate::caption::clean;
use crate::caption::config::{CaptionConfig, Choice, Clean};
use crate::caption::template::Template;
use crate::columns::typed::{ColumnRequest, TextColumn, is_text_list};
use crate::error::{Result, RowError};
use crate::one_or_many::OneOrMany;
use crate::random::{Purpose, draw, index_below, unit_interval};
use crate::source::config::Columns;

/// The version of the captions. It must be raised whenever the same configuration would give other
/// captions than before.
const VERSION: u32 = 2;

/// The section `[caption]` of the run file, checked and parsed.
pub struct CaptionStage {
    columns: Vec<String>,
    choice: Choice,
    /// One weight per column, or empty if all columns count the same.
    weights: Vec<f64>,
    clean: Clean,
    templates: Vec<Template>,
    seed: u64,
}

/// The captions of a batch.
pub struct Captions {
    rows: Vec<Result<Caption, RowError>>,
    /// Names of the caption columns, if the output has a column `caption_source`.
    columns: Option<Vec<String>>,
}

/// The caption of a row.
struct Caption {
    text: String,
    /// Index of the column it comes from, and its index in the list if that is a column of lists.
    source: (usize, Option<usize>),
}

impl CaptionStage {
    /// Checks the configuration. `seed` is the run's seed.
    ///
    /// # Errors
    /// [`crate::Error::Config`] that names the key.
    pub fn new(config: &CaptionConfig, columns: &Columns, seed: u64) -> Result<Self> {
        config.validate(columns)?;
        Ok(Self {
            columns: columns.caption.as_slice().to_vec(),
            choice: config.choice,
            weights: config.weights.clone(),
            clean: config.clean,
            templates: config.templates()?,
            seed,
        })
    }

    /// True if captions of batches with this schema can come from more than one column or list
    /// item. The output then has a column `caption_source`.
    pub fn has_several_sources(&self, input: &Schema) -> bool {
        let is_list =
            |name: &String| input.field_with_name(name).is_ok_and(|field| is_text_list(field.data_type()));
        self.columns.len() > 1 || self.columns.iter().any(is_list)
    }

    /// Reads the captions of a batch whose rows have these sample ids.
    ///
    /// # Errors
    /// If a column is missing or has a wrong type. An error in one row becomes that row's
    /// [`RowError`].
    pub fn read(&self, batch: &RecordBatch, ids: &UInt64Array) -> Result<Captions> {
        let column = |name: &String| {
            let request =
                ColumnRequest { file: "the batch", column: name, config_key: "source.columns.caption" };
            TextColumn::new(request.find_in(batch)?, request)
        };
        let columns = self.columns.iter().map(column).collect::<Result<Vec<_>>>()?;
        let mut fields = HashMap::new();
        for name in self.templates.iter().flat_map(Template::column_names) {
            fields.insert(name, template_column(batch, name)?);
        }
        let rows = (0..batch.num_rows()).into_par_iter();
        let rows = rows.map(|row| {
            let Caption { text, source } = self.choose_caption(&columns, row, ids.value(row))?;
            let field = |name: &str| {
                fields.get(name).filter(|column| column.is_valid(row)).map_or("", |column| column.value(row))
            };
            Ok(Caption { text: self.choose_template(ids.value(row)).fill(&text, field), source })
        });
        let columns = self.has_several_sources(batch.schema_ref()).then(|| self.columns.clone());
        Ok(Captions { rows: rows.collect(), columns })
    }

    /// Chooses a candidate and cleans it. If nothing remains after cleaning, another candidate is
    /// chosen.
    fn choose_caption(&self, columns: &[TextColumn], row: usize, id: u64) -> Result<Caption, RowError> {
        let mut candidates = Vec::new();
        // The result if no column has a caption that is not blank.
        let mut fallback = Err(RowError::Missing("caption"));
        for (column, texts) in columns.iter().enumerate() {
            for (item, text) in texts.row(row) {
                match text {
                    Ok(text) if text.trim().is_empty() => {
                        fallback = Ok(Caption { text: self.clean_text(text), source: (column, item) });
                    }
                    Ok(text) => candidates.push(Candidate { text, column, item }),
                    Err(error) if fallback.is_err() => fallback = Err(error),
                    Err(_) => {}
                }
            }
        }
        let number = || unit_interval(draw(self.seed, id, Purpose::Caption, 0));
        while let Some(&chosen) = choice::choose_caption(self.choice, &candidates, &self.weights, number) {
            let caption =
                Caption { text: self.clean_text(chosen.text), source: (chosen.column, chosen.item) };
            if !caption.text.is_empty() {
                return Ok(caption);
            }
            candidates.retain(|candidate| *candidate != chosen);
            fallback = Ok(caption);
        }
        fallback
    }

    fn clean_text(&self, text: &str) -> String {
        match self.clean {
            Clean::None => text.to_owned(),
            Clean::OpenClip => clean::open_clip(text),
        }
    }

    fn choose_template(&self, id: u64) -> &Template {
        match self.templates.as_slice() {
            [only] => only,
            several => {
                let count = u32::try_from(several.len()).unwrap_or(u32::MAX);
                &several[index_below(draw(self.seed, id, Purpose::Template, 0), count) as usize]
            }
        }
    }
}

/// Everything that decides the captions' text, as input of a digest.
pub fn digest_input(config: &CaptionConfig, columns: &OneOrMany, seed: u64) -> serde_json::Value {
    let seed = config.uses_seed().then_some(seed);
    serde_json::json!({ "version": VERSION, "columns": columns.as_slice(), "config": config, "seed": seed })
}

/// Reads a column that a template names, as text.
fn template_column(batch: &RecordBatch, name: &str) -> Result<StringArray> {
    let request = ColumnRequest { file: "the batch", column: name, config_key: "caption.template" };
    let column = request.find_in(batch)?;
    request.check_type(column.data_type())?;
    Ok(arrow::compute::cast(column, &DataType::Utf8)?.as_string().clone())
}

impl Captions {
    /// The caption of a row.
    ///
    /// # Errors
    /// Why the row has none.
    pub fn get(&self, row: usize) -> Result<&str, RowError> {
        self.rows[row].as_ref().map(|caption| caption.text.as_str()).map_err(RowError::clone)
    }

    /// All captions as a column; null for rows without one.
    pub fn to_array(&self) -> StringArray {
        self.rows.iter().map(|row| row.as_ref().ok().map(|caption| &caption.text)).collect()
    }

    /// The source of each caption, `column` or `column[i]`; `None` if all rows have the same
    /// source.
    pub fn source_columns(&self) -> Option<StringArray> {
        let columns = self.columns.as_ref()?;
        let name = |caption: &Caption| match caption.source {
            (column, None) => columns[column].clone(),
            (column, Some(item)) => format!("{}[{item}]", columns[column]),
        };
        Some(self.rows.iter().map(|row| row.as_ref().ok().map(name)).collect())
    }
}
