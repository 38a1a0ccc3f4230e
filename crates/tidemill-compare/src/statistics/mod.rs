//! The statistics of judgements. Judgements of one prompt resemble each other, and so do those of
//! one rater, so a judgement counts for less than an independent one.
//!
//! - `vote`: a judgement as the statistics see it, and what a tie counts.
//! - `cluster_bootstrap`: the standard error of any statistic, by prompts and raters.
//! - `preference`: the share that prefers a model, with its interval.
//! - `wilson`: Wilson's interval of a share.
//! - `bradley_terry`: strengths of more than two models.
//! - `agreement`: Krippendorff's alpha.
//! - `power`: how many more judgements would show a difference.

mod agreement;
mod bradley_terry;
mod cluster_bootstrap;
mod power;
mod preference;
mod vote;
mod wilson;

pub use self::agreement::krippendorff_alpha;
pub use self::bradley_terry::{Strength, fit_strengths, strengths_with_intervals};
pub use self::cluster_bootstrap::{ClusterBootstrap, StandardError};
pub use self::power::{POWER, judgements_needed};
pub use self::preference::{Preference, estimate_preference};
pub use self::vote::{Outcome, TieRule, Vote};
pub use self::wilson::{CONFIDENCE, wilson_interval};
