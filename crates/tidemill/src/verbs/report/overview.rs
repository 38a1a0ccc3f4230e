//! A run's first numbers, with its cost.

use tidemill_plan::cluster::Cluster;
use tidemill_plan::{dollars, with_commas};
use tidemill_report::metrics::Metrics;
use tidemill_store::RowCounts;

use crate::run_file::Run;

/// Labels and numbers.
pub fn overview(run: Option<&Run>, metrics: &Metrics, rows: Option<&RowCounts>) -> Vec<(String, String)> {
    let mut facts: Vec<(&str, String)> = Vec::new();
    let total = run.map(|run| run.file.train.total_steps()).filter(|total| *total > 0);
    if metrics.last_step > 0 {
        let of_total = total.map_or_else(String::new, |total| format!(" of {total}"));
        facts.push(("Steps", format!("{}{of_total}", metrics.last_step)));
        facts.push(("Images trained on", with_commas(metrics.samples)));
        facts.push((
            "Images per second",
            format!("{:.1}", metrics.samples as f64 / metrics.seconds.max(1e-9)),
        ));
        facts.push(("Ranks", metrics.ranks.to_string()));
        facts.push(("Hours of steps", format!("{:.2}", metrics.seconds / 3600.0)));
    }
    let left = run.and_then(|run| hours_left(run, metrics));
    facts.extend(left.map(|hours| ("Hours of steps left", format!("{hours:.2}"))));
    if let Some(hourly) = run.and_then(|run| hourly_cost(run, metrics)) {
        facts.push(("Trainers' cost so far", dollars(hourly * metrics.seconds / 3600.0)));
        facts.extend(left.map(|hours| ("Trainers' cost left", dollars(hourly * hours))));
    }
    let loss = |loss: Option<f64>| loss.map(|loss| format!("{loss:.4}"));
    facts.extend(loss(metrics.loss).map(|loss| ("Last loss", loss)));
    facts.extend(loss(metrics.validation_loss).map(|loss| ("Validation loss", loss)));
    if let Some(rows) = rows {
        facts.push(("Pairs read", with_commas(rows.read)));
        facts.push(("Kept", with_commas(rows.kept)));
        facts.push(("Rejected", with_commas(rows.total_rejected())));
        facts.push(("Quarantined", with_commas(rows.total_quarantined())));
    }
    facts.into_iter().map(|(label, value)| (label.to_owned(), value)).collect()
}

/// Hours of the steps that are left, in the last phase: how long steps of other phases take is not
/// known before.
fn hours_left(run: &Run, metrics: &Metrics) -> Option<f64> {
    let train = &run.file.train;
    let left = train.total_steps().checked_sub(metrics.last_step).filter(|left| *left > 0)?;
    let (phase, _) = train.phase_at(metrics.last_step.checked_sub(1)?)?;
    (phase + 1 == train.phase.len()).then(|| left as f64 * metrics.step_seconds / 3600.0)
}

/// Dollars an hour of the machines that `[plan]` says train, if those have trained.
fn hourly_cost(run: &Run, metrics: &Metrics) -> Option<f64> {
    let plan = &run.file.plan;
    let cluster = Cluster::new(plan).ok().filter(|cluster| cluster.trainer_gpus() == metrics.ranks as u64)?;
    Some(cluster.trainer_nodes as f64 * cluster.trainers.price(plan.price).ok()?)
}
