//! Prompts, pictures and comparisons.

use rusqlite::{OptionalExtension, params};

use super::connection::Database;
use crate::error::Result;
use crate::study::{Comparison, ComparisonKind};
use crate::token::random_key;

/// A prompt of a study.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredPrompt {
    /// What the pictures are drawn from.
    pub text: String,
    /// The category, if the prompts have any.
    pub category: Option<String>,
}

/// Two pictures that are shown together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredComparison {
    /// The prompt's number.
    pub prompt: usize,
    /// The models' numbers; in a check both are the same.
    pub models: (usize, usize),
    /// Whether the second picture is a damaged one.
    pub is_check: bool,
}

/// What a study compares.
#[derive(Debug, Clone, Default)]
pub struct Contents {
    /// The prompts by their numbers.
    pub prompts: Vec<StoredPrompt>,
    /// The comparisons by their numbers.
    pub comparisons: Vec<StoredComparison>,
}

impl Database {
    /// Writes the prompts. Returns whether they are those of the study, which has none at first.
    ///
    /// # Errors
    /// If the database fails.
    pub fn put_prompts(&self, prompts: &[StoredPrompt]) -> Result<bool> {
        self.transaction(|database| {
            let known = database.read_prompts()?;
            if !known.is_empty() {
                return Ok(known == prompts);
            }
            let mut insert =
                database.connection.prepare("INSERT INTO prompt (id, text, category) VALUES (?1, ?2, ?3)")?;
            for (id, prompt) in prompts.iter().enumerate() {
                insert.execute(params![id as i64, prompt.text, prompt.category])?;
            }
            Ok(true)
        })
    }

    fn read_prompts(&self) -> Result<Vec<StoredPrompt>> {
        let mut read = self.connection.prepare("SELECT text, category FROM prompt ORDER BY id")?;
        let prompts =
            read.query_map([], |row| Ok(StoredPrompt { text: row.get(0)?, category: row.get(1)? }))?;
        Ok(prompts.collect::<rusqlite::Result<_>>()?)
    }

    /// Whether a picture is there.
    ///
    /// # Errors
    /// If the database fails.
    pub fn has_picture(&self, prompt: usize, model: usize, image: usize, is_damaged: bool) -> Result<bool> {
        Ok(self.find_picture(prompt, model, image, is_damaged)?.is_some())
    }

    fn find_picture(
        &self,
        prompt: usize,
        model: usize,
        image: usize,
        is_damaged: bool,
    ) -> Result<Option<i64>> {
        let mut find = self.connection.prepare_cached(
            "SELECT id FROM picture WHERE prompt = ?1 AND model = ?2 AND image = ?3 AND is_damaged = ?4",
        )?;
        let found =
            find.query_row(params![prompt as i64, model as i64, image as i64, is_damaged], |row| row.get(0));
        Ok(found.optional()?)
    }

    /// Writes a picture under a random key, unless it is there.
    ///
    /// # Errors
    /// If the database fails.
    pub fn put_picture(
        &self,
        (prompt, model, image): (usize, usize, usize),
        is_damaged: bool,
        content: &[u8],
    ) -> Result<()> {
        let mut insert = self.connection.prepare_cached(
            "INSERT OR IGNORE INTO picture (key, prompt, model, image, is_damaged, content) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?;
        insert.execute(params![
            random_key(),
            prompt as i64,
            model as i64,
            image as i64,
            is_damaged,
            content
        ])?;
        Ok(())
    }

    /// The stored picture of a model, which is not damaged.
    ///
    /// # Errors
    /// If the database fails, or there is none.
    pub fn read_picture_of(&self, prompt: usize, model: usize, image: usize) -> Result<Vec<u8>> {
        let mut read = self.connection.prepare_cached(
            "SELECT content FROM picture WHERE prompt = ?1 AND model = ?2 AND image = ?3 AND is_damaged = 0",
        )?;
        Ok(read.query_row(params![prompt as i64, model as i64, image as i64], |row| row.get(0))?)
    }

    /// The picture with a key.
    ///
    /// # Errors
    /// If the database fails.
    pub fn read_picture(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let mut read = self.connection.prepare_cached("SELECT content FROM picture WHERE key = ?1")?;
        Ok(read.query_row([key], |row| row.get(0)).optional()?)
    }

    /// Writes the comparisons in their order, and completes the study.
    ///
    /// # Errors
    /// If the database fails, or a picture is missing.
    pub fn put_comparisons(&self, comparisons: &[Comparison]) -> Result<()> {
        self.transaction(|database| {
            for (id, comparison) in comparisons.iter().enumerate() {
                let Comparison { prompt, image, kind } = *comparison;
                let (first, second, is_check) = match kind {
                    ComparisonKind::Models(first, second) => ((first, false), (second, false), false),
                    ComparisonKind::Check(model) => ((model, false), (model, true), true),
                };
                let find = |(model, is_damaged): (usize, bool)| {
                    let found = database.find_picture(prompt, model, image, is_damaged)?;
                    found.ok_or(crate::Error::Database(rusqlite::Error::QueryReturnedNoRows))
                };
                database.connection.execute(
                    "INSERT INTO comparison (id, prompt, first, second, is_check) VALUES (?1, ?2, ?3, ?4, ?5)",
                    params![id as i64, prompt as i64, find(first)?, find(second)?, is_check],
                )?;
            }
            database.connection.execute("UPDATE study SET complete = 1", [])?;
            Ok(())
        })
    }

    /// Whether all pictures and comparisons are there.
    ///
    /// # Errors
    /// If the database fails.
    pub fn is_complete(&self) -> Result<bool> {
        Ok(self.connection.query_row("SELECT complete FROM study", [], |row| row.get(0))?)
    }

    /// The prompts and comparisons.
    ///
    /// # Errors
    /// If the database fails.
    pub fn read_contents(&self) -> Result<Contents> {
        let prompts = self.read_prompts()?;
        let mut comparisons = self.connection.prepare(
            "SELECT comparison.prompt, first.model, second.model, comparison.is_check FROM comparison \
             JOIN picture AS first ON first.id = first JOIN picture AS second ON second.id = second \
             ORDER BY comparison.id",
        )?;
        let comparisons = comparisons
            .query_map([], |row| {
                Ok(StoredComparison {
                    prompt: row.get::<_, i64>(0)? as usize,
                    models: (row.get::<_, i64>(1)? as usize, row.get::<_, i64>(2)? as usize),
                    is_check: row.get(3)?,
                })
            })?
            .collect::<rusqlite::Result<_>>()?;
        Ok(Contents { prompts, comparisons })
    }
}
