//! The blocks of a step: which are committed, and their results. As in the data plane, a block's
//! files have an attempt's name, and one object, put only if absent, makes them count.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use tidemill_io::Location;
use tidemill_store::attempt_name;

use super::block_table::{PictureResult, from_parquet, to_parquet};
use super::keys::{record_key, step_folder, table_key};
use crate::error::{Error, Result};

/// The blocks of one step.
#[derive(Debug)]
pub struct BlockStore<'a> {
    location: &'a Location,
    step: u64,
}

/// What makes a block count.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BlockCommit {
    /// The table of its pictures.
    pub file: String,
    /// The number of pictures.
    pub pictures: usize,
    /// Who drew and judged them.
    pub evaluator: String,
    /// How long it took.
    pub seconds: f64,
}

impl<'a> BlockStore<'a> {
    pub fn new(location: &'a Location, step: u64) -> Self {
        Self { location, step }
    }

    /// The key under which a block is claimed.
    pub fn claim_key(&self, block: usize) -> String {
        format!("{}/claims/{block:05}", step_folder(self.step))
    }

    /// A new folder for the pictures of a block.
    pub fn new_attempt(&self, block: usize) -> String {
        format!("{}/pictures/{block:05}-{}", step_folder(self.step), attempt_name())
    }

    /// Writes a picture and returns its key.
    ///
    /// # Errors
    /// If the store fails.
    pub fn put_picture(&self, attempt: &str, index: usize, png: Vec<u8>) -> Result<String> {
        let key = format!("{attempt}/{index:06}.png");
        self.location.put(&key, png.into())?;
        Ok(key)
    }

    /// The committed blocks.
    ///
    /// # Errors
    /// If the store fails.
    pub fn list_committed(&self) -> Result<Vec<usize>> {
        let keys = self.location.list(&format!("{}/blocks", step_folder(self.step)))?;
        let number = |key: &String| key.rsplit('/').next()?.strip_suffix(".json")?.parse().ok();
        Ok(keys.iter().filter_map(number).collect())
    }

    /// Whether the step has its record, so that there is nothing left to do.
    ///
    /// # Errors
    /// If the store fails.
    pub fn has_record(&self) -> Result<bool> {
        Ok(self.location.get_if_present(&record_key(self.step))?.is_some())
    }

    /// Writes a block's results and commits them, unless another attempt was first.
    ///
    /// # Errors
    /// If the store fails.
    pub fn commit(
        &self,
        block: usize,
        pictures: &[PictureResult],
        evaluator: &str,
        seconds: f64,
    ) -> Result<bool> {
        let folder = format!("{}/blocks", step_folder(self.step));
        let file = format!("{folder}/{block:05}-{}.parquet", attempt_name());
        self.location.put(&file, to_parquet(pictures, true)?)?;
        let commit = BlockCommit { file, pictures: pictures.len(), evaluator: evaluator.into(), seconds };
        let text = serde_json::to_vec_pretty(&commit).unwrap_or_default();
        Ok(self.location.put_if_absent(&format!("{folder}/{block:05}.json"), text.into())?)
    }

    /// The results of all committed blocks in their order, and the blocks' commits.
    ///
    /// # Errors
    /// If the store fails, or a file is damaged.
    pub fn read_all(&self) -> Result<(Vec<PictureResult>, Vec<BlockCommit>)> {
        let mut blocks = self.list_committed()?;
        blocks.sort_unstable();
        let keys: Vec<String> =
            blocks.iter().map(|block| format!("{}/blocks/{block:05}.json", step_folder(self.step))).collect();
        let mut commits = Vec::new();
        for (key, bytes) in keys.iter().zip(self.location.get_all(&keys)?) {
            let damaged = |e: serde_json::Error| Error::Unit(format!("{}: {e}", self.location.uri_of(key)));
            commits.push(serde_json::from_slice::<BlockCommit>(&bytes).map_err(damaged)?);
        }
        let mut pictures = Vec::new();
        for commit in &commits {
            let bytes = self.location.get(&commit.file)?;
            pictures.extend(from_parquet(bytes)?);
        }
        pictures.sort_by_key(|picture| picture.index);
        Ok((pictures, commits))
    }

    /// Notes which checkpoint the blocks are of, where none is noted yet, and compares.
    ///
    /// # Errors
    /// If the blocks are of another checkpoint of the same step.
    pub fn agree_on_checkpoint(&self, digest: &str) -> Result<()> {
        let key = format!("{}/checkpoint.txt", step_folder(self.step));
        if self.location.put_if_absent(&key, digest.to_owned().into())? {
            return Ok(());
        }
        match self.location.get(&key)? == digest {
            true => Ok(()),
            false => Err(other_checkpoint_error(self.location, self.step)),
        }
    }

    /// The checkpoint that the blocks are of.
    ///
    /// # Errors
    /// If the store fails.
    pub fn read_checkpoint_digest(&self) -> Result<String> {
        let bytes = self.location.get(&format!("{}/checkpoint.txt", step_folder(self.step)))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Removes what the record does not need: the blocks' files, claims, pictures of attempts that
    /// were not committed, and files that a killed evaluator was writing. An evaluator that is late
    /// may get an error if it is writing one. Does nothing without a record, or if nothing is left to
    /// remove.
    ///
    /// # Errors
    /// If the store fails.
    pub fn remove_blocks(&self) -> Result<()> {
        let names = self.location.list_names(&step_folder(self.step))?;
        if names.iter().all(|name| name == "pictures") || !self.has_record()? {
            return Ok(());
        }
        let pictures = from_parquet(self.location.get(&table_key(self.step))?)?;
        let kept: BTreeSet<&str> = pictures.iter().filter_map(|picture| picture.path.as_deref()).collect();
        let keys = self.location.list(&step_folder(self.step))?;
        for key in keys.iter().filter(|key| !kept.contains(key.as_str())) {
            match self.location.delete(key) {
                Err(error) if !error.is_not_found() => return Err(error.into()),
                _ => (),
            }
        }
        for file in self.location.list_unfinished_files(&step_folder(self.step)) {
            self.location.delete_unfinished_file(&file)?;
        }
        Ok(())
    }
}

/// The error for results of another training than the checkpoints are of.
pub fn other_checkpoint_error(location: &Location, step: u64) -> Error {
    Error::Refused(format!(
        "{} has results of another checkpoint of step {step}: the run was trained again, or is another one; \
         give another eval.uri, or remove that folder",
        location.uri()
    ))
}
