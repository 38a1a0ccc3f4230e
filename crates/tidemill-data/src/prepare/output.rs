//! The output batch: pixels are written straight into its buffers by the threads that decode, the other columns are
//! built once all verdicts are known.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, FixedSizeBinaryArray, FixedSizeListArray, Int32Array, RecordBatch, StringArray, UInt32Array,
};
use arrow::buffer::{MutableBuffer, NullBuffer};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use super::hashes::Wanted;
use super::input::Input;
use super::{Row, Verdict};
use crate::config::{Crop, PrepareConfig};
use crate::counts::{KEPT, QUARANTINED, REJECTED};
use crate::error::{Error, Result};
use crate::resize::{Rect, crop};
use crate::tokenizer::{CONTEXT, ClipTokenizer};

/// The pixels of every row at every resolution; rows that are not kept stay zero.
pub struct Output {
    crop: Crop,
    hashes: Wanted,
    rows: usize,
    pixels: Vec<(u32, MutableBuffer)>,
}

impl Output {
    pub fn new(config: &PrepareConfig, hashes: Wanted, rows: usize) -> Self {
        let pixels = |&side: &u32| (side, MutableBuffer::from_len_zeroed(rows * row_bytes(side)));
        let pixels = config.resolutions.iter().map(pixels).collect();
        Self { crop: config.crop, hashes, rows, pixels }
    }

    /// For each row the places of its pixels, in the order of the resolutions.
    pub fn slots(&mut self) -> Vec<Vec<&mut [u8]>> {
        let mut slots: Vec<Vec<&mut [u8]>> = (0..self.rows).map(|_| Vec::new()).collect();
        for (side, buffer) in &mut self.pixels {
            for (slot, planes) in slots.iter_mut().zip(buffer.chunks_exact_mut(row_bytes(*side))) {
                slot.push(planes);
            }
        }
        slots
    }

    /// Adds the verdicts and the tokens of the kept rows.
    pub fn finish(
        self,
        rows: Vec<Row>,
        input: Input,
        tokenizer: &ClipTokenizer,
        schema: SchemaRef,
    ) -> Result<RecordBatch> {
        let size = |pick: fn((u32, u32)) -> u32| -> ArrayRef {
            Arc::new(rows.iter().map(|row| row.size.map(pick)).collect::<UInt32Array>())
        };
        let mut columns: Vec<ArrayRef> = vec![
            Arc::new(input.ids.clone()),
            Arc::new(input.keys.clone()),
            Arc::new(input.captions.to_array()),
            size(|(width, _)| width),
            size(|(_, height)| height),
        ];
        columns.extend(input.carried.iter().cloned());
        columns.push(Arc::new(StringArray::from_iter_values(rows.iter().map(status))));
        columns.push(Arc::new(rows.iter().map(reason).collect::<StringArray>()));
        columns.push(Arc::new(input.rows.clone()));
        columns.extend(self.hashes.columns(rows.iter().map(|row| row.hashes))?);
        columns.push(tokens(&rows, &input, tokenizer)?);
        for (side, buffer) in self.pixels {
            let usable: Vec<Option<(u32, u32)>> = rows.iter().map(|row| usable(row, side)).collect();
            let nulls = NullBuffer::from_iter(usable.iter().map(Option::is_some));
            let pixels = FixedSizeBinaryArray::try_new(width_of(side)?, buffer.into(), Some(nulls.clone()))?;
            columns.push(Arc::new(pixels));
            columns.push(crops(self.crop, &usable, nulls)?);
        }
        Ok(RecordBatch::try_new(schema, columns)?)
    }
}

