//! The special tokens of a tokenizer folder: begin and end of text, and padding.

use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use crate::error::Result;
use crate::tokenizer::text_file::TextFile;

/// Length of a token sequence, begin and end of text included.
pub const CONTEXT: usize = 77;

/// A special token.
#[derive(Debug, Clone, Serialize)]
pub struct SpecialToken {
    /// Text of the token.
    pub content: String,
    /// True if it is searched in the normalised text.
    pub normalized: bool,
    /// Id of the token; 0 until the vocabulary is read.
    #[serde(skip)]
    pub id: u32,
}

/// Begin and end of text, and the text of the padding token.
pub struct SpecialTokens {
    pub bos: SpecialToken,
    pub eos: SpecialToken,
    pub pad: String,
}

impl SpecialTokens {
    pub fn read(folder: &Path) -> Result<Self> {
        let plain = |content: &str| SpecialToken { content: content.into(), normalized: false, id: 0 };
        let (bos, eos) = (plain("<|startoftext|>"), plain("<|endoftext|>"));
        let mut special = Self { pad: eos.content.clone(), bos, eos };
        for name in ["tokenizer_config.json", "special_tokens_map.json"] {
            let path = folder.join(name);
            if !path.exists() {
                continue;
            }
            let file = TextFile::read(path)?;
            let json: Value = serde_json::from_str(&file.text).map_err(|e| file.to_error(e))?;
            if json
                .get("model_max_length")
                .and_then(Value::as_u64)
                .is_some_and(|length| length < CONTEXT as u64)
            {
                return Err(file.to_error(format!("model_max_length must be {CONTEXT}, as CLIP's")));
            }
            special
                .update_from(&json)
                .map_err(|(key, problem)| file.to_error(format!("`{key}` {problem}")))?;
        }
        special.check_no_added_tokens(folder)?;
        Ok(special)
    }

    /// Rejects added tokens, such as those of textual inversion: they would be split into words.
    fn check_no_added_tokens(&self, folder: &Path) -> Result<()> {
        let known = [&self.bos.content, &self.eos.content, &self.pad];
        for name in
            ["added_tokens.json", "tokenizer_config.json", "special_tokens_map.json", "tokenizer.json"]
        {
            let path = folder.join(name);
            if !path.exists() {
                continue;
            }
            let file = TextFile::read(path)?;
            let json: Value = serde_json::from_str(&file.text).map_err(|e| file.to_error(e))?;
            let added = if name == "added_tokens.json" { object_keys(&json) } else { added_tokens(&json) };
            if let Some(token) = added.into_iter().find(|token| !known.contains(&token)) {
                return Err(
                    file.to_error(format!("adds the token `{token}`: only CLIP's own are known here"))
                );
            }
        }
        Ok(())
    }

    fn update_from(&mut self, json: &Value) -> Result<(), (&'static str, &'static str)> {
        let token =
            |key| json.get(key).map(|json| parse_special_token(json).map_err(|problem| (key, problem)));
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

fn object_keys(json: &Value) -> Vec<String> {
    json.as_object().into_iter().flat_map(|object| object.keys().cloned()).collect()
}

/// Tokens that the files of transformers list as added, or as special without a name of their own.
fn added_tokens(json: &Value) -> Vec<String> {
    let by_id = json["added_tokens_decoder"].as_object().into_iter().flat_map(|tokens| tokens.values());
    let listed = ["added_tokens", "additional_special_tokens", "extra_special_tokens"];
    let listed = listed.iter().filter_map(|key| json[*key].as_array()).flatten();
    let content = |token: &Value| Some(token.as_str().or_else(|| token["content"].as_str())?.to_owned());
    by_id.chain(listed).filter_map(content).collect()
}

/// Parses a token that is a string or transformers' `AddedToken`. `lstrip` and `rstrip` have no
/// effect, because white space gives no ids.
fn parse_special_token(json: &Value) -> Result<SpecialToken, &'static str> {
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
