//! A text file of a tokenizer folder.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// A text file with its path for messages.
pub struct TextFile {
    pub path: PathBuf,
    pub text: String,
}

impl TextFile {
    pub fn read(path: PathBuf) -> Result<Self> {
        let text = fs::read_to_string(&path).map_err(|e| {
            let problem =
                format!("{e}; a tokenizer folder has vocab.json and merges.txt, as in diffusers' layout");
            tokenizer_error(&path, problem)
        })?;
        Ok(Self { path, text })
    }

    pub fn to_error(&self, problem: impl ToString) -> Error {
        tokenizer_error(&self.path, problem)
    }
}

fn tokenizer_error(path: &Path, problem: impl ToString) -> Error {
    Error::Tokenizer { path: path.display().to_string(), problem: problem.to_string() }
}
