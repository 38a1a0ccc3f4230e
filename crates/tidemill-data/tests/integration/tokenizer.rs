//! Token ids compared with the Hugging Face `tokenizers` library, on adversarial strings.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use tidemill_data::ClipTokenizer;

use crate::support;

/// Random captions that are compared.
const CAPTIONS: usize = 3000;

/// The vocabulary of the repository's tiny models, which is CLIP's.
fn assets() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/tokenizer")
}

/// A tokenizer with CLIP's vocabulary; `normalized` is that flag of its special tokens.
fn tokenizer(normalized: bool) -> ClipTokenizer {
    let folder = tempfile::tempdir().unwrap();
    for name in ["vocab.json", "merges.txt"] {
        std::fs::copy(assets().join(name), folder.path().join(name)).unwrap();
    }
    let token = |content| serde_json::json!({ "content": content, "normalized": normalized });
    let config = serde_json::json!({
        "bos_token": token("<|startoftext|>"), "eos_token": token("<|endoftext|>"), "pad_token": "!",
    });
    std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    ClipTokenizer::open(folder.path()).unwrap()
}

/// Tokenizers whose special tokens are looked for before and after normalisation.
static PLAIN: LazyLock<ClipTokenizer> = LazyLock::new(|| tokenizer(false));
static NORMALIZED: LazyLock<ClipTokenizer> = LazyLock::new(|| tokenizer(true));

/// Compares the ids of all captions with those of the library, in one Python process.
fn assert_ids_equal_those_of_hugging_face(captions: &[String]) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("captions.json"), serde_json::to_vec(captions).unwrap()).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/hugging_face.py");
    tidemill_testing::python(&script, &[assets().to_str().unwrap(), folder.path().to_str().unwrap()]);
    for (name, ours) in [("plain", &*PLAIN), ("normalized", &*NORMALIZED)] {
        let theirs: Vec<Vec<i32>> = support::json(&folder.path().join(format!("{name}.json")));
        assert_eq!(theirs.len(), captions.len());
        for (caption, theirs) in captions.iter().zip(theirs) {
            assert_eq!(ours.encode(caption).to_vec(), theirs, "{name}: {caption:?}");
        }
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

#[test]
fn token_ids_equal_those_of_hugging_face() {
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&tidemill_testing::seed().to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let captions: Vec<String> =
        (0..CAPTIONS).map(|_| text().new_tree(&mut runner).unwrap().current()).collect();
    assert_ids_equal_those_of_hugging_face(&captions);
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
            assert_eq!(whole.encode(caption), NORMALIZED.encode(caption), "{caption}");
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
    let captions: Vec<String> = all.map(|c| format!("a{c}b 1{c}2 !{c}? {c}{c}")).collect();
    assert_ids_equal_those_of_hugging_face(&captions);
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
    assert_ids_equal_those_of_hugging_face(&captions);
    // A megabyte of one word, of special tokens, of marks and of spaces.
    for part in ["猫", "<|endoftext|>", "<|ENDOFTEXT|>", "\u{327}\u{301}", " ", "<|", "'"] {
        NORMALIZED.encode(&part.repeat(1_000_000 / part.len()));
    }
}
