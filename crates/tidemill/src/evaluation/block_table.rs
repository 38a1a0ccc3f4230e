//! The results of a block's pictures, and their table in Parquet.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListArray, Float32Array, Float64Array, RecordBatch, StringArray,
    UInt64Array,
};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Float32Type, Float64Type, Schema, UInt64Type};
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use crate::error::{Error, Result};

/// What became of a picture.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PictureResult {
    /// Position among all pictures of the step.
    pub index: u64,
    /// Position of the prompt.
    pub prompt_index: u64,
    /// The prompt.
    pub prompt: String,
    /// The prompt's category.
    pub category: Option<String>,
    /// Which of the prompt's images it is.
    pub image: u64,
    /// Seed of the run.
    pub seed: u64,
    /// Guidance scale.
    pub guidance: f64,
    /// Where the picture is, below the folder of the evaluations.
    pub path: Option<String>,
    /// Why there is no picture or no score.
    pub error: Option<String>,
    /// Scores by the metrics' names.
    pub scores: BTreeMap<String, f64>,
    /// Features by the towers' names.
    pub features: BTreeMap<String, Vec<f32>>,
}

/// The prefix of the columns with scores.
const SCORE: &str = "score_";
/// The prefix of the columns with features.
const FEATURES: &str = "features_";

/// The names that occur in any of the maps.
fn all_names<'a, T: 'a>(maps: impl Iterator<Item = &'a BTreeMap<String, T>>) -> Vec<String> {
    let names: std::collections::BTreeSet<&String> = maps.flat_map(BTreeMap::keys).collect();
    names.into_iter().cloned().collect()
}

/// The table of pictures. Features are left out unless wanted: they are large, and only needed until
/// the record is made.
///
/// # Errors
/// If features of one tower have different widths.
pub fn to_parquet(pictures: &[PictureResult], with_features: bool) -> Result<Bytes> {
    let numbers = |value: fn(&PictureResult) -> u64| -> ArrayRef {
        Arc::new(UInt64Array::from_iter_values(pictures.iter().map(value)))
    };
    let texts = |value: fn(&PictureResult) -> Option<&str>| -> ArrayRef {
        Arc::new(StringArray::from_iter(pictures.iter().map(value)))
    };
    let mut columns: Vec<(String, ArrayRef)> = vec![
        ("index".into(), numbers(|picture| picture.index)),
        ("prompt_index".into(), numbers(|picture| picture.prompt_index)),
        ("prompt".into(), texts(|picture| Some(&picture.prompt))),
        ("category".into(), texts(|picture| picture.category.as_deref())),
        ("image".into(), numbers(|picture| picture.image)),
        ("seed".into(), numbers(|picture| picture.seed)),
        (
            "guidance".into(),
            Arc::new(Float64Array::from_iter_values(pictures.iter().map(|picture| picture.guidance))),
        ),
        ("path".into(), texts(|picture| picture.path.as_deref())),
        ("error".into(), texts(|picture| picture.error.as_deref())),
    ];
    for name in all_names(pictures.iter().map(|picture| &picture.scores)) {
        let scores =
            Float64Array::from_iter(pictures.iter().map(|picture| picture.scores.get(&name).copied()));
        columns.push((format!("{SCORE}{name}"), Arc::new(scores)));
    }
    if with_features {
        for name in all_names(pictures.iter().map(|picture| &picture.features)) {
            let column = features_column(pictures, &name)?;
            columns.push((format!("{FEATURES}{name}"), column));
        }
    }
    let fields: Vec<Field> =
        columns.iter().map(|(name, array)| Field::new(name, array.data_type().clone(), true)).collect();
    let arrays = columns.into_iter().map(|(_, array)| array).collect();
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)?;
    let parquet_error = |e: parquet::errors::ParquetError| Error::Arrow(e.into());
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), None).map_err(parquet_error)?;
    writer.write(&batch).map_err(parquet_error)?;
    Ok(writer.into_inner().map_err(parquet_error)?.into())
}

fn features_column(pictures: &[PictureResult], name: &str) -> Result<ArrayRef> {
    let rows = || pictures.iter().map(|picture| picture.features.get(name));
    let width = rows().flatten().map(Vec::len).next().unwrap_or(0);
    let empty = vec![0.0; width];
    let values: Vec<f32> = rows().flat_map(|row| row.unwrap_or(&empty).iter().copied()).collect();
    let validity = rows().map(|row| row.is_some()).collect::<Vec<bool>>().into();
    let item = Arc::new(Field::new("item", DataType::Float32, true));
    let values = Arc::new(Float32Array::from(values));
    Ok(Arc::new(FixedSizeListArray::try_new(item, width as i32, values, Some(validity))?))
}