/// The output's schema for an input's.
pub fn output_schema(
    input: &Schema,
    carry: &[String],
    hashes: Wanted,
    resolutions: &[u32],
) -> Result<SchemaRef> {
    let mut fields = vec![
        Field::new("sample_id", DataType::UInt64, false),
        Field::new("key", DataType::Utf8, false),
        Field::new("caption", DataType::Utf8, true),
        Field::new("width", DataType::UInt32, true),
        Field::new("height", DataType::UInt32, true),
    ];
    for name in carry {
        let field = input.field_with_name(name).map_err(|_| Error::MissingColumn {
            file: "the batch".into(),
            column: name.clone(),
            wanted_by: "source.carry".into(),
            available: input.fields().iter().map(|field| field.name().clone()).collect(),
        })?;
        fields.push(field.clone().with_nullable(true));
    }
    fields.extend([
        Field::new("status", DataType::Utf8, false),
        Field::new("reason", DataType::Utf8, true),
        Field::new("source_row", DataType::UInt64, false),
    ]);
    fields.extend(hashes.fields());
    fields.push(Field::new("token_ids", list_of(DataType::Int32, CONTEXT_I32), true));
    for &side in resolutions {
        fields.push(Field::new(format!("pixels_{side}"), DataType::FixedSizeBinary(width_of(side)?), true));
        fields.push(Field::new(format!("crop_{side}"), list_of(DataType::UInt32, 4), true));
    }
    Ok(Arc::new(Schema::new(fields)))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "77 fits")]
const CONTEXT_I32: i32 = CONTEXT as i32;

fn list_of(item: DataType, length: i32) -> DataType {
    DataType::FixedSizeList(Arc::new(Field::new_list_field(item, true)), length)
}

fn row_bytes(side: u32) -> usize {
    3 * side as usize * side as usize
}

fn width_of(side: u32) -> Result<i32> {
    i32::try_from(row_bytes(side)).map_err(|_| Error::Config {
        key: "prepare.resolutions".into(),
        problem: format!("{side} is too large for one row"),
    })
}

/// The image's size if the row is kept and reaches the resolution.
fn usable(row: &Row, side: u32) -> Option<(u32, u32)> {
    let (width, height) = row.size?;
    (matches!(row.verdict, Verdict::Kept) && width.min(height) >= side).then_some((width, height))
}

fn status(row: &Row) -> &'static str {
    match row.verdict {
        Verdict::Kept => KEPT,
        Verdict::Rejected(_) => REJECTED,
        Verdict::Quarantined(_) => QUARANTINED,
    }
}

fn reason(row: &Row) -> Option<String> {
    match &row.verdict {
        Verdict::Kept => None,
        Verdict::Rejected(filter) => Some(filter.clone()),
        Verdict::Quarantined(error) => Some(error.to_string()),
    }
}

fn tokens(rows: &[Row], input: &Input, tokenizer: &ClipTokenizer) -> Result<ArrayRef> {
    let kept: Vec<bool> = rows.iter().map(|row| matches!(row.verdict, Verdict::Kept)).collect();
    let captions: Vec<&str> =
        (0..rows.len()).filter(|&row| kept[row]).filter_map(|row| input.captions.get(row).ok()).collect();
    let mut encoded = tokenizer.encode_batch(&captions)?.into_iter();
    let ids = kept.iter().flat_map(|&kept| kept.then(|| encoded.next()).flatten().unwrap_or([0; CONTEXT]));
    let ids = Int32Array::from_iter_values(ids);
    let field = Arc::new(Field::new_list_field(DataType::Int32, true));
    Ok(Arc::new(FixedSizeListArray::try_new(field, CONTEXT_I32, Arc::new(ids), Some(kept.into()))?))
}

fn crops(kind: Crop, usable: &[Option<(u32, u32)>], nulls: NullBuffer) -> Result<ArrayRef> {
    let rect = |size: &Option<(u32, u32)>| match size {
        Some((width, height)) => {
            let Rect { x, y, width, height } = crop(kind, *width, *height);
            [x, y, width, height]
        }
        None => [0; 4],
    };
    let corners = UInt32Array::from_iter_values(usable.iter().flat_map(rect));
    let field = Arc::new(Field::new_list_field(DataType::UInt32, true));
    Ok(Arc::new(FixedSizeListArray::try_new(field, 4, Arc::new(corners), Some(nulls))?))
}
