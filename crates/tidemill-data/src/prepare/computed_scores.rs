//! Scores that a network gives kept rows after this stage: the pixels that it looks at, and the
//! bounds outside of which rows are rejected. A row whose scores are all known from an earlier run is
//! rejected here, before anything is decoded.

use std::fmt;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Float32Array, new_null_array};
use arrow::datatypes::{DataType, Field};

use crate::columns::typed::shortest_decimal_of_f32;
use crate::decode::{Rgb8, Strip};
use crate::error::RowError;
use crate::filter::Bounds;
use crate::prepare::known_results::{EMBEDDING, KnownResults};

/// The column with the pixels for the network: u8, RGB, CHW; null where no score is to be computed.
pub const PIXELS: &str = "score_pixels";

/// How a network wants to see images.
pub trait ScoreView: Send + Sync {
    /// Side of the square that the network takes, in pixels.
    fn side(&self) -> u32;

    /// Resizes and crops an upright image of which all columns are there.
    ///
    /// # Errors
    /// Why the row cannot be used.
    fn view(&self, image: &Strip) -> Result<Rgb8, RowError>;
}

/// A score that is computed of kept rows.
#[derive(Debug, Clone, PartialEq)]
pub struct ComputedScore {
    /// Name of its column.
    pub name: String,
    /// Rows outside of these bounds are rejected, as `score.<name>`.
    pub bounds: Bounds<f64>,
    /// Identifies the network and its settings.
    pub digest: String,
    /// The score depends on the caption.
    pub uses_caption: bool,
}

/// The embeddings of kept rows: the features that the scores are computed from.
#[derive(Debug, Clone, PartialEq)]
pub struct EmbeddingColumn {
    /// Numbers in an embedding.
    pub width: usize,
    /// Identifies the network and its settings.
    pub digest: String,
}

impl EmbeddingColumn {
    /// The type of the column: f16, little-endian.
    pub fn data_type(&self) -> DataType {
        DataType::FixedSizeBinary(i32::try_from(2 * self.width).unwrap_or(i32::MAX))
    }
}

/// The scores that are computed of kept rows.
#[derive(Clone, Default)]
pub struct ComputedScores {
    scores: Vec<ComputedScore>,
    embedding: Option<EmbeddingColumn>,
    view: Option<Arc<dyn ScoreView>>,
}

impl ComputedScores {
    /// Scores of one network, and on request the embeddings that they are computed from.
    pub fn new(
        scores: Vec<ComputedScore>,
        embedding: Option<EmbeddingColumn>,
        view: Arc<dyn ScoreView>,
    ) -> Self {
        Self { scores, embedding, view: Some(view) }
    }

    /// The scores, in the order of their columns.
    pub fn scores(&self) -> &[ComputedScore] {
        &self.scores
    }

    /// The column with embeddings, if there is one.
    pub fn embedding(&self) -> Option<&EmbeddingColumn> {
        self.embedding.as_ref()
    }

    /// The name of the filter that rejects a row with these scores, given in the order of their columns.
    /// Scores that are not known reject nothing.
    pub fn find_rejection(&self, values: &[Option<f32>]) -> Option<String> {
        let is_outside = |score: &ComputedScore, value: f32| {
            !score.bounds.contains(&shortest_decimal_of_f32(f64::from(value)))
        };
        let mut scored = self.scores.iter().zip(values);
        let rejecting = scored.find(|(score, value)| value.is_some_and(|value| is_outside(score, value)));
        rejecting.map(|(score, _)| format!("score.{}", score.name))
    }

    /// How the network wants to see images; `None` if no scores are computed.
    pub(super) fn view(&self) -> Option<&dyn ScoreView> {
        self.view.as_deref()
    }

    /// Bytes of a row of the column [`PIXELS`].
    pub(super) fn pixel_bytes(&self) -> usize {
        self.view().map_or(0, |view| 3 * view.side() as usize * view.side() as usize)
    }

    /// The scores of a row that an earlier run computed.
    pub(super) fn known_values(&self, known: Option<&KnownResults>, row: usize) -> Vec<Option<f32>> {
        self.scores.iter().map(|score| known?.score(&score.name, row)).collect()
    }

    /// True if something of a row is not known yet, given the scores that are.
    pub(super) fn is_missing(
        &self,
        values: &[Option<f32>],
        known: Option<&KnownResults>,
        row: usize,
    ) -> bool {
        let has_embedding =
            |known: &KnownResults| known.embeddings().is_some_and(|column| column.is_valid(row));
        values.contains(&None) || self.embedding.is_some() && !known.is_some_and(has_embedding)
    }

    /// The fields of the scores' columns, and of the embeddings.
    pub(super) fn fields(&self) -> impl Iterator<Item = Field> {
        let scores = self.scores.iter().map(|score| Field::new(&score.name, DataType::Float32, true));
        scores.chain(self.embedding.iter().map(|column| Field::new(EMBEDDING, column.data_type(), true)))
    }

    /// The column of the embeddings, with those that are known.
    pub(super) fn embedding_column(&self, known: Option<&KnownResults>, rows: usize) -> Option<ArrayRef> {
        let data_type = self.embedding.as_ref()?.data_type();
        let column =
            known.and_then(KnownResults::embeddings).filter(|column| *column.data_type() == data_type);
        Some(column.cloned().unwrap_or_else(|| new_null_array(&data_type, rows)))
    }

    /// The scores' columns, with the known values of each row.
    pub(super) fn columns<'a>(
        &self,
        rows: impl Iterator<Item = &'a [Option<f32>]> + Clone,
    ) -> impl Iterator<Item = ArrayRef> {
        (0..self.scores.len()).map(move |index| {
            let values = rows.clone().map(|values| values.get(index).copied().flatten());
            Arc::new(values.collect::<Float32Array>()) as ArrayRef
        })
    }

    /// The field [`PIXELS`], if scores are computed.
    pub(super) fn pixels_field(&self) -> Option<Field> {
        let side = self.view()?.side();
        let shape = [("dtype".to_owned(), "u8".to_owned()), ("shape".into(), format!("[3,{side},{side}]"))];
        Some(Field::new(PIXELS, DataType::LargeBinary, true).with_metadata(shape.into()))
    }
}

impl fmt::Debug for ComputedScores {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.scores.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl ScoreView for Nothing {
        fn side(&self) -> u32 {
            1
        }

        fn view(&self, _: &Strip) -> Result<Rgb8, RowError> {
            Err(RowError::Missing("image"))
        }
    }

    #[test]
    fn first_score_outside_its_bounds_rejects() {
        let score = |name: &str, min, max| ComputedScore {
            name: name.into(),
            bounds: Bounds { min, max },
            digest: String::new(),
            uses_caption: false,
        };
        let scores = vec![score("a", Some(4.1), None), score("b", None, None), score("c", None, Some(0.5))];
        let scores = ComputedScores::new(scores, None, Arc::new(Nothing));
        for (values, expected) in [
            ([Some(4.1), Some(9.0), Some(0.5)], None),
            ([Some(4.0), Some(9.0), Some(0.6)], Some("score.a")),
            ([Some(4.2), Some(-9.0), Some(0.6)], Some("score.c")),
            ([None, None, Some(0.6)], Some("score.c")),
            ([None, None, None], None),
        ] {
            assert_eq!(scores.find_rejection(&values).as_deref(), expected, "{values:?}");
        }
    }
}
