//! The caption stage: choice, clean-up, template, and the digest.

use std::sync::Arc;

use crate::support;
use crate::support::TOKENIZER;
use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, Int64Array, ListBuilder, RecordBatch, StringArray, StringBuilder,
    UInt64Array,
};
use arrow::datatypes::Int32Type;
use serde_json::json;
use tidemill_data::caption::clean;
use tidemill_data::{Bounds, Columns, OneOrMany};
use tidemill_data::{CaptionConfig, FilterConfig, Prepare, PrepareConfig, SourceConfig};

fn columns(names: &[&str]) -> OneOrMany {
    OneOrMany::Many(names.iter().map(|&name| name.to_owned()).collect())
}

fn stage(names: &[&str], caption: serde_json::Value, seed: u64) -> Prepare {
    let caption: CaptionConfig = serde_json::from_value(caption).unwrap();
    let columns = Columns { caption: columns(names), ..Columns::default() };
    let source = SourceConfig { columns, ..SourceConfig::default() };
    let filter =
        FilterConfig { caption_length: Bounds { min: None, max: Some(30) }, ..FilterConfig::default() };
    let prepare = PrepareConfig { resolutions: vec![8], ..PrepareConfig::default() };
    Prepare::new(&prepare, &filter, &source, &caption, seed, TOKENIZER.clone()).unwrap()
}

/// A batch of these columns with sample ids from 0 and the same image in each row.
fn batch(fields: Vec<(&str, ArrayRef)>) -> RecordBatch {
    let rows = fields[0].1.len();
    let png = support::png(&image::RgbImage::new(8, 8));
    let images: BinaryArray = (0..rows).map(|_| Some(png.as_slice())).collect();
    let ids = UInt64Array::from_iter_values(0..rows as u64);
    let own = [("image", Arc::new(images) as ArrayRef), ("sample_id", Arc::new(ids))];
    RecordBatch::try_from_iter(own.into_iter().chain(fields)).unwrap()
}

fn texts<const N: usize>(texts: [Option<&str>; N]) -> ArrayRef {
    Arc::new(StringArray::from(texts.to_vec()))
}

fn lists(rows: &[&[Option<&str>]]) -> ArrayRef {
    let mut lists = ListBuilder::new(StringBuilder::new());
    for row in rows {
        lists.append_value(row.iter().copied());
    }
    Arc::new(lists.finish())
}

fn column(output: &RecordBatch, name: &str) -> Vec<Option<String>> {
    output[name].as_string::<i32>().iter().map(|text| text.map(str::to_owned)).collect()
}

fn some<const N: usize>(texts: [&str; N]) -> Vec<Option<String>> {
    texts.iter().map(|text| Some((*text).to_owned())).collect()
}

#[test]
fn first_caption_that_is_not_blank_is_chosen() {
    let input = batch(vec![
        ("short", texts([Some("cat"), None, Some("  "), Some(""), None])),
        ("long", texts([Some("a cat"), Some("a dog"), Some("a cow"), Some(" "), None])),
    ]);
    let prepare = stage(&["short", "long"], json!({}), 0);
    let output = prepare.run(&input).unwrap();
    assert_eq!(output.schema(), prepare.schema(&input.schema()).unwrap());
    let expected = [Some("cat"), Some("a dog"), Some("a cow"), Some(" "), None];
    assert_eq!(column(&output, "caption"), expected.map(|text| text.map(str::to_owned)));
    let expected = [Some("short"), Some("long"), Some("long"), Some("long"), None];
    assert_eq!(column(&output, "caption_source"), expected.map(|text| text.map(str::to_owned)));
    assert_eq!(column(&output, "reason")[4].as_deref(), Some("missing: the caption is null"));

    let longest = stage(&["short", "long"], json!({"choice": "longest"}), 0).run(&input).unwrap();
    assert_eq!(column(&longest, "caption")[0].as_deref(), Some("a cat"));

    // With one column of one caption per row there is no column `caption_source`.
    let only = stage(&["short"], json!({}), 0).run(&input).unwrap();
    assert!(only.column_by_name("caption_source").is_none());
}

#[test]
fn caption_that_is_blank_after_cleaning_is_ignored() {
    let blank = "&nbsp;\u{feff} \0&#160; &nbsp;";
    let input = batch(vec![
        ("a", texts([Some("\u{feff}"), Some(blank), Some("cat"), Some(blank), Some("\0")])),
        ("b", texts([Some("a cat"), Some("\0"), Some(blank), None, Some(" ")])),
        ("c", texts([Some(blank), Some("a dog"), None, None, None])),
    ]);
    for choice in ["first", "longest", "random"] {
        let config = json!({"choice": choice, "clean": "open_clip"});
        let output = stage(&["a", "b", "c"], config, 3).run(&input).unwrap();
        assert_eq!(column(&output, "caption"), some(["a cat", "a dog", "cat", "", ""]), "{choice}");
        assert_eq!(column(&output, "caption_source")[..4], some(["b", "c", "a", "a"]), "{choice}");
    }
}

