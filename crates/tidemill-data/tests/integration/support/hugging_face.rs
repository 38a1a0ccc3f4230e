//! The pipeline that transformers' `CLIPTokenizer` configures, from the Hugging Face `tokenizers`
//! crate: the reference for token ids and speed.

use std::collections::HashMap;
use std::path::Path;

use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::replace::ReplacePattern;
use tokenizers::normalizers::{Lowercase, NFC, Replace, Sequence as Normalizers};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence as PreTokenizers;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::processors::roberta::RobertaProcessing;
use tokenizers::{AddedToken, NormalizerWrapper, SplitDelimiterBehavior, Tokenizer, TruncationParams};

/// CLIP's expression for words, from its `simple_tokenizer.py`.
const WORDS: &str =
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+";

/// The tokenizer of a folder with `vocab.json` and `merges.txt`. `normalized` is that flag of the
/// special tokens.
pub fn tokenizer(folder: &Path, normalized: bool) -> Tokenizer {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let vocab: HashMap<String, u32> = serde_json::from_str(&read("vocab.json")).unwrap();
    let id = |token: &str| (token.to_owned(), vocab[token]);
    let ends = RobertaProcessing::new(id("<|endoftext|>"), id("<|startoftext|>"));
    let pair = |line: &str| line.split_once(' ').map(|(left, right)| (left.to_owned(), right.to_owned()));
    let merges = read("merges.txt").lines().skip(1).filter_map(pair).collect();

    let model = BPE::builder()
        .vocab_and_merges(vocab.into_iter().collect::<tokenizers::models::bpe::Vocab>(), merges)
        .unk_token("<|endoftext|>".into())
        .end_of_word_suffix("</w>".into());
    let mut tokenizer = Tokenizer::new(model.build().unwrap());
    tokenizer
        .with_normalizer(Some(Normalizers::new(vec![
            NormalizerWrapper::NFC(NFC),
            Replace::new(ReplacePattern::Regex(r"\s+".into()), " ").unwrap().into(),
            Lowercase.into(),
        ])))
        .unwrap();
    let words = Split::new(SplitPattern::Regex(WORDS.into()), SplitDelimiterBehavior::Removed, true).unwrap();
    let bytes = ByteLevel::new(false, true, true);
    tokenizer.with_pre_tokenizer(Some(PreTokenizers::new(vec![words.into(), bytes.into()])));
    let special = |content: &str| AddedToken::from(content, true).normalized(normalized);
    tokenizer.add_special_tokens([special("<|startoftext|>"), special("<|endoftext|>")]).unwrap();
    tokenizer.with_post_processor(Some(ends.trim_offsets(false).add_prefix_space(false)));
    tokenizer.with_truncation(Some(TruncationParams { max_length: 77, ..Default::default() })).unwrap();
    tokenizer
}

/// Ids of one caption, padded with `pad`.
pub fn ids(tokenizer: &Tokenizer, caption: &str, pad: i32) -> Vec<i32> {
    let encoding = tokenizer.encode_fast(caption, true).unwrap();
    let mut ids: Vec<i32> = encoding.get_ids().iter().map(|id| id.cast_signed()).collect();
    ids.resize(77, pad);
    ids
}
