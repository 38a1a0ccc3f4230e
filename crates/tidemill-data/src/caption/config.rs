//! The run file's section `[caption]`.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::caption::template::Template;
use crate::error::{Error, Result};
use crate::one_or_many::OneOrMany;
use crate::source::config::Columns;

/// Default of `stage_size`.
const STAGE_SIZE: u32 = 384;

const STAGE_SIZES: RangeInclusive<u32> = 16..=2048;

const NEEDS_STAGE: &str = "has no effect without caption.stage";

/// `[caption]`: how the caption columns become the text that is encoded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CaptionConfig {
    /// Which caption is used if a row has several, in several columns or in a list. Blank captions
    /// are ignored.
    pub choice: Choice,
    /// For `choice = "random"`: one weight for each of `source.columns.caption`. All weights are
    /// equal by default.
    pub weights: Vec<f64>,
    /// How the chosen caption is cleaned.
    pub clean: Clean,
    /// The final caption: text with column names in braces, where `{caption}` is the cleaned
    /// caption. Given a list of templates, each row gets a random one. Nulls become empty text;
    /// `{{` is a literal brace.
    pub template: OneOrMany,
    /// A captioner of the user's, `module:callable` in Python, which replaces captions by what it sees.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// Side of the square image that the captioner gets, in pixels; 384 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage_size: Option<u32>,
    /// Any text. If it changes, captions are made again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage_version: Option<String>,
}

/// Which of several captions is used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Choice {
    /// The first caption that is not blank, in the order of `source.columns.caption`.
    #[default]
    First,
    /// A random one, drawn from the run's seed and the sample id.
    Random,
    /// The caption with the most characters; the first of several such captions.
    Longest,
}

/// Clean-up of captions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Clean {
    /// Captions stay as they are.
    #[default]
    None,
    /// open_clip's `basic_clean` and `whitespace_clean`.
    OpenClip,
}

impl Default for CaptionConfig {
    fn default() -> Self {
        Self {
            choice: Choice::default(),
            weights: Vec::new(),
            clean: Clean::default(),
            template: OneOrMany::One("{caption}".into()),
            stage: None,
            stage_size: None,
            stage_version: None,
        }
    }
}

impl CaptionConfig {
    /// Checks the section against the configured columns.
    ///
    /// # Errors
    /// [`Error::Config`] that names the key and says which values are valid.
    pub fn validate(&self, columns: &Columns) -> Result<()> {
        self.validate_weights(columns.caption.as_slice().len())?;
        self.validate_stage()?;
        for template in self.templates()? {
            if template.column_names().any(|name| name == columns.image) {
                let problem = format!("`{}` is the image column; choose a column of text", columns.image);
                return Err(Error::Config { key: "caption.template".into(), problem });
            }
        }
        Ok(())
    }

    fn validate_stage(&self) -> Result<()> {
        let fail = |key: &str, problem: String| Err(Error::Config { key: key.into(), problem });
        let is_named = |name: &str| {
            name.split_once(':').is_some_and(|(module, callable)| !module.is_empty() && !callable.is_empty())
        };
        match &self.stage {
            Some(stage) if !is_named(stage) => {
                fail("caption.stage", format!("{stage:?} is not of the form \"module:callable\""))
            }
            None if self.stage_size.is_some() => fail("caption.stage_size", NEEDS_STAGE.into()),
            None if self.stage_version.is_some() => fail("caption.stage_version", NEEDS_STAGE.into()),
            _ if self.stage_size.is_some_and(|size| !STAGE_SIZES.contains(&size)) => fail(
                "caption.stage_size",
                format!("must be from {} to {}", STAGE_SIZES.start(), STAGE_SIZES.end()),
            ),
            _ => Ok(()),
        }
    }

    /// The side of the images that the captioner gets; `None` without one.
    pub fn captioner_side(&self) -> Option<u32> {
        self.stage.is_some().then(|| self.stage_size.unwrap_or(STAGE_SIZE))
    }

    fn validate_weights(&self, columns: usize) -> Result<()> {
        let weights = &self.weights;
        let problem = if weights.is_empty() {
            return Ok(());
        } else if self.choice != Choice::Random {
            "can only be used with choice = \"random\"".to_owned()
        } else if weights.len() != columns {
            format!("has {} values, but source.columns.caption has {columns} columns", weights.len())
        } else if weights.iter().any(|weight| !(*weight >= 0.0 && weight.is_finite())) {
            "must be numbers of at least 0".to_owned()
        } else if weights.iter().sum::<f64>() <= 0.0 {
            "must not all be 0".to_owned()
        } else {
            return Ok(());
        };
        Err(Error::Config { key: "caption.weights".into(), problem })
    }

    /// Names of the columns in the templates, each once.
    ///
    /// # Errors
    /// [`Error::Config`] if a template is malformed.
    pub fn template_columns(&self) -> Result<Vec<String>> {
        let mut columns: Vec<String> = Vec::new();
        for template in self.templates()? {
            for name in template.column_names() {
                if columns.iter().all(|known| known != name) {
                    columns.push(name.to_owned());
                }
            }
        }
        Ok(columns)
    }

    /// The parsed templates.
    ///
    /// # Errors
    /// [`Error::Config`] if there is none or one is malformed.
    pub(crate) fn templates(&self) -> Result<Vec<Template>> {
        let fail = |problem| Error::Config { key: "caption.template".into(), problem };
        let templates = self.template.as_slice();
        if templates.is_empty() {
            return Err(fail("give at least one, such as \"{caption}\"".into()));
        }
        templates.iter().map(|template| Template::parse(template).map_err(fail)).collect()
    }

    /// True if the captions depend on the run's seed.
    pub(crate) fn uses_seed(&self) -> bool {
        self.choice == Choice::Random || self.template.as_slice().len() > 1
    }
}