/// Reads what [`to_parquet`] made.
///
/// # Errors
/// If the bytes are damaged or of another table.
pub fn from_parquet(bytes: Bytes) -> Result<Vec<PictureResult>> {
    let parquet_error = |e: parquet::errors::ParquetError| Error::Arrow(e.into());
    let builder = ParquetRecordBatchReaderBuilder::try_new(bytes).map_err(parquet_error)?;
    let schema = builder.schema().clone();
    let batches = builder.build().map_err(parquet_error)?.collect::<std::result::Result<Vec<_>, _>>()?;
    let table = Table(concat_batches(&schema, &batches)?);
    (0..table.0.num_rows()).map(|row| table.picture(row)).collect()
}

struct Table(RecordBatch);

impl Table {
    fn column(&self, name: &str) -> Result<&ArrayRef> {
        self.0.column_by_name(name).ok_or_else(|| Error::Unit(format!("the table has no column `{name}`")))
    }

    fn number(&self, name: &str, row: usize) -> Result<u64> {
        let numbers = self.column(name)?.as_primitive_opt::<UInt64Type>();
        let wrong = || Error::Unit(format!("column `{name}` has no whole numbers"));
        Ok(numbers.ok_or_else(wrong)?.value(row))
    }

    fn text(&self, name: &str, row: usize) -> Result<Option<String>> {
        let texts = self.column(name)?.as_string_opt::<i32>();
        let texts = texts.ok_or_else(|| Error::Unit(format!("column `{name}` has no texts")))?;
        Ok(texts.is_valid(row).then(|| texts.value(row).to_owned()))
    }

    fn picture(&self, row: usize) -> Result<PictureResult> {
        let guidance = self.column("guidance")?.as_primitive_opt::<Float64Type>();
        let mut picture = PictureResult {
            index: self.number("index", row)?,
            prompt_index: self.number("prompt_index", row)?,
            prompt: self.text("prompt", row)?.unwrap_or_default(),
            category: self.text("category", row)?,
            image: self.number("image", row)?,
            seed: self.number("seed", row)?,
            guidance: guidance.map_or(f64::NAN, |column| column.value(row)),
            path: self.text("path", row)?,
            error: self.text("error", row)?,
            scores: BTreeMap::new(),
            features: BTreeMap::new(),
        };
        let schema = self.0.schema();
        for (field, column) in schema.fields().iter().zip(self.0.columns()) {
            if column.is_null(row) {
                continue;
            }
            if let (Some(name), Some(scores)) =
                (field.name().strip_prefix(SCORE), column.as_primitive_opt::<Float64Type>())
            {
                picture.scores.insert(name.into(), scores.value(row));
            }
            if let (Some(name), Some(lists)) =
                (field.name().strip_prefix(FEATURES), column.as_fixed_size_list_opt())
            {
                let features = lists.value(row).as_primitive::<Float32Type>().values().to_vec();
                picture.features.insert(name.into(), features);
            }
        }
        Ok(picture)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_survive_their_table() {
        let whole = PictureResult {
            index: 7,
            prompt_index: 3,
            prompt: "a red circle".into(),
            category: Some("Colors".into()),
            image: 1,
            seed: 5,
            guidance: 3.5,
            path: Some("step-1/pictures/x/000007.png".into()),
            error: None,
            scores: BTreeMap::from([("clip_score".into(), 27.25)]),
            features: BTreeMap::from([("clip".into(), vec![0.5, -1.0])]),
        };
        let failed = PictureResult {
            index: 8,
            category: None,
            path: None,
            error: Some("not finite".into()),
            scores: BTreeMap::new(),
            features: BTreeMap::new(),
            ..whole.clone()
        };
        let pictures = [whole.clone(), failed.clone()];
        assert_eq!(from_parquet(to_parquet(&pictures, true).unwrap()).unwrap(), pictures);
        let without = PictureResult { features: BTreeMap::new(), ..whole };
        assert_eq!(from_parquet(to_parquet(&pictures, false).unwrap()).unwrap(), [without, failed]);
        assert!(from_parquet(Bytes::from_static(b"no table")).is_err());
    }
}
