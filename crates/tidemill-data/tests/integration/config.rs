//! The run file's sections: defaults, and refusal of unknown keys and invalid values.

use serde::de::DeserializeOwned;
use serde_json::json;
use tidemill_data::Columns;
use tidemill_data::{CaptionConfig, FilterConfig, PrepareConfig, SourceConfig};

fn parse<T: DeserializeOwned>(value: serde_json::Value) -> Result<T, String> {
    serde_json::from_value(value).map_err(|e| e.to_string())
}

#[test]
fn sections_have_defaults() {
    let source: SourceConfig = parse(json!({"uri": "data/*.parquet", "columns": {"image": "jpg"}})).unwrap();
    assert_eq!(source.uri.as_slice(), ["data/*.parquet"]);
    assert_eq!(
        (source.columns.image.as_str(), source.columns.caption.as_slice()),
        ("jpg", &["caption".to_owned()][..])
    );
    source.validate().unwrap();
    let filter: FilterConfig = parse(json!({"score": {"aesthetic": {"min": 4.5}}})).unwrap();
    filter.validate().unwrap();
    assert_eq!(filter.score["aesthetic"].min, Some(4.5));
    let prepare: PrepareConfig = parse(json!({"resolutions": [256, 512], "crop": "center"})).unwrap();
    prepare.validate().unwrap();
    let buckets =
        json!({"resolutions": [64, 128], "crop": "bucket", "buckets": {"64": [[96, 48], [64, 64]]}});
    let prepare: PrepareConfig = parse(buckets).unwrap();
    prepare.validate().unwrap();
    assert_eq!(prepare.sizes(64), [(96, 48), (64, 64)]);
    assert!(prepare.sizes(128).len() > 2);
    let caption: CaptionConfig =
        parse(json!({"clean": "open_clip", "template": ["{caption}", "{a}"]})).unwrap();
    caption.validate(&source.columns).unwrap();
}

#[test]
fn unknown_keys_and_values_are_refused_by_name() {
    let cases = [
        (parse::<SourceConfig>(json!({"urls": "x"})).err(), "urls"),
        (parse::<SourceConfig>(json!({"format": "zip"})).err(), "zip"),
        (parse::<SourceConfig>(json!({"uri": 3})).err(), "a string, or a list"),
        (parse::<SourceConfig>(json!({"columns": {"img": "x"}})).err(), "img"),
        (parse::<FilterConfig>(json!({"score": {"a": {"least": 1}}})).err(), "least"),
        (parse::<PrepareConfig>(json!({"crop": "middle"})).err(), "middle"),
        (parse::<CaptionConfig>(json!({"clean": "clip"})).err(), "clip"),
        (parse::<CaptionConfig>(json!({"choices": "first"})).err(), "choices"),
        (parse::<PrepareConfig>(json!({"resample": "hamming"})).err(), "hamming"),
    ];
    for (error, name) in cases {
        let error = error.unwrap_or_else(|| panic!("{name} was accepted"));
        assert!(error.contains(name), "{error}");
    }
}

#[test]
fn invalid_values_are_refused_by_key() {
    let source = |value| parse::<SourceConfig>(value).unwrap().validate();
    let filter = |value| parse::<FilterConfig>(value).unwrap().validate();
    let caption = |value| parse::<CaptionConfig>(value).unwrap().validate(&Columns::default());
    let prepare = |value| parse::<PrepareConfig>(value).unwrap().validate();
    let cases = [
        (source(json!({})), "source.uri"),
        (source(json!({"uri": [""]})), "source.uri"),
        (source(json!({"uri": "x", "columns": {"image": "caption"}})), "source.columns"),
        (source(json!({"uri": "x", "columns": {"caption": []}})), "source.columns.caption"),
        (source(json!({"uri": "x", "columns": {"caption": ["a", "a"]}})), "source.columns"),
        (source(json!({"uri": "x", "carry": ["status"]})), "source.carry"),
        (source(json!({"uri": "x", "carry": ["image"]})), "source.carry"),
        (source(json!({"uri": "x", "carry": ["size_64"]})), "source.carry"),
        (source(json!({"uri": "x", "carry": ["a", "a"]})), "source.carry"),
        (source(json!({"uri": "x", "rows_per_batch": 0})), "source.rows_per_batch"),
        (source(json!({"uri": "x", "rows_per_unit": 0})), "source.rows_per_unit"),
        (filter(json!({"max_aspect": 0.5})), "filter.max_aspect"),
        (filter(json!({"caption_length": {"min": 5, "max": 4}})), "filter.caption_length"),
        (filter(json!({"languages": ["en", "is"]})), "filter.languages: \"is\" is none of"),
        (filter(json!({"languages": ["EN"]})), "filter.languages: \"EN\" is none of"),
        (filter(json!({"languages": ["no"]})), "filter.languages: Norwegian is found as \"nb\""),
        (filter(json!({"score": {"a": {}}})), "filter.score.a"),
        (filter(json!({"score": {"a": {"min": 2.0, "max": 1.0}}})), "filter.score.a"),
        (caption(json!({"choice": "random", "weights": [0.5, 0.5]})), "caption.weights"),
        (caption(json!({"choice": "random", "weights": [-1.0]})), "caption.weights"),
        (caption(json!({"choice": "random", "weights": [0.0]})), "caption.weights"),
        (caption(json!({"weights": [1.0]})), "caption.weights"),
        (caption(json!({"template": []})), "caption.template"),
        (caption(json!({"template": ["{caption}", "{image}"]})), "caption.template"),
        (caption(json!({"template": "a {caption"})), "caption.template"),
        (prepare(json!({"resolutions": []})), "prepare.resolutions"),
        (prepare(json!({"resolutions": [250]})), "prepare.resolutions"),
        (prepare(json!({"resolutions": [256, 256]})), "prepare.resolutions"),
        (prepare(json!({"bucket_step": 64})), "prepare.bucket_step"),
        (prepare(json!({"crop": "bucket", "bucket_step": 12})), "prepare.bucket_step"),
        (prepare(json!({"crop": "bucket", "max_bucket_aspect": 0.5})), "prepare.max_bucket_aspect"),
        (prepare(json!({"crop": "random", "buckets": {"256": [[256, 256]]}})), "prepare.buckets"),
        (prepare(json!({"crop": "bucket", "buckets": {"512": [[512, 512]]}})), "prepare.buckets.512"),
        (prepare(json!({"crop": "bucket", "buckets": {"256": []}})), "prepare.buckets.256"),
        (prepare(json!({"crop": "bucket", "buckets": {"256": [[250, 256]]}})), "prepare.buckets.256"),
    ];
    for (result, key) in cases {
        let error = result.unwrap_err().to_string();
        assert!(error.starts_with(key), "{error}");
    }
}
