//! The arguments of `tidemill plan`, and its result.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tidemill_plan::{Plan, PlanConfig, make_plan};

use super::encoder_chart::{draw_png, draw_svg};
use super::measured_rates::add_measured_rates;
use super::table::to_table;
use super::workload::workload_of;
use crate::error::{Error, Result};
use crate::progress::Reporter;
use crate::run_file::Run;
use crate::verbs::image_files::write_file;
use crate::verbs::shared_arguments::{RunArgs, parse_local_path};

/// Arguments of `tidemill plan`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:\n  tidemill plan examples/plans/anyscale-256.toml\n  \
    tidemill plan run.toml --cluster cluster.toml --plot plan\n  \
    tidemill plan run.toml --rates rates.toml --rates runs/pilot --json")]
pub struct Args {
    /// The run file and its overrides.
    #[command(flatten)]
    pub run: RunArgs,
    /// A TOML file with the keys of `[plan]`, in place of that section.
    #[arg(long, value_name = "FILE")]
    pub cluster: Option<PathBuf>,
    /// Rates of your machines: a file of `tidemill bench train` and `bench encode`, or the output
    /// folder of a run; may be given several times.
    #[arg(long = "rates", value_name = "PATH")]
    pub rates: Vec<PathBuf>,
    /// Draw throughput and cost by the number of encoders as PATH.svg and PATH.png.
    #[arg(long, value_name = "PATH", value_parser = parse_local_path)]
    pub plot: Option<PathBuf>,
}

/// Plans a run.
///
/// # Errors
/// If the run file or the cluster is refused, or rates and prices are missing.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    let run = args.run.open()?;
    let mut config = plan_config(&run, args.cluster.as_deref())?;
    for path in &args.rates {
        add_measured_rates(path, &mut config)?.iter().for_each(|remark| reporter.report(remark));
    }
    let plan = make_plan(&workload_of(&run)?, &config).map_err(|error| match &args.cluster {
        Some(path) => refuse_cluster(path, &error),
        None => run.refuse(&error.key, error.problem),
    })?;
    reporter.report(to_table(&plan));
    let plots = args.plot.as_deref().map_or(Ok(Vec::new()), |path| write_plots(&plan, path, reporter))?;
    let mut result = json!({ "verb": "plan", "run": args.run.run_file, "plots": plots });
    if let (Value::Object(result), Ok(Value::Object(plan))) = (&mut result, serde_json::to_value(&plan)) {
        // The modes and the recommendation come last.
        result.extend(plan);
    }
    Ok(result)
}

/// `[plan]`, or the file that takes its place.
fn plan_config(run: &Run, cluster: Option<&Path>) -> Result<PlanConfig> {
    let Some(path) = cluster else { return Ok(run.file.plan.clone()) };
    if run.file.plan != PlanConfig::default() {
        return Err(run.refuse("plan", "--cluster takes the place of this section; use one of the two"));
    }
    let text = std::fs::read_to_string(path).map_err(|e| Error::Missing {
        what: format!("cluster file {}", path.display()),
        problem: e.to_string(),
        hint: "give the path of a TOML file with the keys of [plan]".into(),
    })?;
    let parsed: PlanConfig = toml::from_str(&text).map_err(|error| {
        let problem = error.to_string();
        Error::Arguments(format!("{}: {}", path.display(), problem.trim_end()))
    })?;
    parsed.validate().map_err(|error| refuse_cluster(path, &error))?;
    Ok(parsed)
}

/// An error about a key of a cluster file, where it stands without `plan.`.
fn refuse_cluster(path: &Path, error: &tidemill_plan::Error) -> Error {
    let key = error.key.strip_prefix("plan.").unwrap_or(&error.key);
    Error::Arguments(format!("{}: {key}: {}", path.display(), error.problem))
}

fn write_plots(plan: &Plan, path: &Path, reporter: &Reporter) -> Result<Vec<PathBuf>> {
    let Some(curve) = &plan.encoder_curve else {
        let message = "--plot draws throughput by the number of encoders, and this plan has none: name their \
                       nodes in plan.encoders";
        return Err(Error::Arguments(message.into()));
    };
    let (svg, png) = (path.with_extension("svg"), path.with_extension("png"));
    write_file(&svg, draw_svg(plan, curve).as_bytes())?;
    let pixels = draw_png(plan, curve)
        .map_err(|e| Error::Write { path: png.display().to_string(), source: std::io::Error::other(e) })?;
    write_file(&png, &pixels)?;
    reporter.report(format!("drew {} and {}", svg.display(), png.display()));
    Ok(vec![svg, png])
}
