//! A number of workers in the run file, or a range of numbers.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::engine::machine_resources::resolve_threads;

/// A number of workers, or a range such as `"2..8"` (both ends included).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkerCount {
    min: usize,
    max: usize,
}

impl WorkerCount {
    /// Exactly this many workers.
    pub const fn fixed(workers: usize) -> Self {
        Self { min: workers, max: workers }
    }

    /// The numbers of workers there may be, where 0 means one per core.
    pub fn resolve_range(self) -> RangeInclusive<usize> {
        resolve_threads(self.min)..=resolve_threads(self.max)
    }

    /// The fewest workers there may be, as the run file has it.
    pub fn min(self) -> usize {
        self.min
    }

    /// The most workers there may be, as the run file has it.
    pub fn max(self) -> usize {
        self.max
    }
}

impl FromStr for WorkerCount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("\"{text}\" is not a number of workers; give a number, or a range such as \"2..8\"");
        let (min, max) = text.split_once("..").ok_or_else(wrong)?;
        let number = |text: &str| text.trim().parse::<usize>().map_err(|_| wrong());
        match (number(min)?, number(max)?) {
            (min, max) if (1..=max).contains(&min) => Ok(Self { min, max }),
            _ => Err(format!(
                "\"{text}\" is not a range; a range starts at 1 or more and does not end below its start"
            )),
        }
    }
}

impl fmt::Display for WorkerCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.min, self.max)
    }
}

impl Serialize for WorkerCount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.min == self.max {
            true => serializer.serialize_u64(self.min as u64),
            false => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for WorkerCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberOrRange;
        impl Visitor<'_> for NumberOrRange {
            type Value = WorkerCount;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of workers, or a range such as \"2..8\"")
            }

            fn visit_i64<E: de::Error>(self, n: i64) -> Result<WorkerCount, E> {
                let n = usize::try_from(n).map_err(|_| E::invalid_value(de::Unexpected::Signed(n), &self))?;
                Ok(WorkerCount::fixed(n))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<WorkerCount, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(NumberOrRange)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(value: &str) -> Result<RangeInclusive<usize>, String> {
        #[derive(Deserialize)]
        struct Section {
            workers: WorkerCount,
        }
        let section: Result<Section, _> = toml::from_str(&format!("workers = {value}"));
        section
            .map(|section| section.workers.resolve_range())
            .map_err(|error: toml::de::Error| error.message().to_string())
    }

    #[test]
    fn worker_count_is_a_number_or_a_range() {
        assert_eq!(parse("3"), Ok(3..=3));
        assert_eq!(parse("0"), Ok(resolve_threads(0)..=resolve_threads(0)));
        assert_eq!(parse("'2..8'"), Ok(2..=8));
        assert_eq!(parse("' 4 .. 4 '"), Ok(4..=4));
        for (value, part) in [
            ("-1", "expected a number of workers"),
            ("1.5", "expected a number of workers"),
            ("'many'", "\"many\" is not a number"),
            ("'2..'", "\"2..\" is not a number"),
            ("'0..4'", "starts at 1 or more"),
            ("'8..2'", "does not end below its start"),
        ] {
            let message = parse(value).unwrap_err();
            assert!(message.contains(part), "{value}: {message}");
        }
    }
}
