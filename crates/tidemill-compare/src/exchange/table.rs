//! Raw judgements as a table, one row each: CSV or Parquet.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Int64Array, RecordBatch, StringArray, TimestampMillisecondArray, UInt64Array,
};
use parquet::arrow::ArrowWriter;

use crate::database::{Contents, Database, JudgementRow};
use crate::error::{Error, Result};
use crate::statistics::Outcome;

/// Writes all judgements of a study, those of attention checks too, and returns how many there are.
/// The file is CSV if its name ends so, otherwise Parquet.
///
/// # Errors
/// If the database fails, or the file cannot be written.
pub fn write_judgements(database: &Database, to: &Path) -> Result<usize> {
    let rows = database.read_judgements()?;
    let columns = columns(&rows, &database.read_contents()?, database);
    let failed = |problem: String| Error::File { path: to.display().to_string(), problem };
    let batch = RecordBatch::try_from_iter(columns).map_err(|e| failed(e.to_string()))?;
    let file = File::create(to).map_err(|e| failed(e.to_string()))?;
    if to.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("csv")) {
        write_csv(&batch, file).map_err(|e| failed(e.to_string()))?;
    } else {
        let written = ArrowWriter::try_new(file, batch.schema(), None).and_then(|mut writer| {
            writer.write(&batch)?;
            writer.close()
        });
        written.map_err(|e| failed(e.to_string()))?;
    }
    Ok(rows.len())
}

fn columns(rows: &[JudgementRow], contents: &Contents, database: &Database) -> Vec<(&'static str, ArrayRef)> {
    let config = &database.config;
    let models = config.model_names();
    let comparison = |row: &JudgementRow| contents.comparisons[row.comparison];
    let prompt = |row: &JudgementRow| &contents.prompts[comparison(row).prompt];
    let text = |of: &dyn Fn(&JudgementRow) -> Option<String>| {
        Arc::new(rows.iter().map(of).collect::<StringArray>()) as ArrayRef
    };
    let preferred = |row: &JudgementRow| match (row.outcome, comparison(row).models) {
        (Outcome::Tie, _) => "tie".to_owned(),
        (Outcome::First, (first, _)) => models[first].to_owned(),
        (Outcome::Second, _) if comparison(row).is_check => "damaged".to_owned(),
        (Outcome::Second, (_, second)) => models[second].to_owned(),
    };
    vec![
        ("question", text(&|row| Some(config.questions.get(row.question)?.name.clone()))),
        ("prompt", text(&|row| Some(prompt(row).text.clone()))),
        ("category", text(&|row| prompt(row).category.clone())),
        ("comparison", Arc::new(rows.iter().map(|row| row.comparison as u64).collect::<UInt64Array>())),
        (
            "is_check",
            Arc::new(rows.iter().map(|row| Some(comparison(row).is_check)).collect::<BooleanArray>()),
        ),
        ("first", text(&|row| Some(models[comparison(row).models.0].to_owned()))),
        (
            "second",
            text(&|row| {
                let comparison = comparison(row);
                Some(if comparison.is_check { "damaged" } else { models[comparison.models.1] }.to_owned())
            }),
        ),
        ("preferred", text(&|row| Some(preferred(row)))),
        ("first_is_left", Arc::new(rows.iter().map(|row| Some(row.first_is_left)).collect::<BooleanArray>())),
        ("rater", Arc::new(rows.iter().map(|row| row.rater).collect::<Int64Array>())),
        (
            "judged",
            Arc::new(
                TimestampMillisecondArray::from_iter_values(rows.iter().map(|row| row.judged))
                    .with_timezone("UTC"),
            ),
        ),
        ("milliseconds", Arc::new(rows.iter().map(|row| row.milliseconds).collect::<Int64Array>())),
        ("corrections", Arc::new(rows.iter().map(|row| row.corrections).collect::<Int64Array>())),
    ]
}

fn write_csv(batch: &RecordBatch, file: File) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut writer = csv::Writer::from_writer(file);
    writer.write_record(batch.schema().fields().iter().map(|field| field.name().as_str()))?;
    let formatters = batch
        .columns()
        .iter()
        .map(|column| arrow::util::display::ArrayFormatter::try_new(column, &Default::default()))
        .collect::<std::result::Result<Vec<_>, _>>()?;
    for row in 0..batch.num_rows() {
        writer.write_record(formatters.iter().map(|formatter| formatter.value(row).to_string()))?;
    }
    writer.flush()?;
    Ok(())
}
