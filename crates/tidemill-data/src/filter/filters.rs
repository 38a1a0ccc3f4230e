//! Which readable pairs are worth training on: a list of named predicates. Most look at what is known of a row before its
//! pixels are decoded; those that need a hash of the bytes or of the pixels come after. The first one that says no gives
//! the rejection its name.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, BooleanArray, RecordBatch};

use crate::error::Result;
use crate::filter::blocklist::{Blocklist, Part};
use crate::filter::config::{BlocklistConfig, Bounds, FilterConfig};
use crate::filter::near_duplicates::load_similar;
use crate::filter::rule::{Facts, Filter, Rule, Stage};
use crate::filter::where_expression::parse::Expression;
use crate::one_or_many::OneOrMany;

/// The filters of a configuration with their lists loaded. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Filters {
    filters: Arc<[Filter]>,
    condition: Option<Expression>,
}

/// For which rows of a batch the expression in `where` is true.
pub struct Selection(Option<BooleanArray>);

impl Selection {
    /// Whether it is true for a row, or there is no expression.
    pub fn has(&self, row: usize) -> bool {
        self.0.as_ref().is_none_or(|values| values.is_valid(row) && values.value(row))
    }
}

impl Filters {
    /// Loads the lists and puts the filters in their order: by stage, and the ones that cost least first.
    ///
    /// # Errors
    /// A list that cannot be read, or an expression that does not parse.
    pub fn new(config: &FilterConfig) -> Result<Self> {
        let condition = config.expression()?;
        let mut filters = Vec::new();
        let mut add = |name: &str, rule: Option<Rule>| {
            filters.extend(rule.map(|rule| Filter { name: name.to_owned(), rule }));
        };
        let area =
            |min, max| Some(Rule::Area(Bounds { min, max })).filter(|_| min.is_some() || max.is_some());
        add("min_side", config.min_side.map(Rule::MinSide));
        add("max_side", config.max_side.map(Rule::MaxSide));
        add("min_area", area(config.min_area, None));
        add("max_area", area(None, config.max_area));
        add("max_aspect", config.max_aspect.map(Rule::MaxAspect));
        let length = config.caption_length;
        add("caption_length", length.is_set().then_some(Rule::CaptionLength(length)));
        for (index, (column, bounds)) in config.score.iter().enumerate() {
            add(&format!("score.{column}"), Some(Rule::Score { index, bounds: *bounds }));
        }
        add("where", condition.is_some().then_some(Rule::Condition));
        for (name, lists) in config.blocklists() {
            filters.extend(load(name, lists)?);
        }
        let confidence = config.language_confidence.unwrap_or(0.0);
        if !config.languages.is_empty() {
            let rule = Rule::Languages { languages: config.languages.clone(), confidence };
            filters.push(Filter { name: "languages".into(), rule });
        }
        filters.sort_by_key(|filter| filter.rule.stage());
        Ok(Self { filters: filters.into(), condition })
    }

    /// Evaluates the expression in `where` over a batch of source columns.
    ///
    /// # Errors
    /// If a column is missing or of a type that does not fit.
    pub fn select(&self, batch: &RecordBatch) -> Result<Selection> {
        let values = self.condition.as_ref().map(|condition| condition.evaluate(batch));
        values.transpose().map(Selection)
    }

    /// The name of the first filter of a stage that says no.
    pub fn refusal(&self, stage: Stage, facts: &Facts) -> Option<&str> {
        let filters = self.filters.iter().filter(|filter| filter.rule.stage() == stage);
        filters.into_iter().find(|filter| !filter.rule.passes(facts)).map(|filter| filter.name.as_str())
    }

    /// The name of the first filter of [`Stage::Pixels`] that says no.
    pub fn refusal_of_pixels(&self, phash: u64) -> Option<&str> {
        let similar = |filter: &&Filter| matches!(&filter.rule, Rule::Similar(list) if list.contains(phash));
        self.filters.iter().find(similar).map(|filter| filter.name.as_str())
    }

    /// Whether any filter decides at this stage.
    pub fn need(&self, stage: Stage) -> bool {
        self.filters.iter().any(|filter| filter.rule.stage() == stage)
    }

    /// Digests (hex) of what the lists hold, by the filter's name.
    pub fn lists(&self) -> BTreeMap<&str, String> {
        self.filters.iter().filter_map(|filter| Some((filter.name.as_str(), filter.rule.list()?))).collect()
    }
}

