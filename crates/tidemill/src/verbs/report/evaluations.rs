//! Records of `tidemill eval` over steps.

use std::collections::BTreeMap;
use std::path::Path;

use tidemill_io::Location;
use tidemill_report::{Chart, Gallery, Line, Table};

use super::pictures::gallery_of;
use crate::evaluation::record::{Record, read_records};

/// What the page has of a run's evaluations.
#[derive(Default)]
pub struct Evaluations {
    pub charts: Vec<Chart>,
    pub galleries: Vec<Gallery>,
    /// The numbers of all steps.
    pub table: Option<Table>,
}

/// Reads the evaluations in a run's folder.
pub fn read_evaluations(folder: &Path, remarks: &mut Vec<String>) -> Evaluations {
    let path = folder.join("evaluations");
    if !path.exists() {
        return Evaluations::default();
    }
    let opened = Location::open(&path.display().to_string()).map_err(crate::error::Error::from);
    let records = match opened.and_then(|location| read_records(&location)) {
        Ok(records) => records,
        Err(error) => {
            remarks.push(format!("evaluations are not shown: {error}"));
            return Evaluations::default();
        }
    };
    let grids = records.iter().map(|record| (record.step, path.join(format!("step-{:08}.png", record.step))));
    Evaluations {
        charts: charts(&records),
        galleries: gallery_of("Evaluation", grids.collect(), remarks).into_iter().collect(),
        table: table(&records),
    }
}

/// A chart for each number.
fn charts(records: &[Record]) -> Vec<Chart> {
    let mut lines: BTreeMap<&str, Line> = BTreeMap::new();
    for record in records {
        for (name, value) in record.metrics.iter().filter(|(_, value)| value.is_finite()) {
            let line = lines.entry(name).or_insert_with(|| Line { name: name.clone(), ..Line::default() });
            line.x.push(record.step as f64);
            line.y.push(*value);
        }
    }
    let chart = |(name, line): (&str, Line)| Chart {
        id: format!("eval-{name}"),
        group: "Evaluation".into(),
        title: name.to_owned(),
        lines: vec![line],
        ..Chart::default()
    };
    lines.into_iter().map(chart).collect()
}

fn table(records: &[Record]) -> Option<Table> {
    let mut names: Vec<&String> = records.iter().flat_map(|record| record.metrics.keys()).collect();
    names.sort();
    names.dedup();
    let row = |record: &Record| {
        let numbers = names
            .iter()
            .map(|name| record.metrics.get(*name).map_or_else(String::new, |value| format!("{value:.4}")));
        [record.step.to_string(), record.images.to_string()].into_iter().chain(numbers).collect()
    };
    let head =
        ["step".to_owned(), "images".to_owned()].into_iter().chain(names.iter().map(|name| (*name).clone()));
    (!records.is_empty()).then(|| Table {
        title: "Evaluations".into(),
        head: head.collect(),
        rows: records.iter().map(row).collect(),
    })
}
