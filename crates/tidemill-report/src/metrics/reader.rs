//! The numbers and charts of a run.

use std::io::BufRead;

use super::charts::Charts;
use super::line::{Communication, StepLine};
use super::steps::{Event, read_steps};
use crate::report::{Chart, Mark};

/// What the file has.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Charts of the numbers.
    pub charts: Vec<Chart>,
    /// Where phases begin.
    pub marks: Vec<Mark>,
    /// The last step.
    pub last_step: u64,
    /// Images trained on.
    pub samples: u64,
    /// The last loss.
    pub loss: Option<f64>,
    /// The last validation loss.
    pub validation_loss: Option<f64>,
    /// Ranks.
    pub ranks: usize,
    /// Seconds of all steps, by their rate.
    pub seconds: f64,
    /// Seconds of a step in the last phase.
    pub step_seconds: f64,
    /// Seconds in which all ranks waited.
    pub waiting: Waiting,
    /// Lines that could not be used, and why.
    pub remarks: Vec<String>,
}

/// Seconds in which steps did not compute, by what they waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Waiting {
    /// The next batch.
    pub data: f64,
    /// Slower ranks.
    pub ranks: f64,
    /// Gradients and weights on their way between ranks.
    pub communication: f64,
}

/// Reads the lines of one run; of several in one file, the last one's.
pub fn read_metrics(lines: impl BufRead) -> Metrics {
    let (mut metrics, mut charts) = (Metrics::default(), Charts::new());
    let (mut last, mut phase_steps): (Option<StepLine>, u32) = (None, 0);
    let remarks = read_steps(lines, |event| match event {
        Event::NewRun => (metrics, charts, last) = (Metrics::default(), Charts::new(), None),
        Event::Step(step) => {
            if last.as_ref().is_none_or(|last| last.phase != step.phase) {
                let label = format!("phase {}: {} px", step.phase + 1, step.resolution);
                metrics.marks.push(Mark { x: step.step as f64, label });
                (metrics.step_seconds, phase_steps) = (0.0, 0);
            }
            phase_steps += 1;
            metrics.add_step(&step, phase_steps);
            charts.add(&step);
            last = Some(*step);
        }
    });
    if let Some(last) = last {
        (metrics.last_step, metrics.loss) = (last.step, last.loss);
        metrics.ranks = last.memory_mib.len();
    }
    (metrics.charts, metrics.remarks) = (charts.finish(), remarks);
    metrics
}

impl Metrics {
    /// Adds a step, the `number`th of its phase.
    fn add_step(&mut self, step: &StepLine, number: u32) {
        // A file may begin in the middle of a run.
        let before = if self.samples == 0 { step.samples - step.samples / step.step } else { self.samples };
        let images = step.samples.saturating_sub(before) as f64;
        let seconds = step.images_per_second.filter(|rate| *rate > 0.0).map_or(0.0, |rate| images / rate);
        self.seconds += seconds;
        let Communication { gradients, weights, ranks } = &step.communication;
        self.waiting.data += seconds * step.data_wait.unwrap_or(0.0);
        self.waiting.ranks += ranks.exposed;
        self.waiting.communication += gradients.exposed + weights.exposed;
        self.step_seconds += (seconds - self.step_seconds) / f64::from(number);
        self.samples = step.samples;
        self.validation_loss = step.validation_loss.or(self.validation_loss);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(step: u64, loss: f64) -> String {
        format!(
            "{{\"step\":{step},\"phase\":{},\"resolution\":64,\"samples\":{},\"loss\":{loss},\
             \"images_per_second\":10.0,\"data_wait\":0.0,\"memory_mib\":[1,2],\"loss_by_timestep\":[null,0.5]}}\n",
            u64::from(step > 3),
            8 * step
        )
    }

    #[test]
    fn lines_become_charts_and_phases_marks() {
        let text: String = (1..=5).map(|step| line(step, 1.0 / step as f64)).collect();
        let metrics = read_metrics(text.as_bytes());
        assert_eq!((metrics.last_step, metrics.samples, metrics.ranks), (5, 40, 2));
        assert!((metrics.seconds - 4.0).abs() < 1e-9 && (metrics.step_seconds - 0.8).abs() < 1e-9);
        let ids: Vec<&str> = metrics.charts.iter().map(|chart| chart.id.as_str()).collect();
        assert_eq!(ids, ["loss", "loss-by-timestep", "images", "waiting", "memory"]);
        assert_eq!(metrics.charts[0].lines[0].y, [1.0, 0.5, 0.333333, 0.25, 0.2]);
        let names: Vec<&str> = metrics.charts[4].lines.iter().map(|line| line.name.as_str()).collect();
        assert_eq!(names, ["rank 0", "rank 1"]);
        let marks: Vec<(f64, &str)> =
            metrics.marks.iter().map(|mark| (mark.x, mark.label.as_str())).collect();
        assert_eq!(marks, [(1.0, "phase 1: 64 px"), (4.0, "phase 2: 64 px")]);
        assert!(metrics.remarks.is_empty());
    }

    #[test]
    fn cut_and_mixed_lines_are_told() {
        let text = line(1, 1.0) + &line(2, 1.0) + &line(1, 7.0) + "{\"step\":2,\"lo\n" + "\n";
        let metrics = read_metrics(text.as_bytes());
        assert_eq!((metrics.last_step, metrics.loss), (1, Some(7.0)));
        assert!(metrics.remarks[0].ends_with("no metrics: 2") && metrics.remarks[1].contains("of 2 runs"));
        assert_eq!(read_metrics("".as_bytes()).last_step, 0);
        let rolled_back = line(1, 1.0) + &line(2, 2.0) + &line(3, 3.0) + &line(2, 9.0) + &line(4, 4.0);
        let metrics = read_metrics(rolled_back.as_bytes());
        assert_eq!(metrics.charts[0].lines[0].y, [1.0, 2.0, 3.0, 4.0]);
        assert!(metrics.remarks[0].contains("after a rollback: 1"), "{:?}", metrics.remarks);
    }
}