#[test]
fn list_items_are_candidates() {
    let rows: [&[Option<&str>]; 3] = [&[None, Some(""), Some("a cat"), Some("x")], &[Some("y")], &[]];
    let output = stage(&["list"], json!({}), 0).run(&batch(vec![("list", lists(&rows))])).unwrap();
    assert_eq!(column(&output, "caption")[..2], some(["a cat", "y"]));
    assert_eq!(column(&output, "caption_source")[..2], some(["list[2]", "list[0]"]));
    assert_eq!(column(&output, "status"), some(["kept", "kept", "quarantined"]));
}

#[test]
fn random_choice_depends_on_sample_id_and_seed_only() {
    let rows = 400;
    let column_of = |name: &str| -> ArrayRef { Arc::new(StringArray::from(vec![name; rows])) };
    let input = batch(vec![("a", column_of("a")), ("b", column_of("b"))]);
    let config =
        json!({"choice": "random", "weights": [0.75, 0.25], "template": ["{caption}", "_{caption}"]});
    let whole = column(&stage(&["a", "b"], config.clone(), 5).run(&input).unwrap(), "caption");
    let prepare = stage(&["a", "b"], config.clone(), 5);
    let parts = [(250, 150), (0, 250)].map(|(start, length)| input.slice(start, length));
    let [tail, head] = parts.map(|part| column(&prepare.run(&part).unwrap(), "caption"));
    assert_eq!(whole, [head, tail].concat());
    let other = column(&stage(&["a", "b"], config, 6).run(&input).unwrap(), "caption");
    assert_ne!(whole, other);
    let count = |text: &str| whole.iter().filter(|found| found.as_deref() == Some(text)).count();
    for (text, expected) in [("a", 150), ("_a", 150), ("b", 50), ("_b", 50)] {
        assert!(count(text).abs_diff(expected) < 40, "{text}: {}", count(text));
    }
}

#[test]
fn captions_are_cleaned_then_templated_then_filtered_and_tokenized() {
    let input = batch(vec![
        ("caption", texts([Some(" caf&eacute;  au lait "), Some("x"), Some("a cat")])),
        ("artist", texts([Some("A &amp; B"), None, Some("somebody with a very long name")])),
        ("year", Arc::new(Int64Array::from(vec![1935, 1936, 1937]))),
    ]);
    let config = json!({"clean": "open_clip", "template": "{caption}, {artist} ({year})"});
    let output = stage(&["caption"], config, 0).run(&input).unwrap();
    let expected = some([
        "café au lait, A &amp; B (1935)",
        "x,  (1936)",
        "a cat, somebody with a very long name (1937)",
    ]);
    assert_eq!(column(&output, "caption"), expected);
    assert_eq!(column(&output, "reason"), [None, None, Some("caption_length".to_owned())]);
    let ids = output["token_ids"].as_fixed_size_list().value(1);
    assert_eq!(ids.as_primitive::<Int32Type>().values()[..], TOKENIZER.encode("x,  (1936)"));
}

#[test]
fn unusable_template_columns_are_refused_by_name() {
    let config = json!({"template": "{caption} by {painter}"});
    let input = |column: &str| batch(vec![("caption", texts([Some("x")])), (column, lists(&[&[Some("x")]]))]);
    let error = |column| stage(&["caption"], config.clone(), 0).run(&input(column)).unwrap_err().to_string();
    assert!(error("artist").contains("no column `painter`, which caption.template names"));
    assert!(error("painter").contains("`painter`") && error("painter").contains("caption.template needs"));
}

#[test]
fn text_digest_changes_with_everything_that_shapes_the_text() {
    let text = |names: &[&str], config, seed| stage(names, config, seed).digests().text.clone();
    let base = text(&["a", "b"], json!({}), 0);
    assert_eq!(base, text(&["a", "b"], json!({"choice": "first"}), 1), "the seed decides nothing here");
    let random = text(&["a", "b"], json!({"choice": "random"}), 0);
    let others = [
        text(&["b", "a"], json!({}), 0),
        text(&["a", "b"], json!({"clean": "open_clip"}), 0),
        text(&["a", "b"], json!({"template": "{caption}."}), 0),
        text(&["a", "b"], json!({"choice": "random"}), 1),
        text(&["a", "b"], json!({"choice": "random", "weights": [0.1, 0.9]}), 0),
        random.clone(),
    ];
    assert!(others.iter().all(|other| *other != base) && others[3] != random && others[4] != random);
    let images = |config| stage(&["a"], config, 0).digests().images.clone();
    assert_eq!(images(json!({})), images(json!({"clean": "open_clip"})));
}

#[test]
fn cleaned_captions_equal_those_of_open_clip() {
    let folder = tempfile::tempdir().unwrap();
    support::python("clean.py", folder.path());
    let pairs: Vec<(String, String)> = support::json(&folder.path().join("clean.json"));
    assert!(pairs.len() >= 2000);
    let changed = pairs.iter().filter(|(text, expected)| text != expected).count();
    let different: Vec<_> =
        pairs.iter().filter(|(text, expected)| clean::open_clip(text) != *expected).collect();
    println!(
        "{} captions, {changed} in need of cleaning, {} cleaned differently",
        pairs.len(),
        different.len()
    );
    for (text, expected) in different.iter().take(10) {
        println!("{text:?}\n  ours  {:?}\n  theirs {expected:?}", clean::open_clip(text));
    }
    assert!(different.is_empty());
}
