//! Converts errors of the `parquet` crate.

use parquet::errors::ParquetError;

use crate::error::Error;
use crate::source::units::InputFile;

/// The error of a reader that panicked: on some damaged files the reader panics instead of
/// returning an error.
pub fn reader_panicked() -> ParquetError {
    ParquetError::General("the Parquet reader gave up".into())
}

/// Converts an error of the reader: the store failed, or the file is damaged.
pub fn to_read_error(file: &InputFile, error: ParquetError) -> Error {
    let error = match error {
        ParquetError::External(error) => match error.downcast::<tidemill_io::Error>() {
            Ok(error) => return (*error).into(),
            Err(error) => ParquetError::External(error),
        },
        error => error,
    };
    let problem =
        format!("{error}; the file is no Parquet, only half written, or damaged ({} bytes)", file.size);
    Error::Read { file: file.uri.clone(), problem }
}
