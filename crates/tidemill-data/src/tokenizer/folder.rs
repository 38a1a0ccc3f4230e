//! The files of a tokenizer folder, checked: vocabulary, merges and special tokens.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::tokenizer::bpe::Bpe;
use crate::tokenizer::special_tokens::CONTEXT;

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

/// Vocabulary and merges out of the one file that transformers 5 writes, in the form of the two files before it. What else it says
/// of begin and end of text goes to these.
fn from_one_file(path: &Path, special: &mut Specials) -> Result<[Text; 2]> {
    #[derive(Deserialize)]
    struct Whole {
        added_tokens: Vec<Added>,
        model: Model,
    }
    #[derive(Deserialize)]
    struct Added {
        content: String,
        normalized: bool,
    }
    #[derive(Deserialize)]
    struct Model {
        vocab: BTreeMap<String, u32>,
        merges: Vec<Merge>,
    }
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Merge {
        Pair([String; 2]),
        Line(String),
    }
    let file = Text::read(path.into())?;
    let Whole { added_tokens, model } = serde_json::from_str(&file.text).map_err(|e| file.fail(e))?;
    for Added { content, normalized } in added_tokens {
        let tokens = [&mut special.bos, &mut special.eos].into_iter();
        tokens.filter(|token| token.content == content).for_each(|token| token.normalized = normalized);
    }
    let vocab = serde_json::to_string(&model.vocab).map_err(|e| file.fail(e))?;
    let lines = model.merges.into_iter().map(|merge| match merge {
        Merge::Pair(pair) => pair.join(" "),
        Merge::Line(line) => line,
    });
    let merges = lines.collect::<Vec<_>>().join("\n");
    Ok([vocab, merges].map(|text| Text { path: path.into(), text }))
}

impl Folder {
    /// Reads the files.
    pub fn read(folder: &Path) -> Result<Self> {
        let whole = folder.join("tokenizer.json");
        let mut special = Specials::read(folder)?;
        let [vocab, merges] = match !folder.join("vocab.json").exists() && whole.exists() {
            true => from_one_file(&whole, &mut special)?,
            false => [Text::read(folder.join("vocab.json"))?, Text::read(folder.join("merges.txt"))?],
        };
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
        special.refuse_others(folder)?;
        Ok(special)
    }

    /// Tokens that somebody has added, as textual inversion does, would be cut into pieces.
    fn refuse_others(&self, folder: &Path) -> Result<()> {
        let known = [&self.bos.content, &self.eos.content, &self.pad];
        for name in
            ["added_tokens.json", "tokenizer_config.json", "special_tokens_map.json", "tokenizer.json"]
        {
            let path = folder.join(name);
            if !path.exists() {
                continue;
            }
            let file = Text::read(path)?;
            let json: Value = serde_json::from_str(&file.text).map_err(|e| file.fail(e))?;
            let added = if name == "added_tokens.json" { keys(&json) } else { added_tokens(&json) };
            if let Some(token) = added.into_iter().find(|token| !known.contains(&token)) {
                return Err(file.fail(format!("adds the token `{token}`: only CLIP's own are known here")));
            }
        }
        Ok(())
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

fn keys(json: &Value) -> Vec<String> {
    json.as_object().into_iter().flat_map(|object| object.keys().cloned()).collect()
}

/// The tokens that transformers' files call added, or special beside those with names of their own.
fn added_tokens(json: &Value) -> Vec<String> {
    let by_id = json["added_tokens_decoder"].as_object().into_iter().flat_map(|tokens| tokens.values());
    let listed = ["added_tokens", "additional_special_tokens", "extra_special_tokens"];
    let listed = listed.iter().filter_map(|key| json[*key].as_array()).flatten();
    let content = |token: &Value| Some(token.as_str().or_else(|| token["content"].as_str())?.to_owned());
    by_id.chain(listed).filter_map(content).collect()
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
