//! The files of a tokenizer folder, checked: vocabulary, merges and special tokens.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use super::CONTEXT;
use super::bpe::Bpe;
use crate::error::{Error, Result};

/// Marks the symbols that end a word.
const END: &str = "</w>";

/// What a folder holds.
pub struct Folder {
    vocab: Text,
    merges: Text,
    ids: HashMap<String, u32>,
    special: Specials,
}

/// A token with a meaning of its own.
#[derive(Debug, Clone, Serialize)]
pub struct SpecialToken {
    /// How it is written in a text.
    pub content: String,
    /// Whether it is looked for in the normalised text.
    pub normalized: bool,
    /// Its id.
    #[serde(skip)]
    pub id: u32,
}

/// Begin and end of text, and the name of the token that fills up.
struct Specials {
    bos: SpecialToken,
    eos: SpecialToken,
    pad: String,
}

impl Folder {
    /// Reads the files.
    pub fn read(folder: &Path) -> Result<Self> {
        let vocab = Text::read(folder.join("vocab.json"))?;
        let merges = Text::read(folder.join("merges.txt"))?;
        let special = Specials::read(folder)?;
        let ids = serde_json::from_str(&vocab.text).map_err(|e| vocab.fail(e))?;
        let mut folder = Self { vocab, merges, ids, special };
        let [bos, eos, _] = folder.special_ids()?;
        (folder.special.bos.id, folder.special.eos.id) = (bos, eos);
        Ok(folder)
    }

    /// The ids of begin of text, end of text and padding.
    pub fn special_ids(&self) -> Result<[u32; 3]> {
        let Specials { bos, eos, pad } = &self.special;
        let id = |token: &str| {
            self.ids
                .get(token)
                .copied()
                .ok_or_else(|| self.vocab.fail(format!("has no token `{token}`; is it CLIP's?")))
        };
        Ok([id(&bos.content)?, id(&eos.content)?, id(pad)?])
    }

    /// The tokens to look for in captions. The one that fills up is a word like any other.
    pub fn into_specials(self) -> Vec<SpecialToken> {
        vec![self.special.bos, self.special.eos]
    }

    /// Symbols and merges. A byte that the vocabulary lacks is unknown, which is what CLIP calls its end of text.
    pub fn bpe(&self) -> Result<Bpe> {
        let symbols = byte_symbols();
        let id = |symbol: &str| self.ids.get(symbol).copied();
        let unknown = self.special.eos.id;
        let inner = symbols.map(|symbol| id(&symbol.to_string()).unwrap_or(unknown));
        let last = symbols.map(|symbol| id(&format!("{symbol}{END}")).unwrap_or(unknown));

        let mut merges = Vec::new();
        for (number, line) in (1..).zip(self.merges.text.lines()) {
            if line.starts_with("#version") || line.is_empty() {
                continue;
            }
            let pair = line.split_once(' ');
            let merge =
                pair.and_then(|(left, right)| Some([id(left)?, id(right)?, id(&format!("{left}{right}"))?]));
            let wrong = || self.merges.fail(format!("line {number} is no pair of known tokens: {line:?}"));
            merges.push(merge.ok_or_else(wrong)?);
        }
        Ok(Bpe::new(inner, last, merges.into_iter()))
    }

    /// BLAKE3 (hex) of everything that decides the ids.
    pub fn digest(&self) -> String {
        let files = [&self.vocab, &self.merges];
        let files = files.map(|file| blake3::hash(file.text.as_bytes()).to_hex().to_string());
        let Specials { bos, eos, pad } = &self.special;
        let json =
            serde_json::json!({"files": files, "bos": bos, "eos": eos, "pad": pad, "context": CONTEXT});
        blake3::hash(json.to_string().as_bytes()).to_hex().to_string()
    }
}

/// The character that stands for each byte in GPT-2's and CLIP's vocabularies: itself where it is visible, or else
/// the next one from U+0100 on.
fn byte_symbols() -> [char; 256] {
    let mut invisible = '\u{100}'..;
    std::array::from_fn(|byte| match char::from_u32(byte as u32) {
        Some(c @ ('!'..='~' | '¡'..='¬' | '®'..='ÿ')) => c,
        _ => invisible.next().unwrap_or(char::REPLACEMENT_CHARACTER),
    })
}

impl Specials {
    fn read(folder: &Path) -> Result<Self> {
        let plain = |content: &str| SpecialToken { content: content.into(), normalized: false, id: 0 };
        let (bos, eos) = (plain("<|startoftext|>"), plain("<|endoftext|>"));
        let mut special = Self { pad: eos.content.clone(), bos, eos };
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
            special.update(&json).map_err(|(key, problem)| file.fail(format!("`{key}` {problem}")))?;
        }
        Ok(special)
    }

    fn update(&mut self, json: &Value) -> Result<(), (&'static str, &'static str)> {
        let token = |key| json.get(key).map(|json| special_token(json).map_err(|problem| (key, problem)));
        if let Some(token) = token("bos_token") {
            self.bos = token?;
        }
        if let Some(token) = token("eos_token") {
            self.eos = token?;
        }
        if let Some(token) = token("pad_token") {
            self.pad = token?.content;
        }
        Ok(())
    }
}

/// A token written as a string or as transformers' `AddedToken`. Its `lstrip` and `rstrip` make no difference, for
/// white space gives no ids.
fn special_token(json: &Value) -> Result<SpecialToken, &'static str> {
    let content = json.as_str().or_else(|| json.get("content")?.as_str()).ok_or("is no token")?;
    let flag = |name| json.get(name).and_then(Value::as_bool).unwrap_or(false);
    if flag("single_word") {
        return Err("is marked `single_word`, which no CLIP tokenizer is");
    }
    if content.is_empty() {
        return Err("is empty");
    }
    Ok(SpecialToken { content: content.to_owned(), normalized: flag("normalized"), id: 0 })
}

/// A text file and its path, for messages.
struct Text {
    path: PathBuf,
    text: String,
}

impl Text {
    fn read(path: PathBuf) -> Result<Self> {
        let text = fs::read_to_string(&path).map_err(|e| {
            let problem =
                format!("{e}; a tokenizer folder has vocab.json and merges.txt, as in diffusers' layout");
            fail(&path, problem)
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
