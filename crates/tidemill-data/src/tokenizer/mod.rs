//! Captions to token ids. [`CaptionTokenizer`] is what all tokenizers have in common: CLIP's here, and T5's, for
//! which the Hugging Face crate serves.
//!
//! The CLIP tokenizer of a diffusers-layout `tokenizer/` folder: captions to 77 token ids, begin
//! and end included, padded as the model was trained. It gives the ids of transformers'
//! `CLIPTokenizer`, at many times its rate.
//!
//! A caption is cut at special tokens, normalised and cut into words. Each word becomes ids by
//! byte-pair encoding or from a cache. The steps are those of the Hugging Face pipeline that
//! transformers configures for CLIP.
//!
//! * `caption_tokenizer`: what all tokenizers have in common
//! * `t5`: T5's tokenizer
//! * `clip`: CLIP's tokenizer
//! * `folder`, `special_tokens`: the files of a tokenizer folder
//! * `words`: cutting and normalising
//! * `bpe`, `word_cache`: words to ids

mod bpe;
mod caption_tokenizer;
mod clip;
mod folder;
mod special_tokens;
mod t5;
mod text_file;
mod word_cache;
mod words;

pub use self::caption_tokenizer::CaptionTokenizer;
pub use self::clip::ClipTokenizer;
pub use self::special_tokens::CONTEXT;
pub use self::t5::T5Tokenizer;
