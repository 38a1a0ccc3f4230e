//! A plan as text for people.

use bytesize::ByteSize;
use tidemill_plan::modes::{Mode, ModePlan};
use tidemill_plan::plan::StepPlan;
use tidemill_plan::{Plan, dollars};

/// The plan as aligned tables.
pub fn to_table(plan: &Plan) -> String {
    let mut parts = vec![machine_lines(plan), mode_table(plan)];
    parts.extend(plan.missing.iter().map(|(mode, why)| format!("{}: {why}", mode.name())));
    parts.push(step_table(plan));
    parts.extend(plan.remarks.iter().map(|remark| format!("Note: {remark}.")));
    parts.push(storage_table(plan));
    parts.extend(encoder_table(plan));
    parts.extend(failure_lines(plan));
    parts.push(format!("Recommended: {}", plan.reason));
    parts.join("\n\n")
}

fn machine_lines(plan: &Plan) -> String {
    let lines = plan.machines.iter().map(|machine| {
        let nodes =
            machine.nodes.map_or_else(|| "as many as needed of".to_owned(), |nodes| format!("{nodes} x"));
        format!(
            "{}: {nodes} {} ({}); prices: {}; rates: {}",
            machine.role, machine.node, machine.gpu, machine.price_source, machine.rate_source
        )
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn mode_table(plan: &Plan) -> String {
    let mut rows =
        vec![row(["mode", "img/s", "limit", "encoding GPUs", "hours", "$/hour", "cost", "with failures"])];
    for (mode, planned) in &plan.modes {
        rows.push(row([
            mode.name(),
            &format!("{:.0}", planned.images_per_second),
            limit_name(planned),
            &planned.encoders.to_string(),
            &format!("{:.1}", planned.hours),
            &format!("{:.2}", planned.hourly_cost),
            &dollars(planned.cost),
            &planned.failures.map_or_else(|| "unknown".into(), |_| dollars(planned.expected_cost)),
        ]));
    }
    let mut text = align(&rows);
    if let Some(preprocess) = plan.modes.get(&Mode::Offline).and_then(|offline| offline.preprocess) {
        text += &format!(
            "\nOffline includes encoding: {:.0} pairs/s on {} nodes, {:.1} hours before training, {}.",
            preprocess.rows_per_second,
            preprocess.nodes,
            preprocess.hours,
            dollars(preprocess.cost)
        );
    }
    text
}

fn limit_name(planned: &ModePlan) -> &'static str {
    use tidemill_plan::modes::Limit;
    match planned.limit {
        Limit::Trainers => "trainers",
        Limit::Encoders => "encoders",
        Limit::Shared => "trainers encode",
    }
}

fn step_table(plan: &Plan) -> String {
    let mut rows = vec![row([
        "px",
        "batch",
        "micro-batch",
        "TFLOP/image",
        "TFLOP/s",
        "sent/rank",
        "state",
        "per image",
        "needed",
        "largest",
    ])];
    let bytes = |bytes: u64| ByteSize(bytes).to_string();
    let optional = |number: Option<String>| number.unwrap_or_else(|| "unknown".into());
    for StepPlan { resolution, global_batch, micro_batch, tflop_per_image, tflops, traffic, memory } in
        &plan.steps
    {
        rows.push(row([
            &resolution.to_string(),
            &global_batch.to_string(),
            &micro_batch.to_string(),
            &format!("{tflop_per_image:.3}"),
            &optional(tflops.map(|tflops| format!("{tflops:.0}"))),
            &bytes(traffic.gradients + traffic.weights),
            &bytes(memory.state_bytes),
            &optional(memory.activation_bytes_per_image.map(bytes)),
            &optional(memory.needed_bytes.map(bytes)),
            &optional(memory.largest_micro_batch.map(|images| images.to_string())),
        ]));
    }
    format!("A step, and the memory of each GPU:\n{}", align(&rows))
}

fn storage_table(plan: &Plan) -> String {
    let mut rows = vec![row(["captions as", "dataset", "a month"])];
    for storage in &plan.storage {
        let name = serde_json::to_value(storage.embeddings).unwrap_or_default();
        rows.push(row([
            name.as_str().unwrap_or_default(),
            &ByteSize(storage.bytes).to_string(),
            &dollars(storage.monthly_cost),
        ]));
    }
    format!("Storage of the latent dataset:\n{}", align(&rows))
}

fn encoder_table(plan: &Plan) -> Option<String> {
    if plan.encoder_types.is_empty() {
        return None;
    }
    let mut rows = vec![row(["node type", "GPU", "px", "nodes", "$/hour"])];
    for choice in &plan.encoder_types {
        rows.push(row([
            &choice.node,
            &choice.gpu,
            &choice.resolution.to_string(),
            &choice.nodes.to_string(),
            &choice.hourly_cost.map_or_else(|| "unknown".into(), |cost| format!("{cost:.2}")),
        ]));
    }
    Some(format!("Nodes that encode as fast as the trainers train:\n{}", align(&rows)))
}

fn failure_lines(plan: &Plan) -> Option<String> {
    let recommended = plan.modes.get(&plan.recommended)?;
    let failures = recommended.failures?;
    let mut text = format!(
        "Failures: {:.1} expected, every {:.1} hours; a checkpoint every {:.0} minutes loses the least: {:.1} hours in \
         place of {:.1}.",
        failures.failures,
        failures.hours_between_failures,
        failures.checkpoint_minutes,
        failures.hours,
        recommended.hours
    );
    if plan.prices.len() > 1 {
        let prices = plan.prices.iter().map(|(name, price)| {
            format!("{name} {} in {:.1} hours", dollars(price.expected_cost), price.hours)
        });
        text += &format!("\nBy price, with failures: {}.", prices.collect::<Vec<_>>().join(", "));
    }
    Some(text)
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).into()
}

/// Rows with aligned columns: the first to the left, the others to the right.
fn align(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let lines = rows.iter().map(|row| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::{align, row};

    #[test]
    fn columns_are_aligned() {
        let text = align(&[row(["mode", "hours"]), row(["offline", "7.5"])]);
        assert_eq!(text, "mode     hours\noffline    7.5");
    }
}
