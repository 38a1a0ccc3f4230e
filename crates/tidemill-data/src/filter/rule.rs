//! A filter: a rule with a name. Rules look at the facts known of a row.

use crate::caption::language::detect_language;
use crate::filter::blocklist::Blocklist;
use crate::filter::config::Bounds;
use crate::filter::near_duplicates::NearDuplicateList;

/// What is known of a row when filters look at it.
#[derive(Debug, Clone, Copy)]
pub struct RowFacts<'a> {
    /// Key of the row.
    pub key: &'a str,
    /// URL of the image, if the source has one.
    pub url: Option<&'a str>,
    /// Width in pixels, from the image's header.
    pub width: u32,
    /// Height in pixels, from the image's header.
    pub height: u32,
    /// The caption after clean-up and template.
    pub caption: &'a str,
    /// Values of the score columns, in the order of
    /// [`FilterConfig::score`](crate::filter::FilterConfig::score); `None` is null.
    pub scores: &'a [Option<f64>],
    /// True if the expression in `where` is true.
    pub condition: bool,
    /// SHA-256 of the encoded image; known from [`FilterStage::Bytes`] on.
    pub sha256: Option<[u8; 32]>,
    /// Perceptual hash of the image; known at [`FilterStage::Pixels`].
    pub phash: Option<u64>,
}

/// The point at which a filter can decide. Later stages cost more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FilterStage {
    /// The filter decides after the columns and the image's header are read.
    Header,
    /// The filter decides after the encoded bytes are hashed.
    Bytes,
    /// The filter decides after the image is decoded and hashed.
    Pixels,
}

/// A rule with the name that rejections are counted under.
#[derive(Debug, Clone, PartialEq)]
pub struct Filter {
    /// The configuration key without `filter.`, such as `min_side` or `score.aesthetic`. It is what
    /// the column `reason` holds.
    pub name: String,
    pub rule: Rule,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Rule {
    /// Least short side.
    MinSide(u32),
    /// Greatest long side.
    MaxSide(u32),
    Area(Bounds<u64>),
    MaxAspect(f64),
    CaptionLength(Bounds<u32>),
    Score {
        index: usize,
        bounds: Bounds<f64>,
    },
    Condition,
    Languages {
        languages: Vec<String>,
        confidence: f64,
    },
    Key(Blocklist),
    Url(Blocklist),
    Sha256(Blocklist),
    NearDuplicate(NearDuplicateList),
}

impl Rule {
    pub fn stage(&self) -> FilterStage {
        match self {
            Self::Sha256(_) => FilterStage::Bytes,
            Self::NearDuplicate(_) => FilterStage::Pixels,
            _ => FilterStage::Header,
        }
    }

    pub fn passes(&self, facts: &RowFacts) -> bool {
        let (short, long) = (facts.width.min(facts.height), facts.width.max(facts.height));
        match self {
            Self::MinSide(side) => short >= *side,
            Self::MaxSide(side) => long <= *side,
            Self::Area(bounds) => bounds.contains(&(u64::from(short) * u64::from(long))),
            Self::MaxAspect(aspect) => f64::from(long) / f64::from(short) <= *aspect,
            Self::CaptionLength(bounds) => {
                let length = facts.caption.trim().chars().count();
                bounds.contains(&u32::try_from(length).unwrap_or(u32::MAX))
            }
            Self::Score { index, bounds } => {
                facts.scores.get(*index).copied().flatten().is_some_and(|score| bounds.contains(&score))
            }
            Self::Condition => facts.condition,
            Self::Languages { languages, confidence } => {
                detect_language(facts.caption).is_some_and(|(code, sure)| {
                    sure >= *confidence && languages.iter().any(|known| known == code)
                })
            }
            Self::Key(list) => !list.contains_text(facts.key),
            Self::Url(list) => !facts.url.is_some_and(|url| list.contains_text(url)),
            Self::Sha256(list) => !facts.sha256.is_some_and(|digest| list.contains_digest(&digest)),
            Self::NearDuplicate(list) => !facts.phash.is_some_and(|hash| list.contains(hash)),
        }
    }

    /// Digest of the list that the rule holds, if it holds one.
    pub fn list_digest(&self) -> Option<String> {
        match self {
            Self::Key(list) | Self::Url(list) | Self::Sha256(list) => Some(list.digest()),
            Self::NearDuplicate(list) => Some(list.digest()),
            _ => None,
        }
    }
}
