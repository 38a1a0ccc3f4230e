//! From the caption columns of a batch to one caption per row: choose among the candidates, clean, put into a
//! template. The caption filters see the result, and it is what the tokenizer gets.

use std::collections::HashMap;

use arrow::array::{Array, AsArray, RecordBatch, StringArray, UInt64Array};
use arrow::datatypes::{DataType, Schema};
use rayon::prelude::*;

use crate::caption::choice::{self, Candidate};
use crate::caption::clean;
use crate::caption::config::{CaptionConfig, Choice, Clean};
use crate::caption::template::Template;
use crate::columns::typed::{Place, Texts, is_text_list};
use crate::error::{Result, RowError};
use crate::one_or_many::OneOrMany;
use crate::random::{Purpose, below, draw, fraction};
use crate::source::config::Columns;

/// Raised whenever the same configuration would give other captions than before.
const VERSION: u32 = 2;

/// `[caption]`, ready to be applied.
pub struct CaptionStage {
    columns: Vec<String>,
    choice: Choice,
    /// One per column, or none.
    weights: Vec<f64>,
    clean: Clean,
    templates: Vec<Template>,
    seed: u64,
}

/// The captions of a batch.
pub struct Captions {
    rows: Vec<Result<Caption, RowError>>,
    /// The columns that the captions may come from, if that is not the same for all rows.
    columns: Option<Vec<String>>,
}

/// A row's caption.
struct Caption {
    text: String,
    /// The column it comes from, and the place in the list if that is a column of lists.
    source: (usize, Option<usize>),
}

impl CaptionStage {
    /// Checks the configuration. `seed` is the run's.
    ///
    /// # Errors
    /// [`crate::Error::Config`] naming the key.
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

    /// Whether the captions of such batches can come from more than one place, so that the output says from which.
    pub fn has_choice(&self, input: &Schema) -> bool {
        let is_list =
            |name: &String| input.field_with_name(name).is_ok_and(|field| is_text_list(field.data_type()));
        self.columns.len() > 1 || self.columns.iter().any(is_list)
    }

    /// The captions of a batch whose rows have these sample ids.
    ///
    /// # Errors
    /// If a column is missing or has a wrong type. What is wrong with one row is that row's [`RowError`].
    pub fn read(&self, batch: &RecordBatch, ids: &UInt64Array) -> Result<Captions> {
        let column = |name: &String| {
            let place = Place { file: "the batch", column: name, wanted_by: "source.columns.caption" };
            Texts::new(place.find(batch)?, place)
        };
        let columns = self.columns.iter().map(column).collect::<Result<Vec<_>>>()?;
        let mut fields = HashMap::new();
        for name in self.templates.iter().flat_map(Template::columns) {
            fields.insert(name, field(batch, name)?);
        }
        let rows = (0..batch.num_rows()).into_par_iter();
        let rows = rows.map(|row| {
            let Caption { text, source } = self.choose(&columns, row, ids.value(row))?;
            let field = |name: &str| {
                fields.get(name).filter(|column| column.is_valid(row)).map_or("", |column| column.value(row))
            };
            Ok(Caption { text: self.template(ids.value(row)).fill(&text, field), source })
        });
        let columns = self.has_choice(batch.schema_ref()).then(|| self.columns.clone());
        Ok(Captions { rows: rows.collect(), columns })
    }

    /// The chosen candidate, cleaned. If that shows it to be blank, it did not count, and the choice is among the others.
    fn choose(&self, columns: &[Texts], row: usize, id: u64) -> Result<Caption, RowError> {
        let mut candidates = Vec::new();
        // What there is to say if no column has a caption.
        let mut nothing = Err(RowError::Missing("caption"));
        for (column, texts) in columns.iter().enumerate() {
            for (item, text) in texts.row(row) {
                match text {
                    Ok(text) if text.trim().is_empty() => {
                        nothing = Ok(Caption { text: self.clean(text), source: (column, item) });
                    }
                    Ok(text) => candidates.push(Candidate { text, column, item }),
                    Err(error) if nothing.is_err() => nothing = Err(error),
                    Err(_) => {}
                }
            }
        }
        let number = || fraction(draw(self.seed, id, Purpose::Caption, 0));
        while let Some(&chosen) = choice::choose(self.choice, &candidates, &self.weights, number) {
            let caption = Caption { text: self.clean(chosen.text), source: (chosen.column, chosen.item) };
            if !caption.text.is_empty() {
                return Ok(caption);
            }
            candidates.retain(|candidate| *candidate != chosen);
            nothing = Ok(caption);
        }
        nothing
    }

    fn clean(&self, text: &str) -> String {
        match self.clean {
            Clean::None => text.to_owned(),
            Clean::OpenClip => clean::open_clip(text),
        }
    }

    fn template(&self, id: u64) -> &Template {
        match self.templates.as_slice() {
            [only] => only,
            several => {
                let count = u32::try_from(several.len()).unwrap_or(u32::MAX);
                &several[below(draw(self.seed, id, Purpose::Template, 0), count) as usize]
            }
        }
    }
}

/// What decides the captions' text, for a digest.
pub fn identity(config: &CaptionConfig, columns: &OneOrMany, seed: u64) -> serde_json::Value {
    let seed = config.draws().then_some(seed);
    serde_json::json!({ "version": VERSION, "columns": columns.as_slice(), "config": config, "seed": seed })
}

/// A column that a template names, as text.
fn field(batch: &RecordBatch, name: &str) -> Result<StringArray> {
    let place = Place { file: "the batch", column: name, wanted_by: "caption.template" };
    let column = place.find(batch)?;
    place.check(column.data_type())?;
    Ok(arrow::compute::cast(column, &DataType::Utf8)?.as_string().clone())
}

impl Captions {
    /// The caption of one row, or why it has none.
    pub fn get(&self, row: usize) -> Result<&str, RowError> {
        self.rows[row].as_ref().map(|caption| caption.text.as_str()).map_err(RowError::clone)
    }

    /// All captions as a column, null where there is none.
    pub fn to_array(&self) -> StringArray {
        self.rows.iter().map(|row| row.as_ref().ok().map(|caption| &caption.text)).collect()
    }

    /// Where each caption comes from, `column` or `column[i]`, if that is not the same for all rows.
    pub fn sources(&self) -> Option<StringArray> {
        let columns = self.columns.as_ref()?;
        let name = |caption: &Caption| match caption.source {
            (column, None) => columns[column].clone(),
            (column, Some(item)) => format!("{}[{item}]", columns[column]),
        };
        Some(self.rows.iter().map(|row| row.as_ref().ok().map(name)).collect())
    }
}
