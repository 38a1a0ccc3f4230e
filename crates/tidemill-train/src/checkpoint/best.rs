//! The checkpoints that evaluation found best, for `checkpoint.keep_best`. Evaluators write a record
//! per step, `step-00000400.json`, into a folder of theirs. Training only reads them, when it deletes
//! checkpoints.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use tidemill_io::Location;

use super::commit::step_folder;
use crate::Error;
use crate::config::KeepBestConfig;

/// The records of evaluations, and which of their numbers counts.
#[derive(Debug)]
pub struct BestCheckpoints {
    location: Location,
    metric: String,
    count: usize,
}

impl BestCheckpoints {
    /// # Errors
    /// If the URI is not valid.
    pub fn open(config: &KeepBestConfig, output: &Path) -> Result<Self, Error> {
        let default = || output.join("evaluations").display().to_string();
        let location = Location::open(&config.uri.clone().unwrap_or_else(default))?;
        Ok(Self { location, metric: config.metric.clone(), count: config.count })
    }

    /// The best of `steps` among those that have a record.
    ///
    /// # Errors
    /// If the records cannot be read, or none of them has the metric.
    pub fn select(&self, steps: &BTreeSet<u64>) -> Result<Vec<u64>, Error> {
        let (mut values, mut last) = (Vec::new(), None);
        for step in steps {
            let key = format!("{}.json", step_folder(*step));
            let Some(bytes) = self.location.get_if_present(&key)? else { continue };
            let record: Value = serde_json::from_slice(&bytes).unwrap_or_default();
            values.extend(record["metrics"][&self.metric].as_f64().map(|value| (*step, value)));
            last = Some((key, record));
        }
        if let (Some((key, record)), true) = (last, values.is_empty()) {
            let known = record["metrics"].as_object().into_iter().flat_map(|metrics| metrics.keys());
            let known: Vec<&str> = known.map(String::as_str).collect();
            let message = format!(
                "it has no `{}`, by which checkpoint.keep_best chooses, only {}; nothing is deleted",
                self.metric,
                known.join(", ")
            );
            return Err(Error::Checkpoint { path: self.location.uri_of(&key).into(), message });
        }
        Ok(select_best(values, &self.metric, self.count))
    }
}

/// The steps with the best values of a metric, the best first; the later one of two that are equal.
pub fn select_best(mut values: Vec<(u64, f64)>, metric: &str, count: usize) -> Vec<u64> {
    let sign = if is_smaller_better(metric) { 1.0 } else { -1.0 };
    values.retain(|(_, value)| value.is_finite());
    values.sort_by(|a, b| (sign * a.1).total_cmp(&(sign * b.1)).then(b.0.cmp(&a.0)));
    values.into_iter().take(count).map(|(step, _)| step).collect()
}

/// Whether a smaller value of this number of a record is better.
fn is_smaller_better(metric: &str) -> bool {
    ["fid", "kid", "cmmd", "fd_", "validation_"].iter().any(|prefix| metric.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn best_are_the_largest_scores_or_the_smallest_distances() {
        let values = vec![(1, 9.0), (2, 4.0), (3, f64::NAN), (4, 4.0), (5, 30.0)];
        assert_eq!(select_best(values.clone(), "fid", 2), [4, 2]);
        assert_eq!(select_best(values.clone(), "clip_score", 2), [5, 1]);
        assert_eq!(select_best(values, "clip_score", 9), [5, 1, 4, 2]);
    }
}
