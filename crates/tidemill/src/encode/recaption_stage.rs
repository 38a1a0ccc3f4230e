//! The part of `Encode` before the text encoder, if the run file has `caption.stage`: a captioner of the
//! user's makes new captions of kept rows.

use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{
    Array, AsArray, FixedSizeListArray, Int32Array, LargeBinaryArray, RecordBatch, StringArray,
};
use arrow::datatypes::{DataType, Field, Int32Type};
use tidemill_data::ClipTokenizer;
use tidemill_data::prepare::CAPTION_PIXELS;
use tidemill_data::tokenizer::CONTEXT;

use crate::encode::captioner_process::CaptionerProcess;
use crate::encode::prepared_columns::{find_column, text_column, wrong_type};
use crate::error::{Error, Result};

/// The column that says where a caption comes from, and what it says of new ones.
const SOURCE: (&str, &str) = ("caption_source", "caption.stage");

/// Replaces captions.
#[derive(Debug)]
pub(crate) struct RecaptionStage {
    captioner: String,
    side: u32,
    /// Images in one call of the captioner.
    batch_size: usize,
    tokenizer: ClipTokenizer,
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
    pub fn new(captioner: String, side: u32, batch_size: usize, tokenizer: ClipTokenizer) -> Self {
        Self { captioner, side, batch_size, tokenizer, process: Mutex::new(Slot::Empty) }
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
        let mut batch =
            if new.iter().any(Option::is_some) { self.replace(batch, &new)? } else { batch.clone() };
        batch.remove_column(batch.schema().index_of(CAPTION_PIXELS)?);
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

    /// The batch with new captions and their token ids.
    fn replace(&self, batch: &RecordBatch, new: &[Option<String>]) -> Result<RecordBatch> {
        let (schema, mut columns) = (batch.schema(), batch.columns().to_vec());
        let replaced = |name: &str, value: &dyn Fn(&String) -> String| -> Result<StringArray> {
            let old = text_column(batch, name)?;
            let new = new.iter().map(|caption| caption.as_ref().map(value));
            Ok(new.zip(old).map(|(new, old)| new.or(old.map(str::to_owned))).collect())
        };
        columns[schema.index_of("caption")?] = Arc::new(replaced("caption", &String::clone)?);
        let (source, made) = SOURCE;
        if let Ok(index) = schema.index_of(source) {
            columns[index] = Arc::new(replaced(source, &|_| made.to_owned())?);
        }
        let ids = schema.index_of("token_ids")?;
        columns[ids] = Arc::new(self.replace_token_ids(columns[ids].as_fixed_size_list_opt(), new)?);
        Ok(RecordBatch::try_new(schema, columns)?)
    }

    fn replace_token_ids(
        &self,
        old: Option<&FixedSizeListArray>,
        new: &[Option<String>],
    ) -> Result<FixedSizeListArray> {
        let values = old.and_then(|old| old.values().as_primitive_opt::<Int32Type>());
        let (Some(old), Some(values)) = (old, values) else {
            return Err(Error::Encode("column `token_ids` is not what Prepare makes".into()));
        };
        let mut values = values.values().to_vec();
        let rows: Vec<usize> = (0..new.len()).filter(|row| new[*row].is_some()).collect();
        let captions: Vec<&str> = new.iter().flatten().map(String::as_str).collect();
        for (row, ids) in rows.iter().zip(self.tokenizer.encode_batch(&captions)) {
            values[row * CONTEXT..(row + 1) * CONTEXT].copy_from_slice(&ids);
        }
        let field = Arc::new(Field::new_list_field(DataType::Int32, true));
        let values = Arc::new(Int32Array::from(values));
        Ok(FixedSizeListArray::try_new(field, CONTEXT as i32, values, old.nulls().cloned())?)
    }
}
