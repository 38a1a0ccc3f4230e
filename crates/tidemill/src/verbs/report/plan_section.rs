//! The plan of a run whose run file has `[plan]`.

use tidemill_plan::modes::{Mode, ModePlan};
use tidemill_plan::{Plan, PlanConfig, dollars, make_plan};
use tidemill_report::{Picture, Table};

use crate::run_file::Run;
use crate::verbs::plan::{draw_encoder_chart, workload_of};

/// What the page has of a plan.
#[derive(Default)]
pub struct PlanSection {
    /// The modes.
    pub table: Option<Table>,
    /// Throughput and cost by the number of encoders.
    pub chart: Option<(String, Picture)>,
}

/// Plans the run. A plan that is not possible is a remark.
pub fn plan_section(run: &Run, remarks: &mut Vec<String>) -> PlanSection {
    if run.file.plan == PlanConfig::default() {
        return PlanSection::default();
    }
    let planned = workload_of(run).and_then(|workload| {
        make_plan(&workload, &run.file.plan).map_err(|error| run.refuse(&error.key, error.problem))
    });
    match planned {
        Ok(plan) => PlanSection {
            chart: draw_encoder_chart(&plan)
                .map(|svg| ("Planned: encoders".into(), Picture::new("image/svg+xml", svg.as_bytes()))),
            table: Some(modes(&plan)),
        },
        Err(error) => {
            remarks.push(format!("no plan is shown: {error}"));
            PlanSection::default()
        }
    }
}

fn modes(plan: &Plan) -> Table {
    let row = |(mode, planned): (&Mode, &ModePlan)| {
        vec![
            mode.name().to_owned(),
            format!("{:.0}", planned.images_per_second),
            planned.encoders.to_string(),
            format!("{:.1}", planned.hours),
            dollars(planned.cost),
            planned.failures.map_or_else(|| "unknown".into(), |_| dollars(planned.expected_cost)),
        ]
    };
    Table {
        title: format!("Planned. {}", plan.reason),
        head: ["mode", "images/s", "encoding GPUs", "hours", "cost", "with failures"]
            .map(str::to_owned)
            .into(),
        rows: plan.modes.iter().map(row).collect(),
    }
}
