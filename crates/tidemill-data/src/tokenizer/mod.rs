//! The CLIP tokenizer of a diffusers-layout `tokenizer/` folder: captions to 77 token ids, begin
//! and end included, padded as the model was trained. It gives the ids of transformers'
//! `CLIPTokenizer`, at many times its rate.
//!
//! A caption is cut at special tokens, normalised and cut into words. Each word becomes ids by
//! byte-pair encoding or from a cache. The steps are those of the Hugging Face pipeline that
//! transformers configures for CLIP.
//!
//! * `clip`: the tokenizer
//! * `folder`, `special_tokens`: the files of a tokenizer folder
//! * `words`: cutting and normalising
//! * `bpe`, `word_cache`: words to ids

mod bpe;
mod clip;
mod folder;
mod special_tokens;
mod text_file;
mod word_cache;
mod words;

pub use self::clip::ClipTokenizer;
pub use self::special_tokens::CONTEXT;
