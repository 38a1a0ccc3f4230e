//! Where embeddings come from.

use arrow::array::{Array, AsArray};
use arrow::datatypes::UInt64Type;
use half::f16;

use crate::dataset::reader::Dataset;
use crate::error::{Error, Result};

/// The column of `rows.parquet` with embeddings: f16, little-endian, of unit length.
const COLUMN: &str = "embedding";

/// Embeddings that can be read several times.
pub trait Embeddings {
    /// Numbers in an embedding.
    fn width(&self) -> usize;

    /// Calls a function with the sample id and the embedding of each row that has one.
    ///
    /// # Errors
    /// If they cannot be read, and errors of the function.
    fn for_each(&self, visit: &mut dyn FnMut(u64, &[f16]) -> Result<()>) -> Result<()>;
}

/// The embeddings of a dataset's rows.
pub struct DatasetEmbeddings<'a> {
    dataset: &'a Dataset,
    width: usize,
}

impl<'a> DatasetEmbeddings<'a> {
    /// Checks that the rows have embeddings.
    ///
    /// # Errors
    /// [`Error::Config`] if they have none.
    pub fn open(dataset: &'a Dataset) -> Result<Self> {
        let first = dataset.read_rows(&[COLUMN]).next().transpose()?;
        let bytes = first.as_ref().map(|batch| {
            let column = batch.column_by_name(COLUMN)?.as_fixed_size_binary_opt()?;
            usize::try_from(column.value_length()).ok().filter(|bytes| *bytes > 0)
        });
        match bytes {
            Some(Some(bytes)) => Ok(Self { dataset, width: bytes / size_of::<f16>() }),
            // Without rows there is nothing to compare.
            None => Ok(Self { dataset, width: 1 }),
            Some(None) => Err(Error::Config {
                key: "dedup.similar",
                problem: "the dataset's rows have no embeddings; preprocess again with this setting and \
                          score.path"
                    .into(),
            }),
        }
    }
}

impl Embeddings for DatasetEmbeddings<'_> {
    fn width(&self) -> usize {
        self.width
    }

    fn for_each(&self, visit: &mut dyn FnMut(u64, &[f16]) -> Result<()>) -> Result<()> {
        let malformed =
            |column: &str| Error::Column { column: column.into(), problem: "is missing or malformed".into() };
        let mut values = vec![f16::ZERO; self.width];
        for batch in self.dataset.read_rows(&["sample_id", COLUMN]) {
            let batch = batch?;
            let column = |name: &str| batch.column_by_name(name).ok_or_else(|| malformed(name));
            let ids = column("sample_id")?.as_primitive_opt::<UInt64Type>();
            let ids = ids.ok_or_else(|| malformed("sample_id"))?;
            let embeddings = column(COLUMN)?.as_fixed_size_binary_opt();
            let embeddings = embeddings
                .filter(|column| column.value_length() as usize == self.width * size_of::<f16>())
                .ok_or_else(|| malformed(COLUMN))?;
            for row in (0..batch.num_rows()).filter(|row| embeddings.is_valid(*row)) {
                let bytes = embeddings.value(row).as_chunks().0;
                values.iter_mut().zip(bytes).for_each(|(value, bytes)| *value = f16::from_le_bytes(*bytes));
                visit(ids.value(row), &values)?;
            }
        }
        Ok(())
    }
}
