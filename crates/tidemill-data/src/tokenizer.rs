//! The CLIP tokenizer of a diffusers-layout `tokenizer/` folder: captions to 77 token ids, begin and end included,
//! padded as the model was trained. Same ids as transformers' `CLIPTokenizer`, on all cores.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use serde_json::Value;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::replace::ReplacePattern;
use tokenizers::normalizers::{Lowercase, NFC, Replace, Sequence as Normalizers};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence as PreTokenizers;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::processors::roberta::RobertaProcessing;
use tokenizers::{AddedToken, NormalizerWrapper, SplitDelimiterBehavior, Tokenizer, TruncationParams};

use crate::error::{Error, Result};

/// Length of a token sequence, begin and end of text included.
pub const CONTEXT: usize = 77;

/// What CLIP counts as a word, from its `simple_tokenizer.py`.
const WORDS: &str =
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+";

/// Captions to token ids.
pub struct ClipTokenizer {
    tokenizer: Tokenizer,
    pad: u32,
    digest: String,
}

impl ClipTokenizer {
    /// Opens a folder with `vocab.json` and `merges.txt`, and optionally `tokenizer_config.json` and
    /// `special_tokens_map.json` (which wins), from which only the special tokens are taken.
    ///
    /// The padding token is looked up, not registered as special: Stable Diffusion 2 pads with `!` (id 0), and a
    /// literal `!` in a caption must stay a word.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if a file is missing or malformed, or a special token is not in the vocabulary.
    pub fn open(folder: &Path) -> Result<Self> {
        let vocab = Text::read(folder.join("vocab.json"))?;
        let merges = Text::read(folder.join("merges.txt"))?;
        let special = SpecialTokens::read(folder)?;

        let words: HashMap<String, u32> = serde_json::from_str(&vocab.text).map_err(|e| vocab.fail(e))?;
        let id = |token: &str| {
            words
                .get(token)
                .copied()
                .ok_or_else(|| vocab.fail(format!("has no token `{token}`; is it CLIP's?")))
        };
        let (bos, eos, pad) = (id(&special.bos.content)?, id(&special.eos.content)?, id(&special.pad)?);
        let digest = digest(&[&vocab.text, &merges.text], &special)?;

        let model = BPE::builder()
            .vocab_and_merges(words.into_iter().collect::<Vocab>(), parse_merges(&merges)?)
            .unk_token(special.eos.content.clone())
            .end_of_word_suffix("</w>".into())
            .build()
            .map_err(|e| merges.fail(e))?;
        let tokenizer = assemble(model, &special, bos, eos).map_err(|e| fail(folder, e))?;
        Ok(Self { tokenizer, pad, digest })
    }

    /// The ids of one caption, [`CONTEXT`] of them.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the vocabulary lacks a byte, which CLIP's does not.
    pub fn encode(&self, caption: &str) -> Result<[i32; CONTEXT]> {
        let encoding = self.tokenizer.encode_fast(caption, true).map_err(|e| fail(Path::new("encode"), e))?;
        let mut ids = [self.pad.cast_signed(); CONTEXT];
        for (slot, id) in ids.iter_mut().zip(encoding.get_ids()) {
            *slot = id.cast_signed();
        }
        Ok(ids)
    }

    /// How many ids a caption has, begin and end of text included; [`CONTEXT`] at most.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn length(&self, caption: &str) -> Result<usize> {
        let encoding = self.tokenizer.encode_fast(caption, true).map_err(|e| fail(Path::new("encode"), e))?;
        Ok(encoding.get_ids().len())
    }

    /// The ids of many captions, in order, computed on the threads of the current rayon pool.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_batch(&self, captions: &[&str]) -> Result<Vec<[i32; CONTEXT]>> {
        captions.par_iter().with_min_len(8).map(|caption| self.encode(caption)).collect()
    }

    /// The id that fills the places after the end of text.
    pub fn pad_id(&self) -> u32 {
        self.pad
    }

    /// BLAKE3 (hex) of everything that decides the ids.
    pub fn digest(&self) -> &str {
        &self.digest
    }
}

