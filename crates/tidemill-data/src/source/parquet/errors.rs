//! Converts errors of the `parquet` crate.

use parquet::errors::ParquetError;

use crate::error::Error;
use crate::source::units::InputFile;

/// The error of a reader that panicked: on some damaged files the reader panics instead of
/// returning an error.
pub fn reader_panicked() -> ParquetError {
    ParquetError::General("the Parquet reader gave up".into())
}

/// Converts an error of the reader: the store failed, the file needs something that the reader
/// cannot do, or it is damaged.
pub fn to_read_error(file: &InputFile, error: ParquetError) -> Error {
    let error = match error {
        ParquetError::External(error) => match error.downcast::<tidemill_io::Error>() {
            Ok(error) => return (*error).into(),
            Err(error) => ParquetError::External(error),
        },
        error => error,
    };
    let problem = match &error {
        error if error.to_string().to_lowercase().contains("encrypt") => {
            return encryption_error(file, "the file");
        }
        ParquetError::NYI(what) => format!(
            "the file is Parquet, and the reader does not know this part of it: {what}; write it again with pyarrow"
        ),
        error => {
            format!("{error}; the file is no Parquet, only half written, or damaged ({} bytes)", file.size)
        }
    };
    Error::Read { file: file.uri.clone(), problem }
}

/// The error of a file that is encrypted in part or whole.
pub fn encryption_error(file: &InputFile, what: &str) -> Error {
    let problem =
        format!("{what} is encrypted; write the file without encryption, as its owner can with pyarrow");
    Error::Read { file: file.uri.clone(), problem }
}
