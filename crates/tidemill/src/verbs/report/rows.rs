//! What became of the pairs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde::Deserialize;
use tidemill_data::status::{QUARANTINED, REJECTED};
use tidemill_plan::with_commas;
use tidemill_report::Table;
use tidemill_store::dataset::row_listing::{ListedRow, list_rows};
use tidemill_store::{Dataset, RowCounts};

/// The most examples of rows that are not used.
const EXAMPLES: usize = 20;
/// In a larger dataset looking for them takes too long.
const MOST_ROWS: u64 = 20_000_000;

/// The counts of the run's dataset, and tables of what is not used; without a dataset the rows that
/// online training has quarantined.
pub fn read_rows(folder: &Path, remarks: &mut Vec<String>) -> (Option<RowCounts>, Vec<Table>) {
    let path = folder.join("dataset");
    if !path.exists() {
        return (None, read_quarantine(folder).into_iter().collect());
    }
    let opened = Dataset::open(&path.display().to_string());
    match opened.and_then(|dataset| Ok((dataset.totals()?.rows, dataset))) {
        Ok((counts, dataset)) => {
            let mut tables: Vec<Table> = reason_table(&counts).into_iter().collect();
            if counts.read <= MOST_ROWS {
                let examples = [REJECTED, QUARANTINED].map(|status| example_table(&dataset, status, remarks));
                tables.extend(examples.into_iter().flatten());
            } else {
                remarks.push("`tidemill inspect --list` shows pairs that are not used".into());
            }
            (Some(counts), tables)
        }
        Err(error) => {
            remarks.push(format!("the dataset is not shown: {error}"));
            (None, Vec::new())
        }
    }
}

/// The reasons of rows that are not used, most frequent first.
fn reason_table(counts: &RowCounts) -> Option<Table> {
    let to_rows = |status: &str, counted: &BTreeMap<String, u64>| -> Vec<(u64, Vec<String>)> {
        let row = |(reason, rows): (&String, &u64)| {
            let share = 100.0 * *rows as f64 / counts.read.max(1) as f64;
            (*rows, vec![reason.clone(), status.to_owned(), with_commas(*rows), format!("{share:.3} %")])
        };
        counted.iter().map(row).collect()
    };
    let mut rows = to_rows(REJECTED, &counts.rejected);
    rows.extend(to_rows(QUARANTINED, &counts.quarantined));
    rows.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
    (!rows.is_empty()).then(|| Table {
        title: "Why pairs are not used".into(),
        head: ["reason", "status", "pairs", "share"].map(str::to_owned).into(),
        rows: rows.into_iter().map(|(_, row)| row).collect(),
    })
}

fn example_table(dataset: &Dataset, status: &str, remarks: &mut Vec<String>) -> Option<Table> {
    let listed = list_rows(dataset, status, None, EXAMPLES);
    let listed =
        listed.map_err(|error| remarks.push(format!("no {status} pairs are shown: {error}"))).ok()?;
    let row = |row: ListedRow| vec![row.key, row.reason, format!("{}, row {}", row.file, row.row)];
    to_examples(status, listed.into_iter().map(row).collect())
}

fn to_examples(status: &str, rows: Vec<Vec<String>>) -> Option<Table> {
    (!rows.is_empty()).then(|| Table {
        title: format!("Pairs that are {status}, for instance"),
        head: ["key", "reason", "where"].map(str::to_owned).into(),
        rows,
    })
}

/// A line of `quarantine.jsonl`.
#[derive(Deserialize)]
struct QuarantinedRow {
    key: String,
    reason: Option<String>,
    file: String,
}

fn read_quarantine(folder: &Path) -> Option<Table> {
    let file = File::open(folder.join("quarantine.jsonl")).ok()?;
    let lines = BufReader::new(file).lines().map_while(Result::ok);
    let rows = lines.filter_map(|line| serde_json::from_str::<QuarantinedRow>(&line).ok()).take(EXAMPLES);
    to_examples(
        QUARANTINED,
        rows.map(|row| vec![row.key, row.reason.unwrap_or_default(), row.file]).collect(),
    )
}
