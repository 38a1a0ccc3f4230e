//! The study's file.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::statistics::TieRule;

/// The most models of a study.
const MAX_MODELS: usize = 8;

/// A study, as its file describes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StudyConfig {
    /// What raters see as the title. It must not name the models.
    #[serde(default = "default_title")]
    pub title: String,
    /// The models: two or more.
    #[serde(rename = "source", default)]
    pub sources: Vec<SourceConfig>,
    /// The prompts: text, CSV, TSV or Parquet.
    pub prompts: String,
    /// The column of the prompts; none: the first with a usual name.
    #[serde(default)]
    pub prompt_column: Option<String>,
    /// The column of the categories; none: `category`, if there is one.
    #[serde(default)]
    pub category_column: Option<String>,
    /// Use only this many prompts, the first ones.
    #[serde(default)]
    pub limit: Option<usize>,
    /// Pictures per prompt and model.
    #[serde(default = "one")]
    pub images: usize,
    /// Judgements wanted of every two pictures.
    #[serde(default = "three")]
    pub judgements: usize,
    /// The share of a rater's comparisons that are attention checks.
    #[serde(default = "default_checks")]
    pub attention_checks: f64,
    /// A rater who fails more than this share of the attention checks does not count.
    #[serde(default = "default_failures")]
    pub max_failed_checks: f64,
    /// What a tie counts.
    #[serde(default)]
    pub ties: TieRule,
    /// Whether raters may come without a link, under a name of their choice.
    #[serde(default)]
    pub sign_in: bool,
    /// Side of the pictures in pixels; none: that of the smallest picture.
    #[serde(default)]
    pub size: Option<u32>,
    /// The seed of noise and order.
    #[serde(default)]
    pub seed: u64,
    /// What is asked about each two pictures.
    #[serde(rename = "question", default = "default_questions")]
    pub questions: Vec<Question>,
}

/// Where a model's pictures come from: exactly one of `run`, `diffusers` and `folder`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SourceConfig {
    /// The model's name in the results.
    pub name: String,
    /// A run file, whose checkpoint draws.
    pub run: Option<PathBuf>,
    /// The checkpoint's step; none: the newest.
    pub step: Option<u64>,
    /// Overrides of the run file. For a diffusers folder: overrides of a run file's defaults.
    pub set: Vec<String>,
    /// A diffusers folder that draws.
    pub diffusers: Option<PathBuf>,
    /// A folder of pictures, in the order of the prompts, `images` for each.
    pub folder: Option<PathBuf>,
}

/// A question about two pictures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// The question's name in the results.
    pub name: String,
    /// What raters read.
    pub text: String,
}

fn default_title() -> String {
    "Compare two pictures".into()
}

fn one() -> usize {
    1
}

fn three() -> usize {
    3
}

fn default_checks() -> f64 {
    0.05
}

fn default_failures() -> f64 {
    0.25
}

fn default_questions() -> Vec<Question> {
    let question = |name: &str, text: &str| Question { name: name.into(), text: text.into() };
    vec![
        question("quality", "Which picture is better?"),
        question("alignment", "Which picture fits the text better?"),
    ]
}

impl StudyConfig {
    /// Checks what types cannot say.
    ///
    /// # Errors
    /// The key, and what is wrong with it.
    pub fn validate(&self) -> Result<()> {
        let refuse = |key: &str, problem: String| Err(Error::Config { key: key.into(), problem });
        if !(2..=MAX_MODELS).contains(&self.sources.len()) {
            let problem = format!("give 2 to {MAX_MODELS} models, not {}", self.sources.len());
            return refuse("source", problem);
        }
        for (i, source) in self.sources.iter().enumerate() {
            let given = [source.run.is_some(), source.diffusers.is_some(), source.folder.is_some()];
            if given.iter().filter(|given| **given).count() != 1 {
                return refuse("source", format!("`{}` needs one of run, diffusers and folder", source.name));
            }
            if source.run.is_none() && source.step.is_some() {
                return refuse("source", format!("`{}`: only a run has steps", source.name));
            }
            if source.name.trim().is_empty() || self.sources[..i].iter().any(|s| s.name == source.name) {
                return refuse("source", format!("each needs a name of its own, not `{}`", source.name));
            }
        }
        if self.questions.is_empty() {
            return refuse("question", "ask at least one".into());
        }
        for (i, question) in self.questions.iter().enumerate() {
            if question.name.is_empty() || self.questions[..i].iter().any(|q| q.name == question.name) {
                return refuse("question", format!("each needs a name of its own, not `{}`", question.name));
            }
        }
        for (key, count) in [("images", self.images), ("judgements", self.judgements)] {
            if count == 0 {
                return refuse(key, "must be at least 1".into());
            }
        }
        if !(0.0..=0.5).contains(&self.attention_checks) {
            return refuse(
                "attention_checks",
                format!("must be from 0 to 0.5, not {}", self.attention_checks),
            );
        }
        if !(0.0..=1.0).contains(&self.max_failed_checks) {
            return refuse("max_failed_checks", "must be from 0 to 1".into());
        }
        match self.size {
            Some(size) if !(32..=4096).contains(&size) => refuse("size", "must be from 32 to 4096".into()),
            _ => Ok(()),
        }
    }

    /// What raters are told of the study. Nothing in it names the models.
    pub fn to_rater_json(&self) -> Value {
        let questions: Vec<&str> = self.questions.iter().map(|question| question.text.as_str()).collect();
        json!({
            "title": self.title,
            "questions": questions,
            "ties": self.ties != TieRule::Forbid,
            "sign_in": self.sign_in,
        })
    }

    /// The models' names.
    pub fn model_names(&self) -> Vec<&str> {
        self.sources.iter().map(|source| source.name.as_str()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn study() -> StudyConfig {
        let source = |name: &str| SourceConfig {
            name: name.into(),
            folder: Some("x".into()),
            ..SourceConfig::default()
        };
        let mut study: StudyConfig = serde_json::from_str(r#"{"prompts": "p.csv"}"#).unwrap();
        study.sources = vec![source("ours"), source("theirs")];
        study
    }

    #[test]
    fn defaults_are_a_valid_study() {
        study().validate().unwrap();
    }

    #[test]
    fn mistakes_are_refused_with_their_key() {
        type Mistake = fn(&mut StudyConfig);
        let cases: [(&str, Mistake); 10] = [
            ("source", |study| study.sources.truncate(1)),
            ("source", |study| study.sources[1].name = "ours".into()),
            ("source", |study| study.sources[1].folder = None),
            ("source", |study| study.sources[1].run = Some("run.toml".into())),
            ("source", |study| study.sources[1].step = Some(3)),
            ("question", |study| study.questions.clear()),
            ("question", |study| study.questions[1].name = "quality".into()),
            ("judgements", |study| study.judgements = 0),
            ("attention_checks", |study| study.attention_checks = f64::NAN),
            ("size", |study| study.size = Some(1)),
        ];
        for (key, change) in cases {
            let mut study = study();
            change(&mut study);
            let message = study.validate().unwrap_err().to_string();
            assert!(message.starts_with(key), "{message}");
        }
    }
}
