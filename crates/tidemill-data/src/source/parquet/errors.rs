//! Errors.

use parquet::errors::ParquetError;

use crate::error::Error;
use crate::source::units::InputFile;

/// The reader panics over some damaged files instead of returning an error; both are the file's.
pub fn gave_up() -> ParquetError {
    ParquetError::General("the Parquet reader gave up".into())
}

/// Says whether the store failed or the file is damaged.
pub fn unreadable(file: &InputFile, error: ParquetError) -> Error {
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
