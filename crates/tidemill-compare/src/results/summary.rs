//! The statistics of each question.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::votes::count_votes;
use crate::database::Database;
use crate::error::Result;
use crate::statistics::{
    ClusterBootstrap, POWER, TieRule, Vote, estimate_preference, judgements_needed, krippendorff_alpha,
    strengths_with_intervals,
};

/// What is computed besides the preferences.
#[derive(Debug, Clone, Copy)]
pub struct SummaryOptions {
    /// The difference from one half that should show.
    pub difference: f64,
    /// How standard errors are drawn.
    pub bootstrap: ClusterBootstrap,
}

/// The results of a study.
#[derive(Debug, Clone, Serialize)]
pub struct StudySummary {
    /// The questions.
    pub questions: Vec<QuestionSummary>,
    /// Raters with at least one judgement.
    pub raters: usize,
    /// Raters who failed the attention checks and do not count, by their numbers.
    pub excluded_raters: Vec<i64>,
    /// Attention checks.
    pub checks: CheckSummary,
    /// The difference that [`PairSummary::more_judgements`] is about.
    pub difference: f64,
}

/// Attention checks of all raters.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct CheckSummary {
    /// Answers to attention checks.
    pub answers: usize,
    /// Wrong answers to attention checks.
    pub failed: usize,
}

/// The results of a question.
#[derive(Debug, Clone, Serialize)]
pub struct QuestionSummary {
    /// The question's name.
    pub name: String,
    /// What raters read.
    pub text: String,
    /// Each two models with a judgement.
    pub pairs: Vec<PairSummary>,
    /// Krippendorff's alpha, if there is anything to agree on.
    pub agreement: Option<f64>,
    /// The models' strengths, if there are more than two.
    pub strengths: Vec<ModelStrength>,
}

/// How often one model is preferred over another.
#[derive(Debug, Clone, Serialize)]
pub struct PairSummary {
    /// The two models.
    pub models: [String; 2],
    /// The share that prefers the first one.
    pub preference: f64,
    /// Lower end of the interval of 95 %, which is by prompts and raters.
    pub low: f64,
    /// Upper end of the interval of 95 %.
    pub high: f64,
    /// Wilson's interval, as if all judgements were independent.
    pub wilson: (f64, f64),
    /// Judgements that count.
    pub judgements: usize,
    /// Ties among all judgements.
    pub ties: usize,
    /// How many times the variance is that of independent judgements.
    pub design_effect: f64,
    /// The judgements that are missing until the difference would show with a chance of 80 %.
    pub more_judgements: u64,
    /// The preference in each category of prompts.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub categories: BTreeMap<String, PairSummary>,
}

/// A model's strength among several.
#[derive(Debug, Clone, Serialize)]
pub struct ModelStrength {
    /// The model.
    pub model: String,
    /// Its strength; the odds between two models are the exponential of the difference.
    pub strength: f64,
    /// Lower end of the interval of 95 %.
    pub low: f64,
    /// Upper end of the interval of 95 %.
    pub high: f64,
}

/// Computes the results of a study.
///
/// # Errors
/// If the database fails.
pub fn summarise(database: &Database, options: &SummaryOptions) -> Result<StudySummary> {
    let config = &database.config;
    let contents = database.read_contents()?;
    let rows = database.read_judgements()?;
    let votes = count_votes(&rows, &contents, config.questions.len(), config.max_failed_checks);
    let category_of = |vote: &Vote| contents.prompts[vote.prompt].category.clone();
    let context =
        Context { models: config.model_names(), ties: config.ties, options, category_of: &category_of };
    let questions = config
        .questions
        .iter()
        .zip(&votes.by_question)
        .map(|(question, votes)| context.summarise_question(&question.name, &question.text, votes))
        .collect();
    Ok(StudySummary {
        questions,
        raters: votes.raters,
        excluded_raters: votes.excluded,
        checks: CheckSummary { answers: votes.check_answers, failed: votes.failed_checks },
        difference: options.difference,
    })
}

/// What all questions share.
struct Context<'a> {
    models: Vec<&'a str>,
    ties: TieRule,
    options: &'a SummaryOptions,
    category_of: &'a dyn Fn(&Vote) -> Option<String>,
}

impl Context<'_> {
    fn summarise_question(&self, name: &str, text: &str, votes: &[Vote]) -> QuestionSummary {
        let mut by_pair: BTreeMap<(usize, usize), Vec<Vote>> = BTreeMap::new();
        for vote in votes {
            by_pair.entry(vote.models).or_default().push(*vote);
        }
        QuestionSummary {
            name: name.into(),
            text: text.into(),
            pairs: by_pair.iter().filter_map(|(models, votes)| self.summarise_pair(*models, votes)).collect(),
            agreement: krippendorff_alpha(votes),
            strengths: self.summarise_strengths(votes),
        }
    }

    fn summarise_pair(&self, models: (usize, usize), votes: &[Vote]) -> Option<PairSummary> {
        let mut by_category: BTreeMap<String, Vec<Vote>> = BTreeMap::new();
        for vote in votes {
            if let Some(category) = (self.category_of)(vote) {
                by_category.entry(category).or_default().push(*vote);
            }
        }
        let mut summary = self.summarise_votes(models, votes)?;
        summary.categories = by_category
            .into_iter()
            .filter_map(|(category, votes)| Some((category, self.summarise_votes(models, &votes)?)))
            .collect();
        Some(summary)
    }

    fn summarise_votes(&self, models: (usize, usize), votes: &[Vote]) -> Option<PairSummary> {
        let found = estimate_preference(votes, self.ties, &self.options.bootstrap)?;
        let needed = judgements_needed(self.options.difference, found.judgements as f64 / found.effective);
        Some(PairSummary {
            models: [self.models[models.0].to_owned(), self.models[models.1].to_owned()],
            preference: found.share,
            low: found.interval.0,
            high: found.interval.1,
            wilson: found.wilson,
            judgements: found.judgements,
            ties: found.ties,
            design_effect: found.design_effect,
            more_judgements: needed.saturating_sub(found.judgements as u64),
            categories: BTreeMap::new(),
        })
    }

    fn summarise_strengths(&self, votes: &[Vote]) -> Vec<ModelStrength> {
        if self.models.len() < 3 || votes.is_empty() {
            return Vec::new();
        }
        let strengths =
            strengths_with_intervals(votes, self.models.len(), self.ties, &self.options.bootstrap);
        let named = strengths.into_iter().zip(&self.models).map(|(strength, model)| ModelStrength {
            model: (*model).to_owned(),
            strength: strength.value,
            low: strength.interval.0,
            high: strength.interval.1,
        });
        named.collect()
    }
}

impl StudySummary {
    /// The results as one JSON object. Each question has the numbers of its first two models at the
    /// top, and of each two models in `pairs`.
    pub fn to_json(&self) -> Value {
        let mut questions = Map::new();
        for question in &self.questions {
            let mut object = match question.pairs.first() {
                Some(pair) => json!(pair),
                None => json!({ "preference": null, "low": null, "high": null, "judgements": 0, "ties": 0 }),
            };
            object["agreement"] = json!(question.agreement);
            object["pairs"] = json!(question.pairs);
            object["strengths"] = json!(question.strengths);
            questions.insert(question.name.clone(), object);
        }
        json!({
            "questions": questions,
            "raters": self.raters,
            "excluded_raters": self.excluded_raters,
            "checks": self.checks,
            "difference": self.difference,
            "power": POWER,
        })
    }
}
