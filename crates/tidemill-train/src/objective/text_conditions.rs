//! From stored text columns to what the network is conditioned on: captions are dropped, token ids are encoded, and
//! what several text encoders give is joined.

use tch::{Device, Kind, Tensor};
use tidemill_models::{TextEncoders, TextJoin, TextStates};
use tidemill_store::{DatasetSpec, Dtype, TextColumn};
use tidemill_torch::{guard, tensor_from_bytes};

use super::caption_dropout::replace_dropped;
use crate::Error;

/// The text columns of the rows, and the encoders for token ids.
#[derive(Debug)]
pub struct TextConditions {
    columns: Vec<Column>,
    /// Encodes token ids.
    encoders: Option<TextEncoders>,
    /// How the network takes the text of several encoders.
    join: TextJoin,
    /// The network's dtype.
    kind: Kind,
}

/// A text column.
#[derive(Debug)]
struct Column {
    column: TextColumn,
    stored: Kind,
    /// The empty caption: embeddings in the network's dtype, or token ids, i64.
    empty: Tensor,
}

impl TextConditions {
    /// The text columns of a dataset. `empty_caption` has a row of them, one behind the other.
    ///
    /// # Errors
    /// If libtorch fails (out of memory).
    pub fn new(
        dataset: &DatasetSpec,
        empty_caption: &[u8],
        encoders: Option<TextEncoders>,
        (kind, device): (Kind, Device),
    ) -> Result<Self, Error> {
        let empty = dataset.split_text_row(empty_caption).into_iter();
        let columns = dataset.text_columns().zip(empty).map(|((column, spec), empty)| {
            let spec = spec.decoded();
            let shape: Vec<i64> = spec.shape.iter().map(|n| i64::from(*n)).collect();
            let (stored, target) = match spec.dtype {
                Dtype::I32 => (Kind::Int, Kind::Int64),
                _ => (Kind::Half, kind),
            };
            let empty = guard(|| tensor_from_bytes(empty, stored, &shape, target, device))?;
            Ok(Column { column, stored, empty })
        });
        let columns = columns.collect::<Result<_, Error>>()?;
        Ok(Self { columns, encoders, join: TextJoin::SideBySide, kind })
    }

    /// For a network that takes text in this form.
    pub fn with_join(self, join: TextJoin) -> Self {
        Self { join, ..self }
    }

    /// One column of embeddings of this shape, with an empty caption of zeros.
    #[cfg(test)]
    pub fn of_embeddings(shape: &[i64], (kind, device): (Kind, Device)) -> Self {
        let empty = Tensor::zeros(shape, (kind, device));
        let columns = vec![Column { column: TextColumn::FIRST, stored: Kind::Half, empty }];
        Self { columns, encoders: None, join: TextJoin::SideBySide, kind }
    }

    /// Uploads `n` rows of the columns to the device, without waiting for it.
    ///
    /// # Panics
    /// If libtorch fails: run it in [`guard`](tidemill_torch::guard()).
    pub fn upload(&self, n: i64, rows: &[&[u8]]) -> Vec<Tensor> {
        let upload = |(Column { stored, empty, .. }, bytes): (&Column, &&[u8])| {
            let shape = [&[n], &empty.size()[..]].concat();
            tensor_from_bytes(bytes, *stored, &shape, empty.kind(), empty.device())
        };
        self.columns.iter().zip(rows).map(upload).collect()
    }

    /// The text of rows as the network takes it, with dropped captions replaced by the empty one. `dropped` is [N, 1]
    /// for all encoders together, or [N, E].
    ///
    /// # Panics
    /// If libtorch fails: run it in [`guard`](tidemill_torch::guard()).
    pub fn join(&self, text: &[Tensor], dropped: Option<&Tensor>) -> TextStates {
        let mut states: Vec<TextStates> = Vec::new();
        for (Column { column, empty, .. }, text) in self.columns.iter().zip(text) {
            let encoder = usize::from(column.encoder()) - 1;
            let text = match dropped {
                None => text.shallow_clone(),
                Some(dropped) => replace_dropped(text, &dropped_of(dropped, encoder), empty),
            };
            match (&self.encoders, states.last_mut()) {
                (Some(encoders), _) => states.push(self.round(encoders.encode(encoder, &text))),
                (None, Some(states)) if column.is_pooled() => states.pooled = Some(text),
                (None, _) => states.push(TextStates { hidden: text, pooled: None }),
            }
        }
        self.join.join(states)
    }

    /// Rounds to f16, as if it had been stored.
    fn round(&self, TextStates { hidden, pooled }: TextStates) -> TextStates {
        let round = |tensor: Tensor| tensor.to_kind(Kind::Half).to_kind(self.kind);
        TextStates { hidden: round(hidden), pooled: pooled.map(round) }
    }
}

/// Whether each row's caption is dropped for an encoder, counted from 0: [N].
fn dropped_of(dropped: &Tensor, encoder: usize) -> Tensor {
    dropped.select(1, (encoder as i64).min(dropped.size()[1] - 1))
}
