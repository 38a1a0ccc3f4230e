//! The output batch. The decoding threads write pixels directly into its buffers; the other columns
//! are built when the outcomes of all rows are known.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, FixedSizeListArray, Int32Array, LargeBinaryArray, RecordBatch, StringArray,
    UInt32Array,
};
use arrow::buffer::{MutableBuffer, NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use crate::columns::names::token_ids_column_name;
use crate::columns::status::{KEPT, QUARANTINED, REJECTED};
use crate::error::{Error, Result};
use crate::prepare::captioner_view::{CaptionerView, KNOWN as KNOWN_CAPTION, PIXELS as CAPTION_PIXELS};
use crate::prepare::config::PrepareConfig;
use crate::prepare::crop::ResizedCrop;
use crate::prepare::extra_columns::ExtraColumns;
use crate::prepare::input::Input;
use crate::prepare::row::{Outcome, Row};
use crate::resize::Rect;
use crate::tokenizer::{CONTEXT, CaptionTokenizer};

/// The pixels of all rows at all resolutions.
pub struct Output {
    flip: bool,
    extra: ExtraColumns,
    pixels: Vec<Pixels>,
    /// The pixels that scores are computed from, if there are scores.
    score_pixels: Option<Pixels>,
    /// The pixels that a captioner sees, if there is one.
    caption_pixels: Option<Pixels>,
}

/// The pixels of all rows at one resolution, one after the other.
struct Pixels {
    lengths: Vec<usize>,
    bytes: MutableBuffer,
}

impl Pixels {
    /// Allocates these bytes of each row.
    fn new(lengths: impl Iterator<Item = usize>) -> Self {
        let lengths: Vec<usize> = lengths.collect();
        Self { bytes: MutableBuffer::from_len_zeroed(lengths.iter().sum()), lengths }
    }

    /// The column. Only rows whose pixels are new have any.
    fn into_column(self, is_new: impl Iterator<Item = bool>) -> Result<ArrayRef> {
        // The slot of a row whose pixels turn out to be damaged stays, behind a null.
        let (offsets, nulls) = (OffsetBuffer::from_lengths(self.lengths), is_new.collect::<NullBuffer>());
        Ok(Arc::new(LargeBinaryArray::try_new(offsets, self.bytes.into(), Some(nulls))?))
    }
}

impl Output {
    /// Allocates the pixels that the rows' plans need.
    pub fn new(config: &PrepareConfig, extra: &ExtraColumns, rows: &[Row]) -> Self {
        let ExtraColumns { scores, captioner, .. } = extra;
        let pixels = |resolution| {
            let bytes = |row| needed_crop(row, resolution).map_or(0, ResizedCrop::pixel_bytes);
            Pixels::new(rows.iter().map(bytes))
        };
        let score_bytes = |row| if needs_scores(row) { scores.pixel_bytes() } else { 0 };
        let caption_pixels = |view: CaptionerView| {
            Pixels::new(rows.iter().map(|row| if needs_caption(row) { view.pixel_bytes() } else { 0 }))
        };
        Self {
            flip: config.flip,
            extra: extra.clone(),
            pixels: (0..config.resolutions.len()).map(pixels).collect(),
            score_pixels: scores.view().map(|_| Pixels::new(rows.iter().map(score_bytes))),
            caption_pixels: captioner.map(caption_pixels),
        }
    }

    /// The slots for the pixels of each row: in the order of the resolutions, then those of the scores and
    /// of the captioner, if there are such. A slot is empty where no pixels are needed.
    pub fn pixel_slots(&mut self) -> Vec<Vec<&mut [u8]>> {
        let rows = self.pixels.first().map_or(0, |pixels| pixels.lengths.len());
        let mut slots: Vec<Vec<&mut [u8]>> = (0..rows).map(|_| Vec::new()).collect();
        let views = [&mut self.score_pixels, &mut self.caption_pixels].into_iter().flatten();
        for Pixels { lengths, bytes } in self.pixels.iter_mut().chain(views) {
            let mut rest = bytes.as_slice_mut();
            for (slot, &length) in slots.iter_mut().zip(lengths.iter()) {
                let (planes, after) = rest.split_at_mut(length);
                slot.push(planes);
                rest = after;
            }
        }
        slots
    }

    /// Builds the batch: outcomes, hashes, token ids of the kept rows, and pixels.
    pub fn finish(
        self,
        rows: &[Row],
        input: &Input,
        tokenizer: &dyn CaptionTokenizer,
        schema: SchemaRef,
    ) -> Result<RecordBatch> {
        let info = || rows.iter().map(|row| row.info);
        let mut columns: Vec<ArrayRef> = vec![
            Arc::new(input.ids.clone()),
            Arc::new(input.keys.clone()),
            Arc::new(input.captions.to_array()),
        ];
        columns.extend(input.captions.source_columns().map(|sources| Arc::new(sources) as ArrayRef));
        columns.extend([
            Arc::new(info().map(|info| Some(info?.width)).collect::<UInt32Array>()) as ArrayRef,
            Arc::new(info().map(|info| Some(info?.height)).collect::<UInt32Array>()),
            Arc::new(info().map(|info| Some(info?.format.name())).collect::<StringArray>()),
            Arc::new(info().map(|info| Some(info?.icc)).collect::<BooleanArray>()),
        ]);
        columns.extend(input.carried.iter().cloned());
        columns.push(Arc::new(StringArray::from_iter_values(rows.iter().map(status_of))));
        columns.push(Arc::new(rows.iter().map(reason_of).collect::<StringArray>()));
        columns.push(Arc::new(input.rows.clone()));
        columns.extend(self.extra.hashes.columns(rows.iter().map(|row| row.hashes))?);
        columns.extend(self.extra.scores.columns(rows.iter().map(|row| row.scores.as_slice())));
        columns.extend(self.extra.scores.embedding_column(input.known.as_ref(), rows.len()));
        let more = self.extra.more_tokenizers.iter().map(AsRef::as_ref);
        for (encoder, tokenizer) in std::iter::once(tokenizer).chain(more).enumerate() {
            columns.push(token_id_column(rows, input, encoder, tokenizer, self.extra.captioner.is_some())?);
        }
        if self.flip {
            let flipped = rows.iter().map(|row| row.plan().map(|plan| plan.is_flipped));
            columns.push(Arc::new(flipped.collect::<BooleanArray>()));
        }
        for (resolution, pixels) in self.pixels.into_iter().enumerate() {
            let crops: Vec<Option<&ResizedCrop>> =
                rows.iter().map(|row| crop_of_row(row, resolution)).collect();
            columns.push(pixels.into_column(rows.iter().map(|row| needed_crop(row, resolution).is_some()))?);
            columns.push(number_lists(&crops, |crop| [crop.size.0, crop.size.1])?);
            columns.push(number_lists(
                &crops,
                |&ResizedCrop { crop: Rect { x, y, width, height }, .. }| [x, y, width, height],
            )?);
        }
        if let Some(pixels) = self.score_pixels {
            columns.push(pixels.into_column(rows.iter().map(needs_scores))?);
        }
        if let Some(pixels) = self.caption_pixels {
            columns.push(pixels.into_column(rows.iter().map(needs_caption))?);
            columns.push(known_captions(input, rows.len()));
        }
        Ok(RecordBatch::try_new(schema, columns)?)
    }
}

/// The schema of the output. `caption_source` is true if it has a column of that name.
pub fn output_schema(
    input: &Schema,
    carry: &[String],
    config: &PrepareConfig,
    extra: &ExtraColumns,
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
    fields.extend(extra.hashes.fields());
    fields.extend(extra.scores.fields());
    let lengths = extra.more_tokenizers.iter().map(|tokenizer| tokenizer.length() as i32);
    for (encoder, length) in std::iter::once(CONTEXT_I32).chain(lengths).enumerate() {
        let name = token_ids_column_name(encoder);
        fields.push(Field::new(name, fixed_size_list(DataType::Int32, length), true));
    }
    if config.flip {
        fields.push(Field::new("flipped", DataType::Boolean, true));
    }
    for &resolution in &config.resolutions {
        fields.push(pixels_field(resolution, &config.sizes(resolution)));
        fields.push(Field::new(format!("size_{resolution}"), fixed_size_list(DataType::UInt32, 2), true));
        fields.push(Field::new(format!("crop_{resolution}"), fixed_size_list(DataType::UInt32, 4), true));
    }
    fields.extend(extra.scores.pixels_field());
    if extra.captioner.is_some() {
        fields.push(Field::new(CAPTION_PIXELS, DataType::LargeBinary, true));
        fields.push(Field::new(KNOWN_CAPTION, DataType::Utf8, true));
    }
    Ok(Arc::new(Schema::new(fields)))
}

/// The field `pixels_R`, with the shape if all rows have the same.
fn pixels_field(resolution: u32, sizes: &[(u32, u32)]) -> Field {
    let mut metadata = HashMap::from([("dtype".to_owned(), "u8".to_owned())]);
    if let [(width, height)] = sizes {
        metadata.insert("shape".to_owned(), format!("[3,{height},{width}]"));
    }
    Field::new(format!("pixels_{resolution}"), DataType::LargeBinary, true).with_metadata(metadata)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "77 fits")]
