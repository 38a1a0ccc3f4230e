//! The columns that a run reads from its source.

use crate::caption::config::CaptionConfig;
use crate::error::Result;
use crate::filter::config::FilterConfig;
use crate::source::config::SourceConfig;

/// Lists every column that must be read, each once, with the configuration key that names it.
pub(crate) fn list_needed_columns(
    config: &SourceConfig,
    filter: &FilterConfig,
    caption: &CaptionConfig,
) -> Result<Vec<(String, String)>> {
    let parts = config.columns.by_role().map(|(role, name)| (name.clone(), format!("source.columns.{role}")));
    let carried = config.carry.iter().map(|name| (name.clone(), "source.carry".to_owned()));
    let scores = filter.score.keys().map(|name| (name.clone(), "filter.score".to_owned()));
    let condition = filter.parse_where().ok().flatten();
    let compared = condition.iter().flat_map(|condition| {
        condition.column_names().into_iter().map(|name| (name.clone(), condition.describe_position(&name)))
    });
    let mut needed: Vec<(String, String)> = Vec::new();
    let fields = caption.template_columns()?.into_iter().map(|name| (name, "caption.template".to_owned()));
    for (name, config_key) in parts.chain(carried).chain(scores).chain(fields).chain(compared) {
        if needed.iter().all(|(known, _)| *known != name) {
            needed.push((name, config_key));
        }
    }
    Ok(needed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::one_or_many::OneOrMany;

    #[test]
    fn column_with_two_uses_is_read_once() {
        let config = SourceConfig { carry: vec!["score".into()], ..SourceConfig::default() };
        let filter = FilterConfig {
            score: [("score".to_owned(), Default::default())].into(),
            condition: Some("nsfw = 'no' and score > 1 or nsfw is null".into()),
            ..FilterConfig::default()
        };
        let template = OneOrMany::One("{caption} by {artist}, {score}".into());
        let caption = CaptionConfig { template, ..CaptionConfig::default() };
        let needed = list_needed_columns(&config, &filter, &caption).unwrap();
        let names: Vec<_> = needed.into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["image", "caption", "score", "artist", "nsfw"]);
    }
}
