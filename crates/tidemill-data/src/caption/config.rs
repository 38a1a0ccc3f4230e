//! The run file's section `[caption]`.

use serde::{Deserialize, Serialize};

use crate::caption::template::Template;
use crate::error::{Error, Result};
use crate::one_or_many::OneOrMany;
use crate::source::config::Columns;

/// `[caption]`: how the caption columns become the text that is encoded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CaptionConfig {
    /// Which caption is used where a row has several: in several columns, or in a list. Blank ones do not count.
    pub choice: Choice,
    /// For `random`, a weight for each of `source.columns.caption`; equal if left out.
    pub weights: Vec<f64>,
    /// What is done to the chosen caption.
    pub clean: Clean,
    /// The final caption: text with columns' names in braces, `{caption}` being the cleaned one. Of a list of
    /// templates each row gets one at random. Nulls are filled in as empty text; `{{` is a brace.
    pub template: OneOrMany,
}

/// Which of several captions is used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Choice {
    /// The first that is not blank, in the order of `source.columns.caption`.
    #[default]
    First,
    /// One by lot, drawn from the run's seed and the sample id.
    Random,
    /// The one with most characters; the first of equals.
    Longest,
}

/// Clean-up of captions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Clean {
    /// As they are.
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
        }
    }
}

impl CaptionConfig {
    /// Refuses what cannot be applied to these columns.
    ///
    /// # Errors
    /// Names the key and says what would be right.
    pub fn validate(&self, columns: &Columns) -> Result<()> {
        self.validate_weights(columns.caption.as_slice().len())?;
        for template in self.templates()? {
            if template.columns().any(|name| name == columns.image) {
                let problem = format!("`{}` is the image column; it is no text", columns.image);
                return Err(Error::Config { key: "caption.template".into(), problem });
            }
        }
        Ok(())
    }

    fn validate_weights(&self, columns: usize) -> Result<()> {
        let weights = &self.weights;
        let problem = if weights.is_empty() {
            return Ok(());
        } else if self.choice != Choice::Random {
            "are for choice = \"random\" only".to_owned()
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

    /// The columns that the templates name, each once.
    pub fn columns(&self) -> Result<Vec<String>> {
        let mut columns: Vec<String> = Vec::new();
        for template in self.templates()? {
            for name in template.columns() {
                if columns.iter().all(|known| known != name) {
                    columns.push(name.to_owned());
                }
            }
        }
        Ok(columns)
    }

    /// The templates, taken apart.
    pub(crate) fn templates(&self) -> Result<Vec<Template>> {
        let fail = |problem| Error::Config { key: "caption.template".into(), problem };
        let templates = self.template.as_slice();
        if templates.is_empty() {
            return Err(fail("give at least one, such as \"{caption}\"".into()));
        }
        templates.iter().map(|template| Template::parse(template).map_err(fail)).collect()
    }

    /// Whether the run's seed decides anything.
    pub(crate) fn draws(&self) -> bool {
        self.choice == Choice::Random || self.template.as_slice().len() > 1
    }
}
