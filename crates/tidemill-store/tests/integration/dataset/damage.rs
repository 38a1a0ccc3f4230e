//! Damaged files are found and named.

use std::fs;
use std::path::{Path, PathBuf};

use tidemill_store::{Bucket, ColumnGroup, Error, Split};
use tidemill_testing::seed;

use super::UNITS;
use crate::support::*;

fn flip(path: &Path, at: u64) {
    let mut bytes = fs::read(path).unwrap();
    let at = (at % bytes.len() as u64) as usize;
    bytes[at] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

#[test]
fn verify_finds_flipped_bytes_and_names_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let (_, manifest) = write_dataset(folder.path(), spec(64, 0.1), &UNITS);
    let dataset = open(folder.path());
    assert!(dataset.verify(|_| ()).unwrap().damaged.is_empty());
    for (commit, file) in manifest.commits.iter().flat_map(|c| c.files.iter().map(move |f| (c, f))) {
        let path = folder.path().join(&file.path);
        let at = hash(seed(), file.bytes);
        flip(&path, at);
        let damaged = dataset.verify(|_| ()).unwrap().damaged;
        assert_eq!(
            damaged.iter().map(|d| PathBuf::from(&d.path)).collect::<Vec<_>>(),
            std::slice::from_ref(&path)
        );
        assert_eq!(damaged[0].commit, format!("commits/{}.json", commit.id));
        flip(&path, at);
    }

    let text = folder.path().join(
        &manifest.commits[0]
            .file(ColumnGroup::Text(Split::Train, tidemill_store::TextColumn::FIRST))
            .unwrap()
            .path,
    );
    let rows = &manifest.commits[0].file(ColumnGroup::Rows).unwrap().path;
    flip(&text, 500);
    let error = dataset.read_tensors(Split::Train, Bucket::square(64), usize::MAX).unwrap_err();
    assert!(matches!(&error, Error::Corrupt { path, .. } if *path == text.to_str().unwrap()), "{error}");
    fs::remove_file(&text).unwrap();
    assert!(dataset.verify(|_| ()).unwrap().damaged[0].problem.contains("cannot read"));
    fs::write(&text, b"PAR1").unwrap();
    assert_eq!(dataset.verify(|_| ()).unwrap().damaged.len(), 1);
    // A file with bytes after its end is no longer a Parquet file.
    let (path, bytes) = (&text, fs::read(folder.path().join(rows)).unwrap());
    fs::write(folder.path().join(rows), [&bytes[..], b"more"].concat()).unwrap();
    fs::remove_file(path).unwrap();
    let damaged = dataset.verify(|_| ()).unwrap().damaged;
    assert!(damaged.iter().any(|d| d.problem.contains("were committed")) && damaged.len() == 2);
}
