//! Detects files that changed since the run listed them, as the likely reason why they can no
//! longer be read.

use object_store::ObjectStoreExt;
use tidemill_io::{block_on, uri};

use crate::error::{Error, Result};
use crate::source::pair_source::Batches;
use crate::source::units::InputFile;

/// Wraps the batches of a file: if reading fails and the file is gone or has changed, the error
/// says so.
pub fn explain_read_errors(file: &InputFile, batches: Result<Batches>) -> Result<Batches> {
    let batches = batches.map_err(|error| explain_error(file, error))?;
    let file = file.clone();
    Ok(Box::new(batches.map(move |batch| batch.map_err(|error| explain_error(&file, error)))))
}

fn explain_error(file: &InputFile, error: Error) -> Error {
    if matches!(&error, Error::Storage(error) if error.is_changed()) {
        return changed_error(file, "has been replaced since the run began".into());
    }
    if matches!(&error, Error::Storage(error) if file.uri.contains("://") && !error.is_not_found()) {
        // The store has already been retried.
        return error;
    }
    match block_on(current_size(file)) {
        Ok(Some(size)) if size == file.size => error,
        Ok(Some(size)) => {
            changed_error(file, format!("had {} bytes when the run began and has {size} now", file.size))
        }
        Ok(None) => changed_error(file, "was there when the run began and is gone now".into()),
        // The reader's error is more specific.
        Err(_) => error,
    }
}

fn changed_error(file: &InputFile, problem: String) -> Error {
    Error::Changed { file: file.uri.clone(), problem }
}

/// The current size of the file; `None` if it does not exist.
async fn current_size(file: &InputFile) -> Result<Option<u64>> {
    let address = uri::parse(&file.uri)?;
    match address.store.head(&address.key()?).await {
        Ok(meta) => Ok(Some(meta.size)),
        Err(object_store::Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(Error::Read { file: file.uri.clone(), problem: error.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_file_is_reported_as_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.parquet");
        std::fs::write(&path, "12345").unwrap();
        let file =
            InputFile { uri: path.display().to_string(), size: 5, identity: String::new(), e_tag: None };
        let message = || {
            let error = Error::Read { file: file.uri.clone(), problem: "bad magic".into() };
            explain_error(&file, error).to_string()
        };
        assert!(message().contains("bad magic"));
        std::fs::write(&path, "123").unwrap();
        assert!(message().contains("had 5 bytes when the run began and has 3 now"), "{}", message());
        std::fs::remove_file(&path).unwrap();
        assert!(message().contains("a.parquet was there"), "{}", message());
    }
}
