//! The results for a terminal.

use super::summary::{PairSummary, StudySummary};

/// The results as lines of text.
pub fn to_table(summary: &StudySummary) -> String {
    let mut lines = Vec::new();
    for question in &summary.questions {
        lines.push(format!("{}: {}", question.name, question.text));
        if question.pairs.is_empty() {
            lines.push("  no judgements yet".into());
        }
        for pair in &question.pairs {
            lines.push(format!("  {}", describe_pair(pair)));
            for (category, pair) in &pair.categories {
                lines.push(format!("    {category}: {}", describe_share(pair)));
            }
            lines.push(describe_power(pair, summary.difference));
        }
        for model in &question.strengths {
            let shown = format!("{:.2} ({:.2} to {:.2})", model.strength, model.low, model.high);
            lines.push(format!("  strength of {}: {shown}", model.model));
        }
        if let Some(agreement) = question.agreement {
            lines.push(format!("  agreement between raters (Krippendorff's alpha): {agreement:.2}"));
        }
    }
    let checks = summary.checks;
    lines.push(format!(
        "{} raters, {} of {} attention checks failed, {} raters do not count",
        summary.raters,
        checks.failed,
        checks.answers,
        summary.excluded_raters.len()
    ));
    lines.join("\n")
}

fn describe_pair(pair: &PairSummary) -> String {
    let [first, second] = &pair.models;
    format!("{first} over {second}: {}", describe_share(pair))
}

fn describe_share(pair: &PairSummary) -> String {
    let percent = |share: f64| 100.0 * share;
    format!(
        "{:.1} % ({:.1} to {:.1}; if independent {:.1} to {:.1}), {} judgements, {} ties",
        percent(pair.preference),
        percent(pair.low),
        percent(pair.high),
        percent(pair.wilson.0),
        percent(pair.wilson.1),
        pair.judgements,
        pair.ties
    )
}

fn describe_power(pair: &PairSummary, difference: f64) -> String {
    let share = 100.0 * (0.5 + difference);
    match pair.more_judgements {
        0 => format!("    a preference of {share:.0} % would show"),
        more => format!("    {more} more judgements until a preference of {share:.0} % would show"),
    }
}
