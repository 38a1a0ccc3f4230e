//! What is made of rows besides pixels and token ids.

use std::sync::Arc;

use crate::prepare::captioner_view::CaptionerView;
use crate::prepare::computed_scores::ComputedScores;
use crate::prepare::image_hashes::HashColumns;
use crate::tokenizer::CaptionTokenizer;

/// The columns of the output that not every run has.
#[derive(Clone, Default)]
pub struct ExtraColumns {
    /// Hashes of images.
    pub hashes: HashColumns,
    /// Scores that a network computes later.
    pub scores: ComputedScores,
    /// What a captioner sees later, if there is one.
    pub captioner: Option<CaptionerView>,
    /// Tokenizers of the second text encoder and those after it.
    pub more_tokenizers: Vec<Arc<dyn CaptionTokenizer>>,
}
