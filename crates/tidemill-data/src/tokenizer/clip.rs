//! The CLIP tokenizer: captions to ids.

use std::fmt;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

use crate::error::Result;
use crate::tokenizer::bpe::{self, Bpe};
use crate::tokenizer::caption_tokenizer::CaptionTokenizer;
use crate::tokenizer::folder::Folder;
use crate::tokenizer::special_tokens::{CONTEXT, SpecialToken};
use crate::tokenizer::word_cache::WordCache;
use crate::tokenizer::words;

/// Most ids of a caption: the context without begin and end of text.
const CAPTION_CONTEXT: usize = CONTEXT - 2;

/// Captions that a thread encodes at a time.
const CAPTIONS_PER_TASK: usize = 32;

/// Encodes captions as token ids. It can be used from any number of threads.
pub struct ClipTokenizer {
    bpe: Bpe,
    bos: u32,
    eos: u32,
    pad: u32,
    /// Special tokens that are searched in the caption as it is.
    raw_specials: Vec<SpecialToken>,
    /// Special tokens that are searched in the normalised caption; they are normalised too.
    normalized_specials: Vec<SpecialToken>,
    digest: String,
    /// Idle workspaces; there are as many as threads ever encoded at the same time.
    workspaces: Mutex<Vec<Workspace>>,
}

/// A thread's buffers and word cache, kept from call to call.
#[derive(Default)]
struct Workspace {
    cache: WordCache,
    bpe: bpe::Workspace,
    text: String,
    word: Vec<u32>,
}

/// The ids of a caption while it is encoded.
struct IdBuffer<'a> {
    ids: &'a mut [i32; CONTEXT],
    used: usize,
}

impl fmt::Debug for ClipTokenizer {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("ClipTokenizer").field("digest", &self.digest).finish_non_exhaustive()
    }
}

impl IdBuffer<'_> {
    /// Adds ids; breaks when the context is full.
    fn push(&mut self, ids: &[u32]) -> ControlFlow<()> {
        let free = CAPTION_CONTEXT - self.used;
        for (slot, id) in self.ids[1 + self.used..].iter_mut().zip(ids.iter().take(free)) {
            *slot = id.cast_signed();
        }
        self.used += ids.len().min(free);
        if self.used == CAPTION_CONTEXT { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

impl ClipTokenizer {
    /// Opens a folder with `vocab.json` and `merges.txt`, or with `tokenizer.json`. Special tokens
    /// are also read from `tokenizer_config.json` and `special_tokens_map.json` (which takes
    /// precedence).
    ///
    /// The padding token is looked up, but not registered as special: Stable Diffusion 2 pads with
    /// `!` (id 0), and a literal `!` in a caption must stay a word.
    ///
    /// # Errors
    /// [`crate::Error::Tokenizer`] if a file is missing or malformed, if a special token is not in
    /// the vocabulary, or if there are tokens that CLIP does not have.
    pub fn open(folder: &Path) -> Result<Self> {
        let folder = Folder::read(folder)?;
        let bpe = folder.bpe()?;
        let [bos, eos, pad] = folder.special_ids()?;
        let digest = folder.digest();
        let mut specials = folder.into_specials();
        let mut normalized_specials: Vec<_> = specials.extract_if(.., |token| token.normalized).collect();
        for token in &mut normalized_specials {
            let mut content = String::new();
            words::normalize(&token.content, &mut content);
            token.content = content;
        }
        Ok(Self {
            bpe,
            bos,
            eos,
            pad,
            raw_specials: specials,
            normalized_specials,
            digest,
            workspaces: Mutex::default(),
        })
    }

    /// Encodes one caption as [`CONTEXT`] ids.
    pub fn encode(&self, caption: &str) -> [i32; CONTEXT] {
        let mut ids = [0; CONTEXT];
        self.with_workspace(|workspace| self.encode_into(caption, workspace, &mut ids));
        ids
    }

    /// Number of ids of a caption, begin and end of text included; at most [`CONTEXT`].
    pub fn count_tokens(&self, caption: &str) -> usize {
        let ids = self.encode(caption);
        let is_end = |id: &i32| i64::from(*id) == i64::from(self.eos);
        ids.iter().skip(1).position(is_end).map_or(CONTEXT, |end| end + 2)
    }

    /// Encodes captions, in order, on the threads of the current rayon pool.
    pub fn encode_batch(&self, captions: &[&str]) -> Vec<[i32; CONTEXT]> {
        let mut ids = vec![[0; CONTEXT]; captions.len()];
        ids.par_chunks_mut(CAPTIONS_PER_TASK).zip(captions.par_chunks(CAPTIONS_PER_TASK)).for_each(
            |(ids, captions)| {
                self.with_workspace(|workspace| {
                    for (ids, caption) in ids.iter_mut().zip(captions) {
                        self.encode_into(caption, workspace, ids);
                    }
                });
            },
        );
        ids
    }

    /// The id that fills the positions after the end of text.
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
        let mut content = IdBuffer { ids, used: 0 };
        // Encoding stops early when the context is full.
        let _ = words::split_at_special_tokens(caption, &self.raw_specials, |part| match part {
            words::Part::Special(id) => content.push(&[id]),
            words::Part::Text(text) => self.encode_text(text, workspace, &mut content),
        });
        let used = content.used;
        ids[1 + used] = self.eos.cast_signed();
    }

    /// Normalises a part of a caption and encodes it, including special tokens of the normalised
    /// text.
    fn encode_text(&self, part: &str, workspace: &mut Workspace, ids: &mut IdBuffer) -> ControlFlow<()> {
        let Workspace { cache, bpe, text: normal, word: scratch } = workspace;
        words::normalize(part, normal);
        words::split_at_special_tokens(normal, &self.normalized_specials, |part| match part {
            words::Part::Special(id) => ids.push(&[id]),
            words::Part::Text(text) => words::for_each_word(text, |word| {
                ids.push(cache.get_or_insert(word, scratch, |ids| self.bpe.encode(word, bpe, ids)))
            }),
        })
    }
}

impl CaptionTokenizer for ClipTokenizer {
    fn length(&self) -> usize {
        CONTEXT
    }

    fn encode_captions(&self, captions: &[&str]) -> Result<Vec<i32>> {
        Ok(self.encode_batch(captions).into_flattened())
    }

    fn digest(&self) -> &str {
        &self.digest
    }
}
