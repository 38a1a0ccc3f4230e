//! Token ids compared with the Hugging Face `tokenizers` crate, on adversarial strings.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use crate::support::hugging_face;
use proptest::prelude::*;
use tidemill_data::ClipTokenizer;
use tokenizers::Tokenizer;

/// The vocabulary of the repository's tiny models, which is CLIP's.
fn assets() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/tokenizer")
}

struct Pair {
    ours: ClipTokenizer,
    theirs: Tokenizer,
}

fn pair(normalized: bool) -> Pair {
    let folder = tempfile::tempdir().unwrap();
    for name in ["vocab.json", "merges.txt"] {
        std::fs::copy(assets().join(name), folder.path().join(name)).unwrap();
    }
    let token = |content| serde_json::json!({ "content": content, "normalized": normalized });
    let config = serde_json::json!({
        "bos_token": token("<|startoftext|>"), "eos_token": token("<|endoftext|>"), "pad_token": "!",
    });
    std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    Pair {
        ours: ClipTokenizer::open(folder.path()).unwrap(),
        theirs: hugging_face::tokenizer(folder.path(), normalized),
    }
}

static PAIRS: LazyLock<[Pair; 2]> = LazyLock::new(|| [pair(false), pair(true)]);

fn assert_same(caption: &str) {
    for Pair { ours, theirs } in PAIRS.iter() {
        assert_eq!(ours.encode(caption).to_vec(), hugging_face::ids(theirs, caption, 0), "{caption:?}");
    }
}

/// Ordinary text, text from all of Unicode, and strings for which the tokenizer has rules.
fn text() -> impl Strategy<Value = String> {
    let rules = prop::sample::select(vec![
        "<|startoftext|>",
        "<|endoftext|>",
        "<|ENDOFTEXT|>",
        "<|",
        "|>",
        "'s",
        "'ll",
        "'",
        "''",
        "!",
        "</w>",
        "<",
        " ",
        "\u{a0}",
        "\u{3000}",
        "\0",
        "\u{301}",
        "\u{323}",
        "\u{1d165}",
        "İ",
        "ſ",
        "ﬁ",
        "½",
        "Ⅷ",
        "한",
        "ᄒ",
        "ᅡ",
        "\u{344}",
        "👩‍👩‍👧",
        "a",
        "photo",
        "THE",
    ]);
    let part = prop_oneof![
        3 => rules.prop_map(str::to_owned),
        2 => any::<char>().prop_map(String::from),
        1 => "[a-z]{1,30}",
        1 => "\\PC{0,6}",
        1 => "[\u{300}-\u{36f}\u{590}-\u{6ff}\u{900}-\u{9ff}\u{1100}-\u{11ff}]{0,4}",
    ];
    prop::collection::vec(part, 0..60).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn token_ids_equal_those_of_hugging_face(caption in text()) {
        assert_same(&caption);
    }
}

#[test]
fn tokenizer_json_equals_vocab_and_merges_and_added_tokens_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let read = |name: &str| std::fs::read_to_string(assets().join(name)).unwrap();
    let vocab: serde_json::Value = serde_json::from_str(&read("vocab.json")).unwrap();
    let lines = read("merges.txt");
    let merges: Vec<Vec<&str>> = lines.lines().skip(1).map(|line| line.split(' ').collect()).collect();
    let added = |content: &str| serde_json::json!({ "content": content, "normalized": true });
    let write = |merges: &serde_json::Value, more: &str| {
        let added = ["!", "<|startoftext|>", "<|endoftext|>", more].map(added);
        let file =
            serde_json::json!({ "added_tokens": added, "model": { "vocab": vocab, "merges": merges } });
        std::fs::write(folder.path().join("tokenizer.json"), file.to_string()).unwrap();
        ClipTokenizer::open(folder.path())
    };
    std::fs::write(folder.path().join("tokenizer_config.json"), r#"{ "pad_token": "!" }"#).unwrap();
    let pairs = serde_json::json!(merges);
    let joined = serde_json::json!(lines.lines().skip(1).collect::<Vec<_>>());
    for merges in [&pairs, &joined] {
        let whole = write(merges, "!").unwrap();
        for caption in ["a small red circle!", "<|ENDOFTEXT|> it's", "Größe 猫"] {
            assert_eq!(whole.encode(caption), PAIRS[1].ours.encode(caption), "{caption}");
        }
    }
    let error = write(&pairs, "<cat-toy>").err().unwrap().to_string();
    assert!(error.contains("tokenizer.json") && error.contains("`<cat-toy>`"), "{error}");
}

#[test]
fn characters_are_classified_as_by_hugging_face() {
    // One character of every 97, and all Latin, Greek, Cyrillic and Hebrew ones: alone, and next to
    // letters, numbers and punctuation.
    let start = tidemill_testing::seed() % 97;
    let all = ('\0'..=char::MAX).filter(|&c| c < '\u{600}' || u64::from(c as u32) % 97 == start);
    for c in all {
        assert_same(&format!("a{c}b 1{c}2 !{c}? {c}{c}"));
    }
}

#[test]
fn very_long_captions_are_truncated() {
    let random = |i: u64| char::from(b'a' + (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as u8);
    let captions = [
        "a".repeat(100_000),
        (0..100_000).map(random).collect(),
        "\u{301}".repeat(50_000),
        "!?".repeat(50_000),
        "\0".repeat(10_000),
    ];
    for caption in &captions {
        assert_same(caption);
    }
    // A megabyte of one word, of special tokens, of marks and of spaces.
    for part in ["猫", "<|endoftext|>", "<|ENDOFTEXT|>", "\u{327}\u{301}", " ", "<|", "'"] {
        PAIRS[1].ours.encode(&part.repeat(1_000_000 / part.len()));
    }
}
