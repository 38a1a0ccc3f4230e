//! What became of a file since the run listed it: the likely reason why it can no longer be read.

use object_store::ObjectStoreExt;
use tidemill_io::{block_on, uri};

use crate::error::{Error, Result};
use crate::source::pair_source::Batches;
use crate::source::units::InputFile;

/// The batches of a file. Where reading fails because the file is gone or another by now, the error says so.
pub fn explained(file: &InputFile, batches: Result<Batches>) -> Result<Batches> {
    let batches = batches.map_err(|error| explain(file, error))?;
    let file = file.clone();
    Ok(Box::new(batches.map(move |batch| batch.map_err(|error| explain(&file, error)))))
}

fn explain(file: &InputFile, error: Error) -> Error {
    if matches!(&error, Error::Storage(error) if error.is_changed()) {
        return changed(file, "has been replaced since the run began".into());
    }
    if matches!(&error, Error::Storage(error) if file.uri.contains("://") && !error.is_not_found()) {
        // The store has been asked often enough.
        return error;
    }
    match block_on(size_now(file)) {
        Ok(Some(size)) if size == file.size => error,
        Ok(Some(size)) => {
            changed(file, format!("had {} bytes when the run began and has {size} now", file.size))
        }
        Ok(None) => changed(file, "was there when the run began and is gone now".into()),
        // The reader's error says more.
        Err(_) => error,
    }
}

fn changed(file: &InputFile, problem: String) -> Error {
    Error::Changed { file: file.uri.clone(), problem }
}

/// The file's size; none if it is not there.
async fn size_now(file: &InputFile) -> Result<Option<u64>> {
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
    fn a_file_that_changed_is_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.parquet");
        std::fs::write(&path, "12345").unwrap();
        let file =
            InputFile { uri: path.display().to_string(), size: 5, identity: String::new(), e_tag: None };
        let explained = || {
            let error = Error::Read { file: file.uri.clone(), problem: "bad magic".into() };
            explain(&file, error).to_string()
        };
        assert!(explained().contains("bad magic"));
        std::fs::write(&path, "123").unwrap();
        assert!(explained().contains("had 5 bytes when the run began and has 3 now"), "{}", explained());
        std::fs::remove_file(&path).unwrap();
        assert!(explained().contains("a.parquet was there"), "{}", explained());
    }
}
