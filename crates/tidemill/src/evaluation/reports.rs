//! What a step's record is shown as: table, grids, metrics files, plots, TensorBoard, Prometheus.
//! All of them follow from the records, so that evaluators on several machines can write them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use image::RgbImage;
use tidemill_io::Location;
use tidemill_train::{EventWriter, PrometheusEndpoint, image_grid};

use super::block_table::{PictureResult, to_parquet};
use super::keys::step_folder;
use super::record::{Record, read_records, recorded_steps};
use crate::chart::lines::{Series, draw_png, draw_svg};
use crate::error::{Error, Result};
use crate::progress::Reporter;
use crate::run_file::Run;

/// The most pictures of a category in a grid.
const GRID_PICTURES: usize = 16;
/// The most categories with a grid of their own.
const MAX_GRIDS: usize = 24;

/// The most characters of a category in a file's name.
const MAX_NAME: usize = 40;

/// Where reports go.
pub struct Reports<'a> {
    run: &'a Run,
    location: &'a Location,
    prometheus: Option<PrometheusEndpoint>,
}

impl<'a> Reports<'a> {
    /// Opens the page for Prometheus, if the run file asks for one. If its address cannot be listened
    /// at, because another evaluator of this machine has it, there is a message and no page.
    ///
    /// # Errors
    /// If the records cannot be read.
    pub fn open(run: &'a Run, location: &'a Location, reporter: &Reporter) -> Result<Self> {
        let prometheus = run.file.eval.prometheus.as_deref().map(PrometheusEndpoint::open).transpose();
        let prometheus = prometheus.unwrap_or_else(|error| {
            reporter.report(format!("eval.prometheus: {error}"));
            None
        });
        let reports = Self { run, location, prometheus };
        if let (Some(prometheus), Some(record)) = (&reports.prometheus, read_records(location)?.last()) {
            prometheus.show(prometheus_page(record));
        }
        Ok(reports)
    }

    /// Writes a step's table and its grids, before its record says that they are there.
    ///
    /// # Errors
    /// If the store fails.
    pub fn write_step(&self, record: &Record, pictures: &[PictureResult]) -> Result<()> {
        self.location.put(&record.table, to_parquet(pictures, false)?)?;
        let scale = record.guidance.first().map(|first| first.scale);
        let mut groups: BTreeMap<&str, Vec<&PictureResult>> = BTreeMap::new();
        for picture in pictures.iter().filter(|p| Some(p.guidance) == scale && p.path.is_some()) {
            groups.entry(picture.category.as_deref().unwrap_or_default()).or_default().push(picture);
        }
        for (i, (category, pictures)) in groups.into_iter().take(MAX_GRIDS).enumerate() {
            let key = match category {
                "" => format!("{}.png", step_folder(record.step)),
                name => format!("{}-{i:02}-{}.png", step_folder(record.step), file_name(name)),
            };
            self.location.put(&key, self.draw_grid(&pictures)?.into())?;
        }
        Ok(())
    }

    fn draw_grid(&self, pictures: &[&PictureResult]) -> Result<Vec<u8>> {
        let count = pictures.len().min(GRID_PICTURES);
        let chosen = (0..count).map(|i| pictures[i * pictures.len() / count]);
        let (mut images, mut captions): (Vec<RgbImage>, Vec<String>) = (Vec::new(), Vec::new());
        for picture in chosen {
            let bytes = self.location.get(picture.path.as_deref().unwrap_or_default())?;
            let decoded = tidemill_data::decode::decode(&bytes).map_err(tidemill_eval::Error::from)?;
            images.extend(RgbImage::from_raw(decoded.width, decoded.height, decoded.pixels));
            captions.push(picture.prompt.clone());
        }
        let columns = (count as f64).sqrt().ceil() as u32;
        encode_png(&image_grid::make_grid(&images, &captions, columns), self.location)
    }

