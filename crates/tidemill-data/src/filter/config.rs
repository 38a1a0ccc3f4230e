//! The run file's section `[filter]`: which readable pairs are worth training on. `validate` refuses what no row could
//! pass, and an expression that does not parse, before anything is read.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::caption::language::language_codes;
use crate::error::{Result, invalid_config};
use crate::filter::where_expression::parse::Expression;
use crate::one_or_many::OneOrMany;
use crate::source::config::SourceConfig;

/// Greatest Hamming distance of perceptual hashes that a list may ask for; unrelated images are about 32 apart.
const MAX_DISTANCE: u32 = 10;

/// `[filter]`: which readable pairs are worth training on. Every row that a filter refuses is counted under its name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FilterConfig {
    /// Least length of the image's short side in pixels.
    pub min_side: Option<u32>,
    /// Greatest length of the image's long side in pixels.
    pub max_side: Option<u32>,
    /// Least width x height in pixels.
    pub min_area: Option<u64>,
    /// Greatest width x height in pixels.
    pub max_area: Option<u64>,
    /// Greatest ratio of the long side to the short one, at least 1.
    pub max_aspect: Option<f64>,
    /// Bounds on the caption's length in characters (Unicode scalar values), white space at both ends not counted.
    pub caption_length: Bounds<u32>,
    /// Languages that captions may be in (ISO 639-1, such as "en"), of those that can be told; any language if empty.
    pub languages: Vec<String>,
    /// How sure the detection of the language must be, from 0 to 1.
    pub language_confidence: Option<f64>,
    /// Bounds on numeric columns of the source, by column name. A null is refused, NaN and infinity are quarantined.
    pub score: BTreeMap<String, Bounds<f64>>,
    /// A boolean expression over the source's columns, in SQL, such as `aesthetic >= 5 and pwatermark < 0.5`. Rows for
    /// which it is not true (false or null) are refused.
    #[serde(rename = "where")]
    pub condition: Option<String>,
    /// Pairs that are not to be used, by key, URL, domain or content.
    pub blocklist: BlocklistConfig,
    /// Pairs whose owners asked to be left out: the same lists, counted under their own name.
    pub opt_out: BlocklistConfig,
}

/// Lists of what is refused: files (paths or URIs, globs too) of one entry per line, or of one string column.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BlocklistConfig {
    /// Keys, as in the source's key column.
    pub keys: OneOrMany,
    /// URLs, as in the source's URL column.
    pub urls: OneOrMany,
    /// Domains; each also blocks the domains below it.
    pub domains: OneOrMany,
    /// SHA-256 of the encoded images, 64 hexadecimal digits each.
    pub sha256: OneOrMany,
    /// Perceptual hashes, 16 hexadecimal digits each, as `imagehash.phash` prints them.
    pub phash: OneOrMany,
    /// Bits in which an image's perceptual hash may differ from a listed one and still be refused.
    pub phash_distance: u32,
}

impl Default for BlocklistConfig {
    fn default() -> Self {
        let none = OneOrMany::default;
        Self { keys: none(), urls: none(), domains: none(), sha256: none(), phash: none(), phash_distance: 4 }
    }
}

/// Inclusive bounds, each of which may be left out.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bounds<T> {
    /// Least value that passes.
    pub min: Option<T>,
    /// Greatest value that passes.
    pub max: Option<T>,
}

impl<T> Default for Bounds<T> {
    fn default() -> Self {
        Self { min: None, max: None }
    }
}

impl<T: PartialOrd> Bounds<T> {
    /// Whether there is any bound.
    pub fn is_set(&self) -> bool {
        self.min.is_some() || self.max.is_some()
    }

    /// Whether the value lies within the bounds.
    pub fn contains(&self, value: &T) -> bool {
        self.min.as_ref().is_none_or(|min| value >= min) && self.max.as_ref().is_none_or(|max| value <= max)
    }

    /// False if no value can pass.
    fn is_possible(&self) -> bool {
        match (&self.min, &self.max) {
            (Some(min), Some(max)) => min <= max,
            (Some(only), None) | (None, Some(only)) => only.partial_cmp(only).is_some(),
            (None, None) => true,
        }
    }
}

