//! What several text encoders give for a caption, joined as a network takes it.

use tch::Tensor;

use super::text_encoders::{TextStates, TextWidths};

/// How a network takes the text of several encoders. Pooled outputs always lie side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextJoin {
    /// Hidden states side by side: [N, L, sum of D]. Stable Diffusion 1, 2 and XL.
    SideBySide,
    /// The same, with zeros up to a width, and then tokens of zeros in place of T5's: Stable Diffusion 3 without T5.
    Padded {
        /// Width of the joined states.
        width: i64,
        /// Tokens of zeros: `max_sequence_length` of diffusers' pipeline.
        zero_tokens: i64,
    },
}

impl TextJoin {
    /// Joins what the encoders give for the same captions.
    ///
    /// # Panics
    /// If there is no encoder, the states are wider than the network takes them, or libtorch fails.
    #[must_use]
    pub fn join(self, mut encoders: Vec<TextStates>) -> TextStates {
        let joined = match encoders.len() {
            1 => encoders.remove(0),
            _ => {
                let hidden: Vec<&Tensor> = encoders.iter().map(|states| &states.hidden).collect();
                let pooled: Vec<&Tensor> =
                    encoders.iter().filter_map(|states| states.pooled.as_ref()).collect();
                let pooled = (!pooled.is_empty()).then(|| Tensor::cat(&pooled, -1));
                TextStates { hidden: Tensor::cat(&hidden, -1), pooled }
            }
        };
        match self {
            Self::SideBySide => joined,
            Self::Padded { width, zero_tokens } => {
                let missing = width - joined.hidden.size()[2];
                TextStates { hidden: joined.hidden.constant_pad_nd([0, missing, 0, zero_tokens]), ..joined }
            }
        }
    }

    /// The tokens of what [`join`](Self::join) makes of captions of so many tokens.
    pub fn join_tokens(self, tokens: i64) -> i64 {
        match self {
            Self::SideBySide => tokens,
            Self::Padded { zero_tokens, .. } => tokens + zero_tokens,
        }
    }

    /// The widths of what [`join`](Self::join) makes of encoders of these widths.
    pub fn join_widths(self, encoders: &[TextWidths]) -> TextWidths {
        let pooled: Vec<i64> = encoders.iter().filter_map(|encoder| encoder.pooled).collect();
        let hidden = encoders.iter().map(|encoder| encoder.hidden).sum();
        TextWidths {
            hidden: match self {
                Self::SideBySide => hidden,
                Self::Padded { width, .. } => width.max(hidden),
            },
            pooled: (!pooled.is_empty()).then(|| pooled.iter().sum()),
        }
    }
}
