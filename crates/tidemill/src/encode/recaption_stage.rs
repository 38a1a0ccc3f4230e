//! The part of `Encode` before the text encoder, if the run file has `caption.stage`: a captioner of the
//! user's makes new captions of kept rows.

use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{
    Array, AsArray, FixedSizeListArray, Int32Array, LargeBinaryArray, RecordBatch, StringArray,
};
use arrow::datatypes::{DataType, Field, Int32Type};
use tidemill_data::CaptionTokenizer;
use tidemill_data::columns::names::token_ids_column_name;
use tidemill_data::prepare::{CAPTION_PIXELS, KNOWN_CAPTION};

use crate::encode::captioner_process::CaptionerProcess;
use crate::encode::prepared_columns::{find_column, text_column, wrong_type};
use crate::encode::text_stage::SharedTokenizer;
use crate::error::{Error, Result};

/// The column that says where a caption comes from.
const CAPTION_SOURCE: &str = "caption_source";

/// What that column says of captions that a captioner made.
const MADE_BY_CAPTIONER: &str = "caption.stage";

/// Replaces captions.
#[derive(Debug)]
pub(crate) struct RecaptionStage {
    captioner: String,
    side: u32,
    /// Images in one call of the captioner.
    batch_size: usize,
    /// One for each text encoder.
    tokenizers: Vec<SharedTokenizer>,
    process: Mutex<Slot>,
}

/// The captioner's process.
#[derive(Debug)]
enum Slot {
    /// It starts when it is needed.
    Empty,
    Running(CaptionerProcess),
    /// It cannot be started. Another try would only take time.
    Unusable(String),
}

impl RecaptionStage {
    /// A stage whose captioner, `module:callable`, starts with the first image.
    pub fn new(captioner: String, side: u32, batch_size: usize, tokenizers: Vec<SharedTokenizer>) -> Self {
        Self { captioner, side, batch_size, tokenizers, process: Mutex::new(Slot::Empty) }
    }

    /// Replaces the captions and token ids of the rows that have pixels for the captioner, and removes
    /// the pixels.
    ///
    /// # Errors
    /// A column of another type than `Prepare` makes, or the captioner's error.
    pub fn run(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let pixels = find_column(batch, CAPTION_PIXELS)?;
        let pixels =
            pixels.as_binary_opt().ok_or_else(|| wrong_type(CAPTION_PIXELS, pixels, "LargeBinary"))?;
        let new = self.describe(batch, pixels)?;
        let mut with_ids = batch.clone();
        for (encoder, tokenizer) in self.tokenizers.iter().enumerate() {
            with_ids = replace_token_ids(&with_ids, &token_ids_column_name(encoder), &**tokenizer, &new)?;
        }
        let mut batch = replace_captions(&with_ids, &new)?;
        for name in [CAPTION_PIXELS, KNOWN_CAPTION] {
            batch.remove_column(batch.schema().index_of(name)?);
        }
        Ok(batch)
    }

    /// The new caption of each row that gets one.
    fn describe(&self, batch: &RecordBatch, pixels: &LargeBinaryArray) -> Result<Vec<Option<String>>> {
        let (captions, keys) = (text_column(batch, "caption")?, text_column(batch, "key")?);
        let rows: Vec<usize> = (0..batch.num_rows()).filter(|row| pixels.is_valid(*row)).collect();
        let mut new = vec![None; batch.num_rows()];
        for rows in rows.chunks(self.batch_size) {
            let pixels = rows.iter().map(|row| pixels.value(*row)).collect::<Vec<_>>().concat();
            let old: Vec<&str> = rows.iter().map(|row| captions.value(*row)).collect();
            let keys: Vec<&str> = rows.iter().map(|row| keys.value(*row)).collect();
            let described = self.call(|process| process.describe(self.side, &pixels, &old, &keys))?;
            for (row, caption) in rows.iter().zip(described) {
                new[*row] = caption.filter(|caption| !caption.trim().is_empty());
            }
        }
        Ok(new)
    }

    /// Calls the captioner. A process that has ended is replaced at the next call.
    fn call<T>(&self, call: impl FnOnce(&mut CaptionerProcess) -> Result<T>) -> Result<T> {
        let mut slot = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        if let Slot::Empty = *slot {
            *slot = match CaptionerProcess::start(&self.captioner) {
                Ok(process) => Slot::Running(process),
                Err(error) => Slot::Unusable(error.to_string()),
            };
        }
        match &mut *slot {
            Slot::Running(process) => {
                let result = call(process);
                if result.is_err() && !process.is_running() {
                    *slot = Slot::Empty;
                }
                result
            }
            Slot::Unusable(error) => Err(Error::Script(error.clone())),
            Slot::Empty => Err(Error::Thread("captioner")),
        }
    }
}

/// The batch with new captions, and those that the captioner made in an earlier run.
fn replace_captions(batch: &RecordBatch, new: &[Option<String>]) -> Result<RecordBatch> {
    let (known, old) = (text_column(batch, KNOWN_CAPTION)?, text_column(batch, "caption")?);
    let captions = new.iter().zip(known).map(|(new, known)| new.as_deref().or(known));
    // A captioner may also have kept the source's caption.
    let captions: Vec<Option<&str>> =
        captions.zip(old).map(|(caption, old)| caption.filter(|caption| Some(*caption) != old)).collect();
    let (schema, mut columns) = (batch.schema(), batch.columns().to_vec());
    let replaced: StringArray = captions.iter().zip(old).map(|(caption, old)| caption.or(old)).collect();
    columns[schema.index_of("caption")?] = Arc::new(replaced);
    if let Ok(index) = schema.index_of(CAPTION_SOURCE) {
        let old = text_column(batch, CAPTION_SOURCE)?;
        let made = |caption: &Option<&str>| caption.map(|_| MADE_BY_CAPTIONER);
        let replaced = captions.iter().zip(old).map(|(caption, old)| made(caption).or(old));
        columns[index] = Arc::new(replaced.collect::<StringArray>());
    }
    Ok(RecordBatch::try_new(schema, columns)?)
}

/// The batch with the token ids of new captions in the column `name`.
fn replace_token_ids(
    batch: &RecordBatch,
    name: &str,
    tokenizer: &dyn CaptionTokenizer,
    new: &[Option<String>],
) -> Result<RecordBatch> {
    let rows: Vec<usize> = (0..new.len()).filter(|row| new[*row].is_some()).collect();
    let captions: Vec<&str> = new.iter().flatten().map(String::as_str).collect();
    let column = find_column(batch, name)?;
    let type_error = || wrong_type(name, column, "FixedSizeList<Int32>");
    let old = column.as_fixed_size_list_opt().ok_or_else(type_error)?;
    let values = old.values().as_primitive_opt::<Int32Type>().ok_or_else(type_error)?;
    let mut values = values.values().to_vec();
    let length = tokenizer.length();
    for (row, ids) in rows.iter().zip(tokenizer.encode_captions(&captions)?.chunks_exact(length)) {
        values[row * length..(row + 1) * length].copy_from_slice(ids);
    }
    let (field, values) = (Field::new_list_field(DataType::Int32, true), Int32Array::from(values));
    let ids =
        FixedSizeListArray::try_new(Arc::new(field), length as i32, Arc::new(values), old.nulls().cloned())?;
    let (schema, mut columns) = (batch.schema(), batch.columns().to_vec());
    columns[schema.index_of(name)?] = Arc::new(ids);
    Ok(RecordBatch::try_new(schema, columns)?)
}