const CONTEXT_I32: i32 = CONTEXT as i32;

fn fixed_size_list(item: DataType, length: i32) -> DataType {
    DataType::FixedSizeList(Arc::new(Field::new_list_field(item, true)), length)
}

/// The captions that a captioner made in an earlier run. The source's stay in `caption`, because scores
/// compare images with them.
fn known_captions(input: &Input, rows: usize) -> ArrayRef {
    let known = |row| input.known.as_ref().and_then(|known| known.caption(row));
    Arc::new((0..rows).map(known).collect::<StringArray>())
}

/// True if a captioner has to make the row's caption.
fn needs_caption(row: &Row) -> bool {
    row.plan().is_some_and(|plan| plan.needs_caption)
}

/// True if a score of the row must be computed.
fn needs_scores(row: &Row) -> bool {
    row.plan().is_some_and(|plan| plan.needs_scores)
}

/// The row's crop at a resolution, given by its index, if its pixels are needed.
fn needed_crop<'a>(row: &'a Row, resolution: usize) -> Option<&'a ResizedCrop> {
    row.plan()?.needed_crop(resolution)
}

/// The row's crop at a resolution, given by its index, if the row is kept and large enough.
fn crop_of_row<'a>(row: &'a Row, resolution: usize) -> Option<&'a ResizedCrop> {
    row.plan()?.crops.get(resolution)?.as_ref()
}

