//! All filters of a run, in the order in which they decide. The name of the first filter that
//! rejects a row is its `reason`.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, BooleanArray, RecordBatch};

use crate::error::Result;
use crate::filter::blocklist::{Blocklist, EntryKind};
use crate::filter::config::{BlocklistConfig, Bounds, FilterConfig};
use crate::filter::near_duplicates::load_near_duplicates;
use crate::filter::rule::{Filter, FilterStage, RowFacts, Rule};
use crate::filter::where_expression::parse::Expression;
use crate::one_or_many::OneOrMany;

/// The name of the filter `filter.where`.
pub const CONDITION: &str = "where";

/// The filters of a configuration with their lists loaded. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Filters {
    filters: Arc<[Filter]>,
    condition: Option<Expression>,
}

/// The rows of a batch for which the expression in `where` is true.
pub struct Selection(Option<BooleanArray>);

impl Selection {
    /// True if the expression is true for the row, or if there is no expression.
    pub fn includes(&self, row: usize) -> bool {
        self.0.as_ref().is_none_or(|values| values.is_valid(row) && values.value(row))
    }
}

impl Filters {
    /// Loads the lists and orders the filters: by stage, and within a stage the cheap ones first.
    ///
    /// # Errors
    /// If a list cannot be read or the expression does not parse.
    pub fn new(config: &FilterConfig) -> Result<Self> {
        let condition = config.parse_where()?;
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
        add(CONDITION, condition.is_some().then_some(Rule::Condition));
        for (name, lists) in config.named_blocklists() {
            filters.extend(load_blocklists(name, lists)?);
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
    /// If a column is missing or has a wrong type.
    pub fn evaluate_where(&self, batch: &RecordBatch) -> Result<Selection> {
        let values = self.condition.as_ref().map(|condition| condition.evaluate(batch));
        values.transpose().map(Selection)
    }

    /// The name of the first filter of a stage that rejects the row.
    pub fn find_rejection(&self, stage: FilterStage, facts: &RowFacts) -> Option<&str> {
        let filters = self.filters.iter().filter(|filter| filter.rule.stage() == stage);
        filters.into_iter().find(|filter| !filter.rule.passes(facts)).map(|filter| filter.name.as_str())
    }

    /// The name of the first filter of [`FilterStage::Pixels`] that rejects this perceptual hash.
    pub fn find_pixel_rejection(&self, phash: u64) -> Option<&str> {
        let rejects =
            |filter: &&Filter| matches!(&filter.rule, Rule::NearDuplicate(list) if list.contains(phash));
        self.filters.iter().find(rejects).map(|filter| filter.name.as_str())
    }

    /// True if a filter decides at this stage.
    pub fn has_stage(&self, stage: FilterStage) -> bool {
        self.filters.iter().any(|filter| filter.rule.stage() == stage)
    }

    /// Digests (hex) of the lists' content, by filter name.
    pub fn list_digests(&self) -> BTreeMap<&str, String> {
        self.filters
            .iter()
            .filter_map(|filter| Some((filter.name.as_str(), filter.rule.list_digest()?)))
            .collect()
    }
}

/// Loads the filters of `[filter.blocklist]` or `[filter.opt_out]`.
fn load_blocklists(name: &str, config: &BlocklistConfig) -> Result<Vec<Filter>> {
    let mut filters = Vec::new();
    let mut add_list = |kind, uris: &OneOrMany, part, rule: fn(Blocklist) -> Rule| -> Result<()> {
        if !uris.as_slice().is_empty() {
            let list = Blocklist::load(part, &format!("filter.{name}.{kind}"), uris)?;
            filters.push(Filter { name: format!("{name}.{kind}"), rule: rule(list) });
        }
        Ok(())
    };
    add_list("keys", &config.keys, EntryKind::Key, Rule::Key)?;
    add_list("urls", &config.urls, EntryKind::Url, Rule::Url)?;
    add_list("domains", &config.domains, EntryKind::Domain, Rule::Url)?;
    add_list("sha256", &config.sha256, EntryKind::Sha256, Rule::Sha256)?;
    if !config.phash.as_slice().is_empty() {
        let list =
            load_near_duplicates(&format!("filter.{name}.phash"), &config.phash, config.phash_distance)?;
        filters.push(Filter { name: format!("{name}.phash"), rule: Rule::NearDuplicate(list) });
    }
    Ok(filters)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caption::language::detect_language;

    fn rejection(config: &FilterConfig, facts: RowFacts) -> Option<String> {
        Filters::new(config).unwrap().find_rejection(FilterStage::Header, &facts).map(str::to_owned)
    }

    fn facts(width: u32, height: u32, caption: &str) -> RowFacts<'_> {
        let (key, url) = ("k", None);
        RowFacts { key, url, width, height, caption, scores: &[], condition: true, sha256: None, phash: None }
    }

    #[test]
    fn each_filter_rejects_rows_outside_its_bounds() {
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
        let good = RowFacts { scores: &[Some(4.5), Some(0.1)], ..facts(100, 200, " cat ") };
        let cases = [
            (good, None),
            (RowFacts { width: 99, ..good }, Some("min_side")),
            (RowFacts { height: 99, ..good }, Some("min_side")),
            (RowFacts { height: 301, ..good }, Some("max_side")),
            (RowFacts { height: 149, ..good }, Some("min_area")),
            (RowFacts { height: 150, ..good }, None),
            (RowFacts { width: 200, height: 300, ..good }, None),
            (RowFacts { width: 201, height: 300, ..good }, Some("max_area")),
            (RowFacts { height: 201, ..good }, Some("max_aspect")),
            (RowFacts { width: 250, height: 101, ..good }, Some("max_aspect")),
            (RowFacts { caption: " ab ", ..good }, Some("caption_length")),
            (RowFacts { caption: "ÄÖÜßé", ..good }, None),
            (RowFacts { caption: "ÄÖÜßéa", ..good }, Some("caption_length")),
            (RowFacts { scores: &[Some(4.4), Some(0.0)], ..good }, Some("score.aesthetic")),
            (RowFacts { scores: &[None, Some(0.0)], ..good }, Some("score.aesthetic")),
            (RowFacts { scores: &[Some(9.0), Some(0.2)], ..good }, Some("score.unsafe")),
            (RowFacts { condition: false, ..good }, Some("where")),
            // The first filter in the list gives the reason.
            (RowFacts { width: 10, caption: "", condition: false, ..good }, Some("min_side")),
        ];
        for (facts, expected) in cases {
            assert_eq!(rejection(&config, facts).as_deref(), expected, "{facts:?}");
        }
        // These bounds are not exact binary fractions. An image exactly at a bound passes.
        for (aspect, width) in [(1.15, 115), (2.3, 230)] {
            let config = FilterConfig { max_aspect: Some(aspect), ..FilterConfig::default() };
            assert_eq!(rejection(&config, facts(width, 100, "")), None, "{aspect}");
            assert!(rejection(&config, facts(width + 1, 100, "")).is_some(), "{aspect}");
        }
    }

    #[test]
    fn captions_need_a_listed_language_and_its_confidence() {
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
                rejection(&config(confidence), facts(64, 64, caption)).as_deref(),
                expected,
                "{caption}"
            );
        }
    }
}
