//! The CLIP tokenizer of a diffusers-layout `tokenizer/` folder: captions to 77 token ids, begin and end included,
//! padded as the model was trained. Same ids as transformers' `CLIPTokenizer`, at many times its rate.
//!
//! A caption is cut at special tokens, normalised, cut into words, and each word becomes ids by byte-pair encoding
//! or out of a cache. The steps are those of the Hugging Face pipeline that transformers configures for CLIP.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

use crate::error::Result;
use crate::tokenizer::bpe::{self, Bpe};
use crate::tokenizer::folder::{Folder, SpecialToken};
use crate::tokenizer::special_tokens::CONTEXT;
use crate::tokenizer::word_cache::WordCache;
use crate::tokenizer::words;

/// What a caption may fill: all places but the first and the last.
const ROOM: usize = CONTEXT - 2;

/// Captions that one thread takes at a time.
const CHUNK: usize = 32;

/// Captions to token ids.
pub struct ClipTokenizer {
    bpe: Bpe,
    bos: u32,
    eos: u32,
    pad: u32,
    /// Special tokens looked for in the caption as it is.
    raw: Vec<SpecialToken>,
    /// Special tokens looked for in the normalised caption, normalised as well.
    normalized: Vec<SpecialToken>,
    digest: String,
    /// Idle workspaces: as many as there have ever been threads encoding at one time.
    workspaces: Mutex<Vec<Workspace>>,
}

/// What a thread needs to encode, kept from one call to the next for the sake of its cache.
#[derive(Default)]
struct Workspace {
    cache: WordCache,
    bpe: bpe::Workspace,
    text: String,
    word: Vec<u32>,
}

/// The ids of a caption under construction.
struct Ids<'a> {
    ids: &'a mut [i32; CONTEXT],
    used: usize,
}

impl Ids<'_> {
    /// Adds ids until the room is used up.
    fn push(&mut self, ids: &[u32]) -> ControlFlow<()> {
        let room = ROOM - self.used;
        for (slot, id) in self.ids[1 + self.used..].iter_mut().zip(ids.iter().take(room)) {
            *slot = id.cast_signed();
        }
        self.used += ids.len().min(room);
        if self.used == ROOM { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

impl ClipTokenizer {
    /// Opens a folder with `vocab.json` and `merges.txt`, or `tokenizer.json`, and optionally `tokenizer_config.json` and
    /// `special_tokens_map.json` (which wins), from which only the special tokens are taken.
    ///
    /// The padding token is looked up, not registered as special: Stable Diffusion 2 pads with `!` (id 0), and a
    /// literal `!` in a caption must stay a word.
    ///
    /// # Errors
    /// [`crate::Error::Tokenizer`] if a file is missing or malformed, a special token is not in the vocabulary, or there
    /// are tokens that CLIP does not have.
    pub fn open(folder: &Path) -> Result<Self> {
        let folder = Folder::read(folder)?;
        let bpe = folder.bpe()?;
        let [bos, eos, pad] = folder.special_ids()?;
        let digest = folder.digest();
        let mut specials = folder.into_specials();
        let mut normalized: Vec<_> = specials.extract_if(.., |token| token.normalized).collect();
        for token in &mut normalized {
            let mut content = String::new();
            words::normalize(&token.content, &mut content);
            token.content = content;
        }
        Ok(Self { bpe, bos, eos, pad, raw: specials, normalized, digest, workspaces: Mutex::default() })
    }

    /// The ids of one caption, [`CONTEXT`] of them.
    pub fn encode(&self, caption: &str) -> [i32; CONTEXT] {
        let mut ids = [0; CONTEXT];
        self.with_workspace(|workspace| self.encode_into(caption, workspace, &mut ids));
        ids
    }

    /// How many ids a caption has, begin and end of text included; [`CONTEXT`] at most.
    pub fn length(&self, caption: &str) -> usize {
        let ids = self.encode(caption);
        let is_end = |id: &i32| i64::from(*id) == i64::from(self.eos);
        ids.iter().skip(1).position(is_end).map_or(CONTEXT, |end| end + 2)
    }

    /// The ids of many captions, in order, computed on the threads of the current rayon pool.
    pub fn encode_batch(&self, captions: &[&str]) -> Vec<[i32; CONTEXT]> {
        let mut ids = vec![[0; CONTEXT]; captions.len()];
        ids.par_chunks_mut(CHUNK).zip(captions.par_chunks(CHUNK)).for_each(|(ids, captions)| {
            self.with_workspace(|workspace| {
                for (ids, caption) in ids.iter_mut().zip(captions) {
                    self.encode_into(caption, workspace, ids);
                }
            });
        });
        ids
    }

    /// The id that fills the places after the end of text.
    pub fn pad_id(&self) -> u32 {
        self.pad
    }

    /// BLAKE3 (hex) of everything that decides the ids.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    fn with_workspace(&self, work: impl FnOnce(&mut Workspace)) {
        let idle = || self.workspaces.lock().unwrap_or_else(PoisonError::into_inner);
        let mut workspace = idle().pop().unwrap_or_default();
        work(&mut workspace);
        idle().push(workspace);
    }

    fn encode_into(&self, caption: &str, workspace: &mut Workspace, ids: &mut [i32; CONTEXT]) {
        ids.fill(self.pad.cast_signed());
        ids[0] = self.bos.cast_signed();
        let mut content = Ids { ids, used: 0 };
        // Full before the end of the caption is as good as done.
        let _ = words::split(caption, &self.raw, |part| match part {
            words::Part::Special(id) => content.push(&[id]),
            words::Part::Text(text) => self.encode_text(text, workspace, &mut content),
        });
        let used = content.used;
        ids[1 + used] = self.eos.cast_signed();
    }

    /// Normalises a part of a caption and encodes it, special tokens of the normalised text included.
    fn encode_text(&self, part: &str, workspace: &mut Workspace, ids: &mut Ids) -> ControlFlow<()> {
        let Workspace { cache, bpe, text: normal, word: scratch } = workspace;
        words::normalize(part, normal);
        words::split(normal, &self.normalized, |part| match part {
            words::Part::Special(id) => ids.push(&[id]),
            words::Part::Text(text) => words::words(text, |word| {
                ids.push(cache.get_or_insert(word, scratch, |ids| self.bpe.encode(word, bpe, ids)))
            }),
        })
    }
}
