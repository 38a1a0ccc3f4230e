//! The run file's section `[filter]`. `validate` rejects bounds that no row can meet, and
//! expressions that do not parse, before anything is read.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::caption::language::language_codes;
use crate::error::{Result, invalid_config};
use crate::filter::where_expression::parse::Expression;
use crate::one_or_many::OneOrMany;
use crate::source::config::SourceConfig;

/// Greatest Hamming distance that a list of perceptual hashes may ask for. Unrelated images are
/// about 32 bits apart.
const MAX_DISTANCE: u32 = 10;

/// `[filter]`: which readable pairs are worth training on. Rejected rows are counted under the name
/// of the filter that rejects them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FilterConfig {
    /// Least length of an image's short side in pixels.
    pub min_side: Option<u32>,
    /// Greatest length of an image's long side in pixels.
    pub max_side: Option<u32>,
    /// Least width x height in pixels.
    pub min_area: Option<u64>,
    /// Greatest width x height in pixels.
    pub max_area: Option<u64>,
    /// Greatest ratio of the long side to the short side; at least 1.
    pub max_aspect: Option<f64>,
    /// Bounds on the caption's length in characters (Unicode scalar values), without white space at
    /// both ends.
    pub caption_length: Bounds<u32>,
    /// Languages that captions may be in, as ISO 639-1 codes such as "en". Any language if empty.
    pub languages: Vec<String>,
    /// Least confidence of the language detection, from 0 to 1.
    pub language_confidence: Option<f64>,
    /// Bounds on numeric columns of the source, by column name. A null is rejected; NaN and
    /// infinity are quarantined.
    pub score: BTreeMap<String, Bounds<f64>>,
    /// A boolean SQL expression over the columns of the source, such as `aesthetic >= 5 and
    /// pwatermark < 0.5`. Rows for which it is false or null are rejected.
    #[serde(rename = "where")]
    pub condition: Option<String>,
    /// Pairs that must not be used, by key, URL, domain or content.
    pub blocklist: BlocklistConfig,
    /// Pairs whose owners asked to be left out: the same kinds of lists, counted under a name of
    /// their own.
    pub opt_out: BlocklistConfig,
}

/// Lists of pairs to reject. Each value names files (paths, URIs or globs) with one entry per line,
/// or Parquet files with one string column.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BlocklistConfig {
    /// Keys, as in the source's key column.
    pub keys: OneOrMany,
    /// URLs, as in the source's URL column.
    pub urls: OneOrMany,
    /// Domains. Each also blocks its subdomains.
    pub domains: OneOrMany,
    /// SHA-256 of the encoded images, 64 hexadecimal digits each.
    pub sha256: OneOrMany,
    /// Perceptual hashes, 16 hexadecimal digits each, as `imagehash.phash` prints them.
    pub phash: OneOrMany,
    /// Number of bits in which the perceptual hash of an image may differ from a listed one to be
    /// rejected.
    pub phash_distance: u32,
}

impl Default for BlocklistConfig {
    fn default() -> Self {
        let none = OneOrMany::default;
        Self { keys: none(), urls: none(), domains: none(), sha256: none(), phash: none(), phash_distance: 4 }
    }
}

/// Inclusive bounds; both are optional.
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
    /// True if there is a bound.
    pub fn is_set(&self) -> bool {
        self.min.is_some() || self.max.is_some()
    }

    /// True if the value lies within the bounds.
    pub fn contains(&self, value: &T) -> bool {
        self.min.as_ref().is_none_or(|min| value >= min) && self.max.as_ref().is_none_or(|max| value <= max)
    }

    /// True if some value can pass.
    fn is_possible(&self) -> bool {
        match (&self.min, &self.max) {
            (Some(min), Some(max)) => min <= max,
            (Some(only), None) | (None, Some(only)) => only.partial_cmp(only).is_some(),
            (None, None) => true,
        }
    }
}

impl FilterConfig {
    /// The filters without their lists. For digests, the content of the lists counts and not their
    /// location.
    pub fn without_lists(&self) -> Self {
        let lists = BlocklistConfig::default;
        Self { blocklist: lists(), opt_out: lists(), ..self.clone() }
    }

    /// Checks bounds, languages and the expression.
    ///
    /// # Errors
    /// [`crate::Error::Config`] that names the key and says which values are valid.
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
        for (name, lists) in self.named_blocklists() {
            if lists.phash_distance > MAX_DISTANCE {
                let problem = format!(
                    "{} is more than {MAX_DISTANCE} of 64 bits; unrelated images would be refused",
                    lists.phash_distance
                );
                return invalid_config(format!("filter.{name}.phash_distance"), problem);
            }
        }
        self.parse_where().map(drop)
    }

    fn validate_languages(&self) -> Result<()> {
        let known = language_codes();
        if let Some(code) = self.languages.iter().find(|code| !known.contains(&code.as_str())) {
            let problem = match code.as_str() {
                "no" => "Norwegian is found as \"nb\", not as \"no\"".to_owned(),
                _ => format!("{code:?} is none of the languages that can be detected: {}", known.join(", ")),
            };
            return invalid_config("filter.languages", problem);
        }
        match self.language_confidence {
            Some(_) if self.languages.is_empty() => invalid_config(
                "filter.language_confidence",
                "has no effect without filter.languages; name the languages",
            ),
            Some(confidence) if !(0.0..=1.0).contains(&confidence) => {
                invalid_config("filter.language_confidence", "must be between 0 and 1")
            }
            _ => Ok(()),
        }
    }

    /// Checks that the source names the columns that the filters need.
    ///
    /// # Errors
    /// [`crate::Error::Config`] that names the filter's key and the source's.
    pub(crate) fn validate_source(&self, source: &SourceConfig) -> Result<()> {
        for (name, lists) in self.named_blocklists() {
            for (part, uris) in [("urls", &lists.urls), ("domains", &lists.domains)] {
                if !uris.as_slice().is_empty() && source.columns.url.is_none() {
                    let problem = "needs the images' URLs; name their column in source.columns.url";
                    return invalid_config(format!("filter.{name}.{part}"), problem);
                }
            }
        }
        Ok(())
    }

    /// Parses the expression in `where`, if there is one.
    ///
    /// # Errors
    /// If it does not parse; the message gives the position.
    pub(crate) fn parse_where(&self) -> Result<Option<Expression>> {
        self.condition.as_deref().map(Expression::parse).transpose()
    }

    /// Both sets of lists with the names that they are counted under. Opt-outs come first.
    pub(crate) fn named_blocklists(&self) -> [(&'static str, &BlocklistConfig); 2] {
        [("opt_out", &self.opt_out), ("blocklist", &self.blocklist)]
    }
}
