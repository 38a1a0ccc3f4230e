//! Any number of points as a few hundred means, in one pass and bounded memory.

use crate::report::Line;

/// A line has between this many points and twice as many.
const POINTS: usize = 500;

/// Means of neighbouring points. Once there are too many, each two become one.
#[derive(Clone, Debug, Default)]
pub struct Downsampler {
    means: Vec<Mean>,
    /// The points of each full mean; a power of two.
    points_per_mean: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    x: f64,
    y: f64,
    count: u32,
}

impl Mean {
    fn merge(self, other: Self) -> Self {
        Self { x: self.x + other.x, y: self.y + other.y, count: self.count + other.count }
    }
}

impl Downsampler {
    /// Adds a point. x ascends. Values that are not finite are left out.
    pub fn add(&mut self, x: f64, y: f64) {
        if !y.is_finite() {
            return;
        }
        let point = Mean { x, y, count: 1 };
        let size = self.points_per_mean.max(1);
        match self.means.last_mut() {
            Some(last) if last.count < size => *last = last.merge(point),
            _ => self.means.push(point),
        }
        if self.means.len() == 2 * POINTS && self.means.last().is_some_and(|last| last.count == size) {
            self.means = self
                .means
                .chunks(2)
                .map(|pair| pair.iter().fold(Mean::default(), |a, b| a.merge(*b)))
                .collect();
            self.points_per_mean = 2 * size;
        }
    }

    /// The means as a line.
    pub fn to_line(&self, name: &str) -> Line {
        let means =
            |of: fn(&Mean) -> f64| self.means.iter().map(move |mean| of(mean) / f64::from(mean.count));
        // Steps to a tenth: neighbours must not become one.
        let x = means(|mean| mean.x).map(|x| (10.0 * x).round() / 10.0).collect();
        Line { name: name.to_owned(), x, y: means(|mean| mean.y).map(significant).collect() }
    }
}

/// Six digits, which are more than a chart shows: a page of many lines stays small.
fn significant(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_points_stay_and_many_become_means() {
        let line = |count: u32| {
            let mut points = Downsampler::default();
            (1..=count).for_each(|x| points.add(f64::from(x), 2.0 * f64::from(x)));
            points.to_line("a")
        };
        let few = line(700);
        assert_eq!((few.x.len(), few.x[699], few.y[699]), (700, 700.0, 1400.0));
        for count in [1000, 1001, 12_345, 1_000_000] {
            let Line { x, y, .. } = line(count);
            assert!((POINTS..2 * POINTS + 1).contains(&x.len()), "{count}: {}", x.len());
            assert!(x.windows(2).all(|pair| pair[0] < pair[1]), "{count}");
            // Means of a straight line are on it.
            assert!(x.iter().zip(&y).all(|(x, y)| (2.0 * x / y - 1.0).abs() < 1e-4), "{count}");
        }
    }

    #[test]
    fn what_is_not_finite_is_left_out() {
        let mut points = Downsampler::default();
        [1.0, f64::NAN, 3.0, f64::INFINITY].iter().enumerate().for_each(|(x, y)| points.add(x as f64, *y));
        assert_eq!(points.to_line("a").y, [1.0, 3.0]);
    }
}
