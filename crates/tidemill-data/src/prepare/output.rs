//! The output batch: pixels are written straight into its buffers by the threads that decode, the other columns are
//! built once all verdicts are known.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, FixedSizeListArray, Int32Array, LargeBinaryArray, RecordBatch, StringArray,
    UInt32Array,
};
use arrow::buffer::{MutableBuffer, NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use crate::columns::status::{KEPT, QUARANTINED, REJECTED};
use crate::error::{Error, Result};
use crate::prepare::config::PrepareConfig;
use crate::prepare::crop::Cut;
use crate::prepare::image_hashes::Wanted;
use crate::prepare::input::Input;
use crate::prepare::row::{Row, Verdict};
use crate::resize::Rect;
use crate::tokenizer::{CONTEXT, ClipTokenizer};

/// The pixels of every row at every resolution.
pub struct Output {
    flip: bool,
    hashes: Wanted,
    pixels: Vec<Pixels>,
}

/// The pixels of all rows at one resolution, one after the other.
struct Pixels {
    lengths: Vec<usize>,
    bytes: MutableBuffer,
}

impl Output {
    /// Makes room for what the rows' plans ask for.
    pub fn new(config: &PrepareConfig, hashes: Wanted, rows: &[Row]) -> Self {
        let pixels = |resolution| {
            let lengths: Vec<usize> =
                rows.iter().map(|row| new_cut(row, resolution).map_or(0, Cut::bytes)).collect();
            Pixels { bytes: MutableBuffer::from_len_zeroed(lengths.iter().sum()), lengths }
        };
        Self { flip: config.flip, hashes, pixels: (0..config.resolutions.len()).map(pixels).collect() }
    }

    /// For each row the places of its pixels, in the order of the resolutions; without pixels they are empty.
    pub fn slots(&mut self) -> Vec<Vec<&mut [u8]>> {
        let rows = self.pixels.first().map_or(0, |pixels| pixels.lengths.len());
        let mut slots: Vec<Vec<&mut [u8]>> = (0..rows).map(|_| Vec::new()).collect();
        for Pixels { lengths, bytes } in &mut self.pixels {
            let mut rest = bytes.as_slice_mut();
            for (slot, &length) in slots.iter_mut().zip(lengths.iter()) {
                let (planes, after) = rest.split_at_mut(length);
                slot.push(planes);
                rest = after;
            }
        }
        slots
    }

    /// Adds the verdicts and the tokens of the kept rows.
    pub fn finish(
        self,
        rows: &[Row],
        input: &Input,
        tokenizer: &ClipTokenizer,
        schema: SchemaRef,
    ) -> Result<RecordBatch> {
        let info = || rows.iter().map(|row| row.info);
        let mut columns: Vec<ArrayRef> = vec![
            Arc::new(input.ids.clone()),
            Arc::new(input.keys.clone()),
            Arc::new(input.captions.to_array()),
        ];
        columns.extend(
            input.captions.source_columns().map(|source_columns| Arc::new(source_columns) as ArrayRef),
        );
        columns.extend([
            Arc::new(info().map(|info| Some(info?.width)).collect::<UInt32Array>()) as ArrayRef,
            Arc::new(info().map(|info| Some(info?.height)).collect::<UInt32Array>()),
            Arc::new(info().map(|info| Some(info?.format.name())).collect::<StringArray>()),
            Arc::new(info().map(|info| Some(info?.icc)).collect::<BooleanArray>()),
        ]);
        columns.extend(input.carried.iter().cloned());
        columns.push(Arc::new(StringArray::from_iter_values(rows.iter().map(status))));
        columns.push(Arc::new(rows.iter().map(reason).collect::<StringArray>()));
        columns.push(Arc::new(input.rows.clone()));
        columns.extend(self.hashes.columns(rows.iter().map(|row| row.hashes))?);
        columns.push(tokens(rows, input, tokenizer)?);
        if self.flip {
            let flipped = rows.iter().map(|row| row.plan().map(|plan| plan.flipped));
            columns.push(Arc::new(flipped.collect::<BooleanArray>()));
        }
        for (resolution, Pixels { lengths, bytes }) in self.pixels.into_iter().enumerate() {
            let cuts: Vec<Option<&Cut>> = rows.iter().map(|row| cut(row, resolution)).collect();
            // The place of a row whose pixels turned out to be damaged stays, behind a null.
            let new = rows.iter().map(|row| new_cut(row, resolution).is_some());
            let nulls = NullBuffer::from_iter(new);
            let offsets = OffsetBuffer::from_lengths(lengths);
            columns.push(Arc::new(LargeBinaryArray::try_new(offsets, bytes.into(), Some(nulls))?));
            columns.push(lists(&cuts, |cut| [cut.size.0, cut.size.1])?);
            columns
                .push(lists(&cuts, |&Cut { crop: Rect { x, y, width, height }, .. }| [x, y, width, height])?);
        }
        Ok(RecordBatch::try_new(schema, columns)?)
    }
}

/// The output's schema for an input's; `caption_source` tells whether there is such a column.
pub fn output_schema(
    input: &Schema,
    carry: &[String],
    config: &PrepareConfig,
    hashes: Wanted,
    caption_source: bool,
) -> Result<SchemaRef> {
    let mut fields = vec![
        Field::new("sample_id", DataType::UInt64, false),
        Field::new("key", DataType::Utf8, false),
        Field::new("caption", DataType::Utf8, true),
    ];
    fields.extend(caption_source.then(|| Field::new("caption_source", DataType::Utf8, true)));
    fields.extend(["width", "height"].map(|name| Field::new(name, DataType::UInt32, true)));
    fields.extend([Field::new("format", DataType::Utf8, true), Field::new("icc", DataType::Boolean, true)]);
    for name in carry {
        let field = input.field_with_name(name).map_err(|_| Error::MissingColumn {
            file: "the batch".into(),
            column: name.clone(),
            config_key: "source.carry".into(),
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
    if config.flip {
        fields.push(Field::new("flipped", DataType::Boolean, true));
    }
    for &resolution in &config.resolutions {
        fields.push(pixels_field(resolution, &config.sizes(resolution)));
        fields.push(Field::new(format!("size_{resolution}"), list_of(DataType::UInt32, 2), true));
        fields.push(Field::new(format!("crop_{resolution}"), list_of(DataType::UInt32, 4), true));
    }
    Ok(Arc::new(Schema::new(fields)))
}

/// `pixels_R`, with its shape where all its values have the same.
fn pixels_field(resolution: u32, sizes: &[(u32, u32)]) -> Field {
    let mut metadata = HashMap::from([("dtype".to_owned(), "u8".to_owned())]);
    if let [(width, height)] = sizes {
        metadata.insert("shape".to_owned(), format!("[3,{height},{width}]"));
    }
    Field::new(format!("pixels_{resolution}"), DataType::LargeBinary, true).with_metadata(metadata)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "77 fits")]
const CONTEXT_I32: i32 = CONTEXT as i32;

fn list_of(item: DataType, length: i32) -> DataType {
    DataType::FixedSizeList(Arc::new(Field::new_list_field(item, true)), length)
}

/// The row's cut at a resolution if its pixels are needed.
fn new_cut<'a>(row: &'a Row, resolution: usize) -> Option<&'a Cut> {
    row.plan()?.new_cut(resolution)
}

/// The row's cut at a resolution, given by its index, if it is kept and large enough.
fn cut<'a>(row: &'a Row, resolution: usize) -> Option<&'a Cut> {
    row.plan()?.cuts.get(resolution)?.as_ref()
}

