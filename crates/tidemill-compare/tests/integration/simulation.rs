//! Simulated studies with known effects of prompts and raters: do the intervals cover the truth as
//! often as they say?

use rand::seq::index::sample;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tidemill_compare::statistics::{
    ClusterBootstrap, Outcome, Preference, TieRule, Vote, estimate_preference,
};

const STUDIES: usize = 2000;

/// Always the same studies: with new ones, a share of 95 % would now and then miss its bounds.
const SEED: u64 = 2026;

/// A study and its effects, on the logarithmic scale of odds.
struct Simulation {
    prompts: usize,
    raters: usize,
    /// Judgements of each comparison.
    judgements: usize,
    /// The preference for the first model.
    mean: f64,
    /// How much it varies between prompts.
    prompt_effect: f64,
    /// How much it varies between raters.
    rater_effect: f64,
    /// The share of ties.
    ties: f64,
}

impl Simulation {
    fn draw(&self, random: &mut impl Rng) -> Vec<Vote> {
        let mut effects = |count: usize, scale: f64| -> Vec<f64> {
            (0..count).map(|_| scale * draw_normal(random)).collect()
        };
        let prompts = effects(self.prompts, self.prompt_effect);
        let raters = effects(self.raters, self.rater_effect);
        let mut votes = Vec::new();
        for (prompt, prompt_effect) in prompts.iter().enumerate() {
            for rater in sample(random, self.raters, self.judgements) {
                let probability = logistic(self.mean + prompt_effect + raters[rater]);
                let outcome = match random.random::<f64>() {
                    _ if random.random::<f64>() < self.ties => Outcome::Tie,
                    draw if draw < probability => Outcome::First,
                    _ => Outcome::Second,
                };
                votes.push(Vote { prompt, rater, comparison: prompt, models: (0, 1), outcome });
            }
        }
        votes
    }

    /// The share that prefers the first model, over all prompts and raters there could be.
    fn truth(&self) -> f64 {
        let scale = self.prompt_effect.hypot(self.rater_effect);
        // The trapezoidal rule over a normal distribution is exact to many digits.
        let points = (-800..=800).map(|i| f64::from(i) / 100.0);
        let weighted = points.map(|z| ((-z * z / 2.0).exp(), logistic(self.mean + scale * z)));
        let (weights, sum) = weighted.fold((0.0, 0.0), |(w, s), (weight, p)| (w + weight, s + weight * p));
        (1.0 - self.ties) * sum / weights + self.ties / 2.0
    }

    /// The shares of studies whose interval covers the truth: by prompts and raters, and as if
    /// judgements were independent.
    fn coverage(&self, stream: u64) -> (f64, f64) {
        let mut random = ChaCha8Rng::seed_from_u64(SEED);
        random.set_stream(stream);
        let truth = self.truth();
        let covers = |(low, high): (f64, f64)| usize::from(low <= truth && truth <= high);
        let (mut ours, mut naive) = (0, 0);
        for study in 0..STUDIES {
            let bootstrap = ClusterBootstrap { replicates: 300, seed: study as u64 };
            let Preference { interval, wilson, .. } =
                estimate_preference(&self.draw(&mut random), TieRule::Half, &bootstrap).unwrap();
            ours += covers(interval);
            naive += covers(wilson);
        }
        (ours as f64 / STUDIES as f64, naive as f64 / STUDIES as f64)
    }
}

fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Box and Muller's method.
fn draw_normal(random: &mut impl Rng) -> f64 {
    let (u, v): (f64, f64) = (1.0 - random.random::<f64>(), random.random());
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

/// As DrawBench and twenty raters; many prompts; few raters with strong opinions; no effects at all.
#[test]
fn intervals_cover_the_truth_where_naive_ones_fail() {
    let study = |prompts, raters, judgements, mean, prompt_effect, rater_effect, ties| Simulation {
        prompts,
        raters,
        judgements,
        mean,
        prompt_effect,
        rater_effect,
        ties,
    };
    let cases = [
        (study(200, 20, 5, 0.2, 1.0, 0.5, 0.0), true),
        (study(60, 30, 10, 0.0, 1.5, 0.3, 0.2), true),
        (study(200, 12, 4, 0.4, 0.5, 1.0, 0.1), true),
        (study(100, 20, 3, 0.3, 0.0, 0.0, 0.0), false),
    ];
    for (stream, (simulation, has_effects)) in cases.iter().enumerate() {
        let (ours, naive) = simulation.coverage(stream as u64);
        println!("case {stream}: {ours:.4} covered by prompts and raters, {naive:.4} if independent");
        assert!((0.93..=0.97).contains(&ours), "case {stream}: {ours}");
        assert_eq!(naive < 0.9, *has_effects, "case {stream}: {naive}");
    }
}
