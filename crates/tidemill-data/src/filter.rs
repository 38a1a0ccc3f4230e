//! Which readable pairs are worth training on: a list of named predicates over what is known of a row before its
//! pixels are decoded. The first one that says no gives the rejection its name.

use crate::config::{Bounds, FilterConfig};

/// What the filters look at.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// Width in pixels, from the image's header.
    pub width: u32,
    /// Height in pixels, from the image's header.
    pub height: u32,
    /// The caption.
    pub caption: &'a str,
    /// Values of the score columns, in the order of [`FilterConfig::score`]; `None` is null.
    pub scores: &'a [Option<f64>],
}

/// A predicate with the name that rejections are counted under.
#[derive(Debug, Clone, PartialEq)]
pub struct Filter {
    /// The configuration key without `filter.`, such as `min_side` or `score.aesthetic`.
    pub name: String,
    rule: Rule,
}

#[derive(Debug, Clone, PartialEq)]
enum Rule {
    MinSide(u32),
    MaxAspect(f64),
    CaptionLength(Bounds<u32>),
    Score { index: usize, bounds: Bounds<f64> },
}

impl Filter {
    /// Whether the row passes.
    pub fn passes(&self, facts: &Facts) -> bool {
        let (short, long) = (facts.width.min(facts.height), facts.width.max(facts.height));
        match &self.rule {
            Rule::MinSide(side) => short >= *side,
            Rule::MaxAspect(aspect) => f64::from(long) <= aspect * f64::from(short),
            Rule::CaptionLength(bounds) => {
                let length = facts.caption.trim().chars().count();
                bounds.contains(&u32::try_from(length).unwrap_or(u32::MAX))
            }
            Rule::Score { index, bounds } => {
                facts.scores.get(*index).copied().flatten().is_some_and(|score| bounds.contains(&score))
            }
        }
    }
}

/// The filters of a configuration, cheapest first.
pub fn filters(config: &FilterConfig) -> Vec<Filter> {
    let mut filters = Vec::new();
    let mut add = |name: &str, rule| filters.push(Filter { name: name.to_owned(), rule });
    if let Some(side) = config.min_side {
        add("min_side", Rule::MinSide(side));
    }
    if let Some(aspect) = config.max_aspect {
        add("max_aspect", Rule::MaxAspect(aspect));
    }
    if config.caption_length.is_set() {
        add("caption_length", Rule::CaptionLength(config.caption_length));
    }
    for (index, (column, bounds)) in config.score.iter().enumerate() {
        add(&format!("score.{column}"), Rule::Score { index, bounds: *bounds });
    }
    filters
}

/// The first filter that says no.
pub fn first_refusal<'a>(filters: &'a [Filter], facts: &Facts) -> Option<&'a Filter> {
    filters.iter().find(|filter| !filter.passes(facts))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(config: &FilterConfig, facts: Facts) -> Option<String> {
        first_refusal(&filters(config), &facts).map(|filter| filter.name.clone())
    }

    #[test]
    fn each_filter_refuses_what_it_should() {
        let config = FilterConfig {
            min_side: Some(100),
            max_aspect: Some(2.0),
            caption_length: Bounds { min: Some(3), max: Some(5) },
            score: [
                ("aesthetic".to_owned(), Bounds { min: Some(4.5), max: None }),
                ("unsafe".to_owned(), Bounds { min: None, max: Some(0.1) }),
            ]
            .into(),
        };
        let good = Facts { width: 100, height: 200, caption: " cat ", scores: &[Some(4.5), Some(0.1)] };
        let cases = [
            (good, None),
            (Facts { width: 99, ..good }, Some("min_side")),
            (Facts { height: 99, ..good }, Some("min_side")),
            (Facts { height: 201, ..good }, Some("max_aspect")),
            (Facts { width: 401, ..good }, Some("max_aspect")),
            (Facts { caption: " ab ", ..good }, Some("caption_length")),
            (Facts { caption: "ÄÖÜßé", ..good }, None),
            (Facts { caption: "ÄÖÜßéa", ..good }, Some("caption_length")),
            (Facts { scores: &[Some(4.4), Some(0.0)], ..good }, Some("score.aesthetic")),
            (Facts { scores: &[None, Some(0.0)], ..good }, Some("score.aesthetic")),
            (Facts { scores: &[Some(9.0), Some(0.2)], ..good }, Some("score.unsafe")),
            // The first filter in the list names the reason.
            (Facts { width: 10, caption: "", ..good }, Some("min_side")),
        ];
        for (facts, expected) in cases {
            assert_eq!(refusal(&config, facts).as_deref(), expected, "{facts:?}");
        }
    }
}
