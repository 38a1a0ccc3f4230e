//! Reads the vocabulary and the merges of a tokenizer folder, and checks them.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use serde::Deserialize;

use crate::error::Result;
use crate::tokenizer::bpe::Bpe;
use crate::tokenizer::special_tokens::{CONTEXT, SpecialToken, SpecialTokens};
use crate::tokenizer::text_file::TextFile;

/// The suffix of symbols at the end of a word.
const END: &str = "</w>";

/// The content of a tokenizer folder.
pub struct Folder {
    vocab: TextFile,
    merges: TextFile,
    ids: HashMap<String, u32>,
    special: SpecialTokens,
}

/// Reads vocabulary and merges from `tokenizer.json`, the single file that transformers 5 writes,
/// and converts them to the form of the two older files. Flags of begin and end of text are stored
/// in `special`.
fn read_tokenizer_json(path: &Path, special: &mut SpecialTokens) -> Result<[TextFile; 2]> {
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
    let file = TextFile::read(path.into())?;
    let Whole { added_tokens, model } = serde_json::from_str(&file.text).map_err(|e| file.to_error(e))?;
    for Added { content, normalized } in added_tokens {
        let tokens = [&mut special.bos, &mut special.eos].into_iter();
        tokens.filter(|token| token.content == content).for_each(|token| token.normalized = normalized);
    }
    let vocab = serde_json::to_string(&model.vocab).map_err(|e| file.to_error(e))?;
    let lines = model.merges.into_iter().map(|merge| match merge {
        Merge::Pair(pair) => pair.join(" "),
        Merge::Line(line) => line,
    });
    let merges = lines.collect::<Vec<_>>().join("\n");
    Ok([vocab, merges].map(|text| TextFile { path: path.into(), text }))
}

impl Folder {
    /// Reads the files of a folder.
    ///
    /// # Errors
    /// [`crate::Error::Tokenizer`] if a file is missing or malformed.
    pub fn read(folder: &Path) -> Result<Self> {
        let whole = folder.join("tokenizer.json");
        let mut special = SpecialTokens::read(folder)?;
        let [vocab, merges] = match !folder.join("vocab.json").exists() && whole.exists() {
            true => read_tokenizer_json(&whole, &mut special)?,
            false => [TextFile::read(folder.join("vocab.json"))?, TextFile::read(folder.join("merges.txt"))?],
        };
        let ids = serde_json::from_str(&vocab.text).map_err(|e| vocab.to_error(e))?;
        let mut folder = Self { vocab, merges, ids, special };
        let [bos, eos, _] = folder.special_ids()?;
        (folder.special.bos.id, folder.special.eos.id) = (bos, eos);
        Ok(folder)
    }

    /// The ids of begin of text, end of text and padding.
    ///
    /// # Errors
    /// If the vocabulary lacks one of them.
    pub fn special_ids(&self) -> Result<[u32; 3]> {
        let SpecialTokens { bos, eos, pad } = &self.special;
        let id = |token: &str| {
            self.ids
                .get(token)
                .copied()
                .ok_or_else(|| self.vocab.to_error(format!("has no token `{token}`; is it CLIP's?")))
        };
        Ok([id(&bos.content)?, id(&eos.content)?, id(pad)?])
    }

    /// The special tokens to search in captions. The padding token is an ordinary word.
    pub fn into_specials(self) -> Vec<SpecialToken> {
        vec![self.special.bos, self.special.eos]
    }

    /// The byte-pair encoding. A byte that the vocabulary lacks gets CLIP's unknown token, which is
    /// its end of text.
    ///
    /// # Errors
    /// If a merge is not a pair of known tokens.
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
            let wrong =
                || self.merges.to_error(format!("line {number} is no pair of known tokens: {line:?}"));
            merges.push(merge.ok_or_else(wrong)?);
        }
        Ok(Bpe::new(inner, last, merges.into_iter()))
    }

    /// BLAKE3 (hex) of everything that decides the ids.
    pub fn digest(&self) -> String {
        let files = [&self.vocab, &self.merges];
        let files = files.map(|file| blake3::hash(file.text.as_bytes()).to_hex().to_string());
        let SpecialTokens { bos, eos, pad } = &self.special;
        let json =
            serde_json::json!({"files": files, "bos": bos, "eos": eos, "pad": pad, "context": CONTEXT});
        blake3::hash(json.to_string().as_bytes()).to_hex().to_string()
    }
}

/// The character for each byte in GPT-2's and CLIP's vocabularies: the byte itself if it is
/// visible, else the next character from U+0100 on.
fn byte_symbols() -> [char; 256] {
    let mut invisible = '\u{100}'..;
    std::array::from_fn(|byte| match char::from_u32(byte as u32) {
        Some(c @ ('!'..='~' | '¡'..='¬' | '®'..='ÿ')) => c,
        _ => invisible.next().unwrap_or(char::REPLACEMENT_CHARACTER),
    })
}
