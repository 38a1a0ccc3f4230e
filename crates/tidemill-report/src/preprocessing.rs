//! Charts of preprocessing, from `preprocess.jsonl`: what stages, the machine and its GPUs did over
//! time.

use std::io::BufRead;

use serde::Deserialize;
use tidemill_telemetry::{GpuSample, HostSample, Sample};

use crate::metrics::Downsampler;
use crate::report::{Chart, Line};

const GROUP: &str = "Preprocessing";

/// A line of the file. Fields that are missing are 0.
#[derive(Default, Deserialize)]
#[serde(default)]
struct LogLine {
    /// Since the process started.
    seconds: f64,
    stages: Vec<StageLine>,
    telemetry: Vec<Sample>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct StageLine {
    stage: String,
    threads: f64,
    rows_per_second: f64,
    utilisation: f64,
}

/// The points of one chart, by the names of its lines.
#[derive(Default)]
struct Lines(Vec<(String, Downsampler)>);

impl Lines {
    fn add(&mut self, name: &str, x: f64, y: f64) {
        let index = self.0.iter().position(|(known, _)| known == name).unwrap_or_else(|| {
            self.0.push((name.to_owned(), Downsampler::default()));
            self.0.len() - 1
        });
        self.0[index].1.add(x, y);
    }

    /// A chart over the time of all processes together.
    fn into_chart(self, id: &str, title: &str, unit: TimeUnit) -> Option<Chart> {
        let to_line = |(name, line): (String, Downsampler)| {
            let Line { name, x, y } = line.to_line(&name);
            // Three decimals keep neighbours apart.
            Line { name, x: x.into_iter().map(|x| (1e3 * x / unit.seconds).round() / 1e3).collect(), y }
        };
        let lines: Vec<Line> = self.0.into_iter().map(to_line).collect();
        (!lines.is_empty()).then(|| Chart {
            id: id.to_owned(),
            group: GROUP.to_owned(),
            title: title.to_owned(),
            x_name: unit.name.to_owned(),
            lines,
            ..Chart::default()
        })
    }
}

/// A unit in which some time is a number that is easy to read.
#[derive(Clone, Copy)]
struct TimeUnit {
    name: &'static str,
    seconds: f64,
}

impl TimeUnit {
    fn of(seconds: f64) -> Self {
        match seconds {
            s if s < 600.0 => Self { name: "s", seconds: 1.0 },
            s if s < 36_000.0 => Self { name: "min", seconds: 60.0 },
            _ => Self { name: "h", seconds: 3600.0 },
        }
    }
}

/// The charts of all processes that have preprocessed, one after the other. Lines that are cut are
/// left out.
pub fn read_preprocessing_charts(lines: impl BufRead) -> Vec<Chart> {
    let [mut rates, mut busy, mut threads, mut gpus, mut power, mut machine] =
        std::array::from_fn::<Lines, 6, _>(|_| Lines::default());
    let (mut before, mut last) = (0.0, 0.0);
    for line in lines.split(b'\n').map_while(Result::ok) {
        let Ok(line) = serde_json::from_slice::<LogLine>(&line) else { continue };
        if line.seconds < last {
            // Another process.
            before += last;
        }
        last = line.seconds;
        let x = before + last;
        for stage in &line.stages {
            rates.add(&stage.stage, x, stage.rows_per_second);
            busy.add(&stage.stage, x, stage.utilisation);
            threads.add(&stage.stage, x, stage.threads);
        }
        for (i, gpu) in line.telemetry.iter().enumerate().filter_map(|(i, one)| Some((i, one.gpu?))) {
            let GpuSample { utilization, power_w, .. } = gpu;
            gpus.add(&format!("GPU {i}"), x, utilization);
            power.add(&format!("GPU {i}"), x, power_w);
        }
        if let Some(Sample { host: HostSample { cpu, .. }, .. }) = line.telemetry.first() {
            machine.add("CPU", x, *cpu);
        }
    }
    let unit = TimeUnit::of(before + last);
    [
        (rates, "preprocess-rate", "Rows per second of each stage"),
        (busy, "preprocess-stages", "Utilization of each stage's threads"),
        (threads, "preprocess-threads", "Threads of each stage"),
        (gpus, "preprocess-gpus", "Utilization of the GPUs that encode"),
        (power, "preprocess-power", "Power of the GPUs that encode, W"),
        (machine, "preprocess-machine", "CPU of the machine, share of the cores"),
    ]
    .into_iter()
    .filter_map(|(lines, id, title)| lines.into_chart(id, title, unit))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_follow_each_other_and_cut_lines_are_left_out() {
        let line = |seconds: f64, rate: f64| {
            format!(
                "{{\"seconds\":{seconds},\"stages\":[{{\"stage\":\"encode\",\"threads\":1,\
                 \"rows_per_second\":{rate},\"utilisation\":0.9}}],\"telemetry\":[{{\"host\":{{\"cpu\":0.5}}}}]}}\n"
            )
        };
        let text = line(5.0, 10.0) + &line(600.0, 20.0) + "{\"seconds\": 61" + "\n" + &line(5.0, 30.0);
        let charts = read_preprocessing_charts(text.as_bytes());
        let ids: Vec<&str> = charts.iter().map(|chart| chart.id.as_str()).collect();
        assert_eq!(ids, ["preprocess-rate", "preprocess-stages", "preprocess-threads", "preprocess-machine"]);
        let rates = &charts[0].lines[0];
        assert_eq!((charts[0].x_name.as_str(), rates.name.as_str()), ("min", "encode"));
        assert_eq!((&rates.x, &rates.y), (&vec![0.083, 10.0, 10.083], &vec![10.0, 20.0, 30.0]));
        assert!(read_preprocessing_charts("".as_bytes()).is_empty());
    }
}
