//! What several text encoders give for a caption, joined as a network takes it.

use tch::Tensor;

use super::text_encoders::{TextStates, TextWidths};

/// How a network takes the text of several encoders. Pooled outputs always lie side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextJoin {
    /// Hidden states side by side: [N, L, sum of D]. Stable Diffusion 1, 2 and XL.
    SideBySide,
    /// The same of CLIP's two encoders, with zeros up to a width, and then T5's tokens: Stable Diffusion 3.
    Padded {
        /// Width of the joined states.
        width: i64,
        /// Tokens of T5: `max_sequence_length` of diffusers' pipeline. Without T5 they are zeros.
        t5_tokens: i64,
    },
}

/// Encoders before T5.
const CLIP_ENCODERS: usize = 2;

impl TextJoin {
    /// The number of T5 among the encoders, counted from 1.
    pub const T5_ENCODER: u8 = CLIP_ENCODERS as u8 + 1;

    /// Joins what the encoders give for the same captions.
    ///
    /// # Panics
    /// If there is no encoder, the states are wider than the network takes them, or libtorch fails.
    #[must_use]
    pub fn join(self, mut encoders: Vec<TextStates>) -> TextStates {
        match self {
            Self::SideBySide => join_side_by_side(encoders),
            Self::Padded { width, t5_tokens } => {
                let t5 = encoders.split_off(CLIP_ENCODERS.min(encoders.len()));
                let TextStates { hidden, pooled } = join_side_by_side(encoders);
                let missing = width - hidden.size()[2];
                let hidden = match t5.first() {
                    None => hidden.constant_pad_nd([0, missing, 0, t5_tokens]),
                    Some(t5) => Tensor::cat(&[&hidden.constant_pad_nd([0, missing]), &t5.hidden], 1),
                };
                TextStates { hidden, pooled }
            }
        }
    }

    /// The tokens of what [`join`](Self::join) makes of captions of so many tokens.
    pub fn join_tokens(self, tokens: i64) -> i64 {
        match self {
            Self::SideBySide => tokens,
            Self::Padded { t5_tokens, .. } => tokens + t5_tokens,
        }
    }

    /// The widths of what [`join`](Self::join) makes of encoders of these widths.
    pub fn join_widths(self, encoders: &[TextWidths]) -> TextWidths {
        let pooled: Vec<i64> = encoders.iter().filter_map(|encoder| encoder.pooled).collect();
        let width_of = |encoders: &[TextWidths]| encoders.iter().map(|encoder| encoder.hidden).sum::<i64>();
        TextWidths {
            hidden: match self {
                Self::SideBySide => width_of(encoders),
                Self::Padded { width, .. } => {
                    let (clip, t5) = encoders.split_at(CLIP_ENCODERS.min(encoders.len()));
                    // What does not fit is refused as another width than the network takes.
                    let t5 = if t5.is_empty() { width } else { width_of(t5) };
                    if t5 == width { width.max(width_of(clip)) } else { t5 }
                }
            },
            pooled: (!pooled.is_empty()).then(|| pooled.iter().sum()),
        }
    }
}

fn join_side_by_side(mut encoders: Vec<TextStates>) -> TextStates {
    if encoders.len() == 1 {
        return encoders.remove(0);
    }
    let hidden: Vec<&Tensor> = encoders.iter().map(|states| &states.hidden).collect();
    let pooled: Vec<&Tensor> = encoders.iter().filter_map(|states| states.pooled.as_ref()).collect();
    let pooled = (!pooled.is_empty()).then(|| Tensor::cat(&pooled, -1));
    TextStates { hidden: Tensor::cat(&hidden, -1), pooled }
}