    /// Brings up to date what shows all records: `metrics.jsonl`, the plots, TensorBoard and
    /// Prometheus. Any evaluator may do so at any time, also for records of one that died.
    ///
    /// # Errors
    /// If the store fails.
    pub fn refresh(&self, reporter: &Reporter) -> Result<()> {
        loop {
            let shown = self.shown_steps()?;
            if recorded_steps(self.location)? == shown {
                return Ok(());
            }
            let records = read_records(self.location)?;
            let series = to_series(&records);
            self.location.put("metrics.svg", draw_svg(&series).into())?;
            self.location.put("metrics.png", encode_png(&draw_png(&series), self.location)?.into())?;
            self.location.put("metrics.jsonl", to_json_lines(&records).into())?;
            for record in records.iter().filter(|record| !shown.contains(&record.step)) {
                self.write_tensorboard(record)?;
                print_record(record, reporter);
            }
            if let (Some(prometheus), Some(record)) = (&self.prometheus, records.last()) {
                prometheus.show(prometheus_page(record));
            }
            // Another evaluator may have put a record meanwhile, or written an older file.
        }
    }

    /// The steps in `metrics.jsonl`.
    fn shown_steps(&self) -> Result<Vec<u64>> {
        let bytes = self.location.get_if_present("metrics.jsonl")?.unwrap_or_default();
        let lines = bytes.split(|byte| *byte == b'\n');
        let step = |line: &[u8]| serde_json::from_slice::<serde_json::Value>(line).ok()?["step"].as_u64();
        Ok(lines.filter_map(step).collect())
    }

    /// Adds the numbers to the run's TensorBoard folder, if that is on this machine.
    fn write_tensorboard(&self, record: &Record) -> Result<()> {
        let output = self.run.output();
        if output.contains("://") || !Path::new(&output).is_dir() {
            return Ok(());
        }
        let mut writer = EventWriter::create(&Path::new(&output).join("tensorboard"))?;
        let tags: Vec<(String, f64)> =
            record.metrics.iter().map(|(name, value)| (format!("evaluation/{name}"), *value)).collect();
        let tags: Vec<(&str, f64)> = tags.iter().map(|(tag, value)| (tag.as_str(), *value)).collect();
        Ok(writer.write_scalars(record.step, &tags)?)
    }
}

/// The records' numbers, a line of JSON per step.
fn to_json_lines(records: &[Record]) -> String {
    let mut lines = String::new();
    for record in records {
        let metrics = serde_json::to_value(&record.metrics).unwrap_or_default();
        let mut line = serde_json::json!({ "step": record.step, "images": record.images });
        if let (Some(line), Some(metrics)) = (line.as_object_mut(), metrics.as_object()) {
            line.extend(metrics.clone());
        }
        let _ = writeln!(lines, "{line}");
    }
    lines
}

/// Prints a record's numbers and remarks.
pub fn print_record(record: &Record, reporter: &Reporter) {
    let numbers: Vec<String> =
        record.metrics.iter().map(|(name, value)| format!("{name} {}", format_number(*value))).collect();
    reporter.report(format!(
        "step {}: {} images in {:.0} s: {}",
        record.step,
        record.images,
        record.seconds,
        numbers.join(", ")
    ));
    if record.failed > 0 {
        reporter
            .report(format!("  {} images could not be drawn or judged; see {}", record.failed, record.table));
    }
    record.remarks.iter().for_each(|remark| reporter.report(format!("  {remark}")));
}

fn format_number(value: f64) -> String {
    if value.abs() >= 100.0 { format!("{value:.1}") } else { format!("{value:.4}") }
}

/// Each number's values over the steps.
fn to_series(records: &[Record]) -> Vec<Series> {
    let mut series: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for record in records {
        for (name, value) in record.metrics.iter().filter(|(_, value)| value.is_finite()) {
            series.entry(name).or_default().push((record.step as f64, *value));
        }
    }
    let to_series = |(name, points): (&str, _)| Series {
        name: name.to_owned(),
        x_name: "step".into(),
        points,
        levels: Vec::new(),
    };
    series.into_iter().map(to_series).collect()
}

/// A record in Prometheus's text format.
fn prometheus_page(record: &Record) -> String {
    let mut page =
        format!("# TYPE tidemill_evaluation_step gauge\ntidemill_evaluation_step {}\n", record.step);
    for (name, value) in &record.metrics {
        let _ = writeln!(page, "# TYPE tidemill_evaluation_{name} gauge\ntidemill_evaluation_{name} {value}");
    }
    page
}

/// A category as part of a file's name.
fn file_name(category: &str) -> String {
    category
        .chars()
        .take(MAX_NAME)
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' })
        .collect()
}

fn encode_png(image: &RgbImage, location: &Location) -> Result<Vec<u8>> {
    image_grid::encode_png(image)
        .map_err(|e| Error::Write { path: location.uri().to_owned(), source: std::io::Error::other(e) })
}