/// The filters of `[filter.blocklist]` or `[filter.opt_out]`.
fn load(name: &str, config: &BlocklistConfig) -> Result<Vec<Filter>> {
    let mut filters = Vec::new();
    let mut exact = |kind, uris: &OneOrMany, part, rule: fn(Blocklist) -> Rule| -> Result<()> {
        if !uris.as_slice().is_empty() {
            let list = Blocklist::load(part, &format!("filter.{name}.{kind}"), uris)?;
            filters.push(Filter { name: format!("{name}.{kind}"), rule: rule(list) });
        }
        Ok(())
    };
    exact("keys", &config.keys, Part::Key, Rule::Key)?;
    exact("urls", &config.urls, Part::Url, Rule::Url)?;
    exact("domains", &config.domains, Part::Domain, Rule::Url)?;
    exact("sha256", &config.sha256, Part::Sha256, Rule::Sha256)?;
    if !config.phash.as_slice().is_empty() {
        let list = load_similar(&format!("filter.{name}.phash"), &config.phash, config.phash_distance)?;
        filters.push(Filter { name: format!("{name}.phash"), rule: Rule::Similar(list) });
    }
    Ok(filters)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caption::language::detect_language;

    fn refusal(config: &FilterConfig, facts: Facts) -> Option<String> {
        Filters::new(config).unwrap().refusal(Stage::Header, &facts).map(str::to_owned)
    }

    fn facts(width: u32, height: u32, caption: &str) -> Facts<'_> {
        let (key, url) = ("k", None);
        Facts { key, url, width, height, caption, scores: &[], condition: true, sha256: None, phash: None }
    }

    #[test]
    fn each_filter_refuses_what_it_should() {
        let config = FilterConfig {
            min_side: Some(100),
            max_side: Some(300),
            min_area: Some(15_000),
            max_area: Some(60_000),
            max_aspect: Some(2.0),
            caption_length: Bounds { min: Some(3), max: Some(5) },
            score: [
                ("aesthetic".to_owned(), Bounds { min: Some(4.5), max: None }),
                ("unsafe".to_owned(), Bounds { min: None, max: Some(0.1) }),
            ]
            .into(),
            condition: Some("x > 1".into()),
            ..FilterConfig::default()
        };
        let good = Facts { scores: &[Some(4.5), Some(0.1)], ..facts(100, 200, " cat ") };
        let cases = [
            (good, None),
            (Facts { width: 99, ..good }, Some("min_side")),
            (Facts { height: 99, ..good }, Some("min_side")),
            (Facts { height: 301, ..good }, Some("max_side")),
            (Facts { height: 149, ..good }, Some("min_area")),
            (Facts { height: 150, ..good }, None),
            (Facts { width: 200, height: 300, ..good }, None),
            (Facts { width: 201, height: 300, ..good }, Some("max_area")),
            (Facts { height: 201, ..good }, Some("max_aspect")),
            (Facts { width: 250, height: 101, ..good }, Some("max_aspect")),
            (Facts { caption: " ab ", ..good }, Some("caption_length")),
            (Facts { caption: "ÄÖÜßé", ..good }, None),
            (Facts { caption: "ÄÖÜßéa", ..good }, Some("caption_length")),
            (Facts { scores: &[Some(4.4), Some(0.0)], ..good }, Some("score.aesthetic")),
            (Facts { scores: &[None, Some(0.0)], ..good }, Some("score.aesthetic")),
            (Facts { scores: &[Some(9.0), Some(0.2)], ..good }, Some("score.unsafe")),
            (Facts { condition: false, ..good }, Some("where")),
            // The first filter in the list names the reason.
            (Facts { width: 10, caption: "", condition: false, ..good }, Some("min_side")),
        ];
        for (facts, expected) in cases {
            assert_eq!(refusal(&config, facts).as_deref(), expected, "{facts:?}");
        }
        // Bounds that no binary fraction is: an image exactly at one passes.
        for (aspect, width) in [(1.15, 115), (2.3, 230)] {
            let config = FilterConfig { max_aspect: Some(aspect), ..FilterConfig::default() };
            assert_eq!(refusal(&config, facts(width, 100, "")), None, "{aspect}");
            assert!(refusal(&config, facts(width + 1, 100, "")).is_some(), "{aspect}");
        }
    }

    #[test]
    fn captions_must_be_in_a_language_and_surely_so() {
        let english = "a photograph of a small dog that is running along the beach";
        let config = |confidence| FilterConfig {
            languages: vec!["en".into(), "fr".into()],
            language_confidence: Some(confidence),
            ..FilterConfig::default()
        };
        let (_, sure) = detect_language(english).unwrap();
        let german = "ein kleiner Hund, der auf einer grünen Wiese hinter dem Haus spielt";
        for (confidence, caption, expected) in [
            (sure, english, None),
            (0.0, german, Some("languages")),
            (0.0, "12345", Some("languages")),
            (1.01 * sure, english, Some("languages")),
        ] {
            assert_eq!(
                refusal(&config(confidence), facts(64, 64, caption)).as_deref(),
                expected,
                "{caption}"
            );
        }
    }
}