fn status_of(row: &Row) -> &'static str {
    match row.outcome {
        Outcome::Kept(_) => KEPT,
        Outcome::Rejected(_) => REJECTED,
        Outcome::Quarantined(_) => QUARANTINED,
    }
}

fn reason_of(row: &Row) -> Option<String> {
    match &row.outcome {
        Outcome::Kept(_) => None,
        Outcome::Rejected(filter) => Some(filter.clone()),
        Outcome::Quarantined(error) => Some(error.to_string()),
    }
}

/// The token ids for a text encoder, counted from 0, of the kept rows whose embedding does not exist yet.
fn token_id_column(
    rows: &[Row],
    input: &Input,
    encoder: usize,
    tokenizer: &dyn CaptionTokenizer,
    has_captioner: bool,
) -> Result<ArrayRef> {
    let is_wanted = |row: &Row| row.plan().is_some_and(|plan| !plan.has_text[encoder]);
    let wanted: Vec<bool> = rows.iter().map(is_wanted).collect();
    // What a captioner made in an earlier run replaces the source's caption.
    let known = |row| input.known.as_ref().filter(|_| has_captioner).and_then(|known| known.caption(row));
    let caption = |row: usize| known(row).or_else(|| input.captions.get(row).ok());
    let captions: Vec<&str> = (0..rows.len()).filter(|&row| wanted[row]).filter_map(caption).collect();
    let (encoded, length) = (tokenizer.encode_captions(&captions)?, tokenizer.length());
    let (mut encoded, nothing) = (encoded.chunks_exact(length), vec![0; length]);
    let ids = wanted.iter().flat_map(|&wanted| {
        let ids = wanted.then(|| encoded.next()).flatten();
        ids.unwrap_or(&nothing).to_vec()
    });
    let ids = Int32Array::from_iter_values(ids);
    let field = Arc::new(Field::new_list_field(DataType::Int32, true));
    Ok(Arc::new(FixedSizeListArray::try_new(field, length as i32, Arc::new(ids), Some(wanted.into()))?))
}

/// A column of lists of N numbers; null where there is no crop.
fn number_lists<const N: usize>(
    crops: &[Option<&ResizedCrop>],
    numbers: impl Fn(&ResizedCrop) -> [u32; N],
) -> Result<ArrayRef> {
    let nulls = NullBuffer::from_iter(crops.iter().map(Option::is_some));
    let values = crops.iter().flat_map(|crop| crop.map_or([0; N], &numbers));
    let values = Arc::new(UInt32Array::from_iter_values(values));
    let field = Arc::new(Field::new_list_field(DataType::UInt32, true));
    Ok(Arc::new(FixedSizeListArray::try_new(field, N as i32, values, Some(nulls))?))
}