impl FilterConfig {
    /// The filters without their lists: what the lists hold counts, not where they lie.
    pub fn without_lists(&self) -> Self {
        let lists = BlocklistConfig::default;
        Self { blocklist: lists(), opt_out: lists(), ..self.clone() }
    }

    /// Refuses bounds that no value can meet and expressions that make no sense.
    ///
    /// # Errors
    /// Names the key and says what would be right.
    pub fn validate(&self) -> Result<()> {
        if self.max_aspect.is_some_and(|aspect| !(aspect >= 1.0 && aspect.is_finite())) {
            return invalid_config(
                "filter.max_aspect",
                "is long side / short side, so it must be a number of at least 1",
            );
        }
        if !(Bounds { min: self.min_side, max: self.max_side }).is_possible() {
            return invalid_config("filter.max_side", "is less than filter.min_side; no image could pass");
        }
        if !(Bounds { min: self.min_area, max: self.max_area }).is_possible() {
            return invalid_config("filter.max_area", "is less than filter.min_area; no image could pass");
        }
        if !self.caption_length.is_possible() {
            return invalid_config("filter.caption_length", "min is greater than max; no caption could pass");
        }
        self.validate_languages()?;
        for (column, bounds) in &self.score {
            let key = format!("filter.score.{column}");
            if !bounds.is_set() {
                return invalid_config(key, "give min, max or both");
            }
            if !bounds.is_possible() {
                return invalid_config(
                    key,
                    "no value could pass: min is greater than max, or a bound is not a number",
                );
            }
        }
        for (name, lists) in self.blocklists() {
            if lists.phash_distance > MAX_DISTANCE {
                let problem = format!(
                    "{} is more than {MAX_DISTANCE} of 64 bits; unrelated images would be refused",
                    lists.phash_distance
                );
                return invalid_config(format!("filter.{name}.phash_distance"), problem);
            }
        }
        self.expression().map(drop)
    }

    fn validate_languages(&self) -> Result<()> {
        let known = language_codes();
        if let Some(code) = self.languages.iter().find(|code| !known.contains(&code.as_str())) {
            let problem = match code.as_str() {
                "no" => "Norwegian is found as \"nb\", not as \"no\"".to_owned(),
                _ => format!("{code:?} is none of the languages that can be told: {}", known.join(", ")),
            };
            return invalid_config("filter.languages", problem);
        }
        match self.language_confidence {
            Some(_) if self.languages.is_empty() => invalid_config(
                "filter.language_confidence",
                "says nothing without filter.languages; name the languages",
            ),
            Some(confidence) if !(0.0..=1.0).contains(&confidence) => {
                invalid_config("filter.language_confidence", "must be between 0 and 1")
            }
            _ => Ok(()),
        }
    }

    /// Refuses filters that look at a column the source does not name.
    ///
    /// # Errors
    /// Names the filter's key and the source's.
    pub(crate) fn validate_source(&self, source: &SourceConfig) -> Result<()> {
        for (name, lists) in self.blocklists() {
            for (part, uris) in [("urls", &lists.urls), ("domains", &lists.domains)] {
                if !uris.as_slice().is_empty() && source.columns.url.is_none() {
                    let problem = "needs the images' URLs; name their column in source.columns.url";
                    return invalid_config(format!("filter.{name}.{part}"), problem);
                }
            }
        }
        Ok(())
    }

    /// The expression in `where`, if there is one.
    ///
    /// # Errors
    /// If it does not parse; the message says at which character.
    pub(crate) fn expression(&self) -> Result<Option<Expression>> {
        self.condition.as_deref().map(Expression::parse).transpose()
    }

    /// Both sets of lists with the names that they are counted under; what people asked for comes first.
    pub(crate) fn blocklists(&self) -> [(&'static str, &BlocklistConfig); 2] {
        [("opt_out", &self.opt_out), ("blocklist", &self.blocklist)]
    }
}