/// The pipeline of transformers' `CLIPTokenizer`, step by step.
fn assemble(model: BPE, special: &SpecialTokens, bos: u32, eos: u32) -> tokenizers::Result<Tokenizer> {
    let mut tokenizer = Tokenizer::new(model);
    tokenizer.with_normalizer(Some(Normalizers::new(vec![
        NormalizerWrapper::NFC(NFC),
        Replace::new(ReplacePattern::Regex(r"\s+".into()), " ")?.into(),
        Lowercase.into(),
    ])))?;
    let words = Split::new(SplitPattern::Regex(WORDS.into()), SplitDelimiterBehavior::Removed, true)?;
    let bytes = ByteLevel::new(false, true, true);
    tokenizer.with_pre_tokenizer(Some(PreTokenizers::new(vec![words.into(), bytes.into()])));
    tokenizer.add_special_tokens([special.bos.clone(), special.eos.clone()])?;
    let ends = RobertaProcessing::new((special.eos.content.clone(), eos), (special.bos.content.clone(), bos));
    tokenizer.with_post_processor(Some(ends.trim_offsets(false).add_prefix_space(false)));
    tokenizer.with_truncation(Some(TruncationParams { max_length: CONTEXT, ..Default::default() }))?;
    Ok(tokenizer)
}

/// The pairs of `merges.txt`, whose first line may be a version.
fn parse_merges(merges: &Text) -> Result<Vec<(String, String)>> {
    let lines = merges.text.lines().enumerate();
    let pairs = lines.filter(|(_, line)| !line.starts_with("#version") && !line.is_empty());
    pairs
        .map(|(i, line)| match line.split_once(' ') {
            Some((left, right)) => Ok((left.to_owned(), right.to_owned())),
            None => Err(merges.fail(format!("line {} is no pair of tokens: {line:?}", i + 1))),
        })
        .collect()
}

/// The tokens with a meaning of their own.
struct SpecialTokens {
    bos: AddedToken,
    eos: AddedToken,
    pad: String,
}

impl SpecialTokens {
    fn read(folder: &Path) -> Result<Self> {
        let mut special = Self {
            bos: AddedToken::from("<|startoftext|>", true),
            eos: AddedToken::from("<|endoftext|>", true),
            pad: "<|endoftext|>".into(),
        };
        for name in ["tokenizer_config.json", "special_tokens_map.json"] {
            let path = folder.join(name);
            if !path.exists() {
                continue;
            }
            let file = Text::read(path)?;
            let json: Value = serde_json::from_str(&file.text).map_err(|e| file.fail(e))?;
            if json
                .get("model_max_length")
                .and_then(Value::as_u64)
                .is_some_and(|length| length < CONTEXT as u64)
            {
                return Err(file.fail(format!("model_max_length must be {CONTEXT}, as CLIP's")));
            }
            special.update(&json).map_err(|key| file.fail(format!("`{key}` is no token")))?;
        }
        Ok(special)
    }

    fn update(&mut self, json: &Value) -> Result<(), &'static str> {
        if let Some(token) = json.get("bos_token") {
            self.bos = added_token(token).ok_or("bos_token")?;
        }
        if let Some(token) = json.get("eos_token") {
            self.eos = added_token(token).ok_or("eos_token")?;
        }
        if let Some(token) = json.get("pad_token") {
            self.pad = added_token(token).ok_or("pad_token")?.content;
        }
        Ok(())
    }
}

/// A token written as a string or as transformers' `AddedToken`.
fn added_token(json: &Value) -> Option<AddedToken> {
    let content = json.as_str().or_else(|| json.get("content")?.as_str())?;
    let flag = |name| json.get(name).and_then(Value::as_bool).unwrap_or(false);
    let token = AddedToken::from(content, true);
    Some(
        token
            .normalized(flag("normalized"))
            .lstrip(flag("lstrip"))
            .rstrip(flag("rstrip"))
            .single_word(flag("single_word")),
    )
}

fn digest(files: &[&str], special: &SpecialTokens) -> Result<String> {
    let files: Vec<String> =
        files.iter().map(|text| blake3::hash(text.as_bytes()).to_hex().to_string()).collect();
    let json = serde_json::json!({
        "files": files, "bos": special.bos, "eos": special.eos, "pad": special.pad, "context": CONTEXT,
    });
    Ok(blake3::hash(json.to_string().as_bytes()).to_hex().to_string())
}

/// A text file and its path, for messages.
struct Text {
    path: PathBuf,
    text: String,
}

impl Text {
    fn read(path: PathBuf) -> Result<Self> {
        let text = fs::read_to_string(&path).map_err(|e| {
            fail(
                &path,
                format!("{e}; a tokenizer folder has vocab.json and merges.txt, as in diffusers' layout"),
            )
        })?;
        Ok(Self { path, text })
    }

    fn fail(&self, problem: impl ToString) -> Error {
        fail(&self.path, problem)
    }
}

fn fail(path: &Path, problem: impl ToString) -> Error {
    Error::Tokenizer { path: path.display().to_string(), problem: problem.to_string() }
}