fn status(row: &Row) -> &'static str {
    match row.verdict {
        Verdict::Kept(_) => KEPT,
        Verdict::Rejected(_) => REJECTED,
        Verdict::Quarantined(_) => QUARANTINED,
    }
}

fn reason(row: &Row) -> Option<String> {
    match &row.verdict {
        Verdict::Kept(_) => None,
        Verdict::Rejected(filter) => Some(filter.clone()),
        Verdict::Quarantined(error) => Some(error.to_string()),
    }
}

fn tokens(rows: &[Row], input: &Input, tokenizer: &ClipTokenizer) -> Result<ArrayRef> {
    let wanted: Vec<bool> = rows.iter().map(|row| row.plan().is_some_and(|plan| !plan.embedded)).collect();
    let captions: Vec<&str> =
        (0..rows.len()).filter(|&row| wanted[row]).filter_map(|row| input.captions.get(row).ok()).collect();
    let mut encoded = tokenizer.encode_batch(&captions).into_iter();
    let ids =
        wanted.iter().flat_map(|&wanted| wanted.then(|| encoded.next()).flatten().unwrap_or([0; CONTEXT]));
    let ids = Int32Array::from_iter_values(ids);
    let field = Arc::new(Field::new_list_field(DataType::Int32, true));
    Ok(Arc::new(FixedSizeListArray::try_new(field, CONTEXT_I32, Arc::new(ids), Some(wanted.into()))?))
}

/// A column of lists of N numbers, null where there is no cut.
fn lists<const N: usize>(cuts: &[Option<&Cut>], numbers: impl Fn(&Cut) -> [u32; N]) -> Result<ArrayRef> {
    let nulls = NullBuffer::from_iter(cuts.iter().map(Option::is_some));
    let values = cuts.iter().flat_map(|cut| cut.map_or([0; N], &numbers));
    let values = Arc::new(UInt32Array::from_iter_values(values));
    let field = Arc::new(Field::new_list_field(DataType::UInt32, true));
    Ok(Arc::new(FixedSizeListArray::try_new(field, N as i32, values, Some(nulls))?))
}
