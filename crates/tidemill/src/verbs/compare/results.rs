//! `tidemill compare results`: which model people prefer.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tidemill_compare::database::Database;
use tidemill_compare::results::{QuestionSummary, StudySummary, SummaryOptions, summarise, to_table};
use tidemill_compare::statistics::ClusterBootstrap;
use tidemill_train::image_grid::encode_png;

use super::study_file::{beside, database_path};
use crate::chart::preferences::{Bar, Panel, draw_png, draw_svg};
use crate::error::{Error, Result};
use crate::progress::Reporter;
use crate::verbs::image_files::write_file;

/// The difference from one half that should show, unless the user names another.
const DIFFERENCE: f64 = 0.05;

/// Arguments of `tidemill compare results`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The study.
    pub study: PathBuf,
    /// Draw the preferences as `<study>-results.svg` and `.png`.
    #[arg(long)]
    pub plot: bool,
    /// The difference from one half that should show: 0.05 is a preference of 55 %.
    #[arg(long, default_value_t = DIFFERENCE, value_parser = parse_difference)]
    pub difference: f64,
}

fn parse_difference(text: &str) -> std::result::Result<f64, String> {
    let difference: f64 = text.parse().map_err(|_| "give a number".to_owned())?;
    if difference > 0.0 && difference < 0.5 {
        Ok(difference)
    } else {
        Err("give a number between 0 and 0.5".into())
    }
}

/// Computes the results.
///
/// # Errors
/// If there is no study, or a figure cannot be written.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    let path = database_path(&args.study);
    let database = Database::open(&path)?;
    let options = SummaryOptions { difference: args.difference, bootstrap: ClusterBootstrap::default() };
    let summary = summarise(&database, &options)?;
    reporter.report(to_table(&summary));
    let plots = if args.plot { write_plots(&path, &summary)? } else { Vec::new() };
    plots.iter().for_each(|plot| reporter.report(format!("drew {}", plot.display())));
    let mut result = summary.to_json();
    result["verb"] = json!("compare");
    result["study"] = json!(path);
    result["plots"] = json!(plots);
    Ok(result)
}

/// The figure of a study as SVG.
///
/// # Errors
/// If there is no study.
pub fn draw_results(study: &Path) -> Result<String> {
    let database = Database::open(&database_path(study))?;
    let bootstrap = ClusterBootstrap::default();
    let summary = summarise(&database, &SummaryOptions { difference: DIFFERENCE, bootstrap })?;
    Ok(draw_svg(&summary.questions.iter().map(to_panel).collect::<Vec<_>>()))
}

fn write_plots(database: &Path, summary: &StudySummary) -> Result<Vec<PathBuf>> {
    let panels: Vec<Panel> = summary.questions.iter().map(to_panel).collect();
    let (svg, png) = (beside(database, "-results.svg"), beside(database, "-results.png"));
    write_file(&svg, draw_svg(&panels).as_bytes())?;
    let pixels = encode_png(&draw_png(&panels))
        .map_err(|e| Error::Write { path: png.display().to_string(), source: std::io::Error::other(e) })?;
    write_file(&png, &pixels)?;
    Ok(vec![svg, png])
}

/// The shares of two models, or the strengths of more.
fn to_panel(question: &QuestionSummary) -> Panel {
    let bar = |label: &str, value, interval| Bar { label: label.to_owned(), value, interval };
    let judgements: usize = question.pairs.iter().map(|pair| pair.judgements).sum();
    let bars = match (question.strengths.as_slice(), question.pairs.first()) {
        ([], Some(pair)) => {
            let [first, second] = &pair.models;
            vec![
                bar(first, pair.preference, (pair.low, pair.high)),
                bar(second, 1.0 - pair.preference, (1.0 - pair.high, 1.0 - pair.low)),
            ]
        }
        (strengths, _) => {
            strengths.iter().map(|one| bar(&one.model, one.strength, (one.low, one.high))).collect()
        }
    };
    Panel { title: question.text.clone(), subtitle: format!("{judgements} judgements, 95 % intervals"), bars }
}
