//! A histogram with fixed edges, and its bars as text.

use serde::Serialize;

/// Characters of the longest bar.
const WIDTH: usize = 40;

/// Counts of values between edges. Values below the first edge count to the first bar; values from
/// the last edge on count to the last bar.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Histogram {
    name: &'static str,
    /// Start of each bar; the last one has no end.
    edges: Vec<f64>,
    counts: Vec<u64>,
    min: Option<f64>,
    max: Option<f64>,
    sum: f64,
}

impl Histogram {
    /// Creates an empty histogram. The edges must ascend.
    pub fn new(name: &'static str, edges: &[f64]) -> Self {
        Self { name, edges: edges.to_vec(), counts: vec![0; edges.len()], min: None, max: None, sum: 0.0 }
    }

    /// Counts a value.
    pub fn add(&mut self, value: f64) {
        let bar = self.edges.partition_point(|edge| *edge <= value).saturating_sub(1);
        if let Some(count) = self.counts.get_mut(bar) {
            *count += 1;
        }
        self.min = Some(self.min.map_or(value, |min| min.min(value)));
        self.max = Some(self.max.map_or(value, |max| max.max(value)));
        self.sum += value;
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Mean of the values; `None` if there are none.
    pub fn mean(&self) -> Option<f64> {
        (self.count() > 0).then(|| self.sum / self.count() as f64)
    }

    /// Lines of text: a heading, and a line for each bar from the first to the last that is not
    /// empty.
    pub fn bars(&self) -> Vec<String> {
        let (Some(min), Some(mean), Some(max)) = (self.min, self.mean(), self.max) else {
            return vec![format!("{}: no values", self.name)];
        };
        let round = |value: f64| (value * 100.0).round() / 100.0;
        let (min, mean, max) = (round(min), round(mean), round(max));
        let heading = format!("{}: {} rows, mean {mean}, from {min} to {max}", self.name, self.count());
        let filled = |count: &u64| *count > 0;
        let first = self.counts.iter().position(filled).unwrap_or(0);
        let last = self.counts.iter().rposition(filled).unwrap_or(0);
        let most = self.counts.iter().copied().max().unwrap_or(1).max(1);
        let labels: Vec<String> = (first..=last).map(|bar| self.label(bar)).collect();
        let width = labels.iter().map(String::len).max().unwrap_or(0);
        let bar = |(label, count): (&String, &u64)| {
            let share = 100.0 * *count as f64 / self.count() as f64;
            let line = format!("  {label:>width$}  {:WIDTH$}  {count} ({share:.1} %)", blocks(*count, most));
            line.trim_end().to_owned()
        };
        std::iter::once(heading).chain(labels.iter().zip(&self.counts[first..=last]).map(bar)).collect()
    }

    fn label(&self, bar: usize) -> String {
        match self.edges.get(bar + 1) {
            Some(end) => format!("{} - {end}", self.edges[bar]),
            None => format!("{} and up", self.edges[bar]),
        }
    }
}

/// A bar in eighths of a character. Every count above 0 is visible.
fn blocks(count: u64, most: u64) -> String {
    let eighths = (count as f64 / most as f64 * 8.0 * WIDTH as f64).round() as usize;
    let eighths = if count > 0 { eighths.max(1) } else { 0 };
    let rest = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8];
    "█".repeat(eighths / 8) + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_show_counts_between_edges() {
        let mut histogram = Histogram::new("side", &[0.0, 10.0, 20.0, 30.0, 40.0]);
        for value in [10.0, 19.9, 15.0, 10.5, 30.0, -3.0] {
            histogram.add(value);
        }
        assert_eq!(
            histogram.bars(),
            [
                "side: 6 rows, mean 13.73, from -3 to 30",
                "   0 - 10  ██████████                                1 (16.7 %)",
                "  10 - 20  ████████████████████████████████████████  4 (66.7 %)",
                "  20 - 30                                            0 (0.0 %)",
                "  30 - 40  ██████████                                1 (16.7 %)",
            ]
        );
        histogram.add(1e9);
        assert_eq!(
            histogram.bars().last().unwrap(),
            "  40 and up  ██████████                                1 (14.3 %)"
        );
        assert_eq!(Histogram::new("side", &[0.0]).bars(), ["side: no values"]);
    }

    #[test]
    fn single_row_among_many_is_visible() {
        assert_eq!((blocks(0, 1000).as_str(), blocks(1, 1_000_000).as_str()), ("", "▏"));
        assert_eq!(blocks(7, 7).chars().count(), WIDTH);
    }
}
