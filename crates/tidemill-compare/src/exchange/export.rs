//! A static copy of the page as a zip file. Every rater's comparisons are chosen beforehand, so that
//! answers can be checked when they come back.

use std::collections::BTreeSet;
use std::io::{Seek, Write};

use zip::write::{SimpleFileOptions, ZipWriter};

use crate::database::{Assignment, Database};
use crate::error::{Error, Result};
use crate::server::{RATER_PAGES, STATIC_SOURCE};
use crate::token::random_key;

/// A rater of a static copy. The link is `<address of index.html>#<pack>.<token>`.
#[derive(Debug, Clone)]
pub struct ExportedRater {
    /// The rater's number.
    pub rater: i64,
    /// The file with the rater's comparisons, in `packs`.
    pub pack: String,
    /// The token, which is stored nowhere.
    pub token: String,
}

/// Writes a static copy for some raters, each with at most `comparisons` comparisons. Returns fewer
/// raters if there are not enough comparisons.
///
/// # Errors
/// If the database fails, or the file cannot be written.
pub fn export_site(
    database: &Database,
    raters: usize,
    comparisons: usize,
    to: impl Write + Seek,
) -> Result<Vec<ExportedRater>> {
    let mut archive = Archive { zip: ZipWriter::new(to) };
    for (name, _, content) in RATER_PAGES.into_iter().chain([STATIC_SOURCE]) {
        archive.add(name, content.as_bytes())?;
    }
    archive.add("study.json", database.config.to_rater_json().to_string().as_bytes())?;
    let packs = database.transaction(|database| choose_packs(database, raters, comparisons))?;
    let (mut exported, mut pictures) = (Vec::new(), BTreeSet::new());
    for (rater, assignments) in packs {
        let text = serde_json::to_vec(&assignments).unwrap_or_default();
        archive.add(&format!("packs/{}.json", rater.pack), &text)?;
        pictures.extend(assignments.into_iter().flat_map(|one| [one.left, one.right]));
        exported.push(rater);
    }
    for key in pictures {
        let content = database.read_picture(&key)?.unwrap_or_default();
        archive.add(&format!("pictures/{key}.webp"), &content)?;
    }
    archive.zip.finish().map_err(|e| file_error(&e))?;
    Ok(exported)
}

/// Adds raters and chooses their comparisons, which nobody else gets in their place.
fn choose_packs(
    database: &Database,
    raters: usize,
    comparisons: usize,
) -> Result<Vec<(ExportedRater, Vec<Assignment>)>> {
    let mut packs = Vec::new();
    for _ in 0..raters {
        let (rater, token) = database.add_rater(None)?;
        let assignments = database.assign(rater, comparisons)?;
        if assignments.is_empty() {
            database.remove_rater(rater)?;
            break;
        }
        database.reserve_assignments(rater)?;
        packs.push((ExportedRater { rater, pack: random_key(), token }, assignments));
    }
    Ok(packs)
}

struct Archive<W: Write + Seek> {
    zip: ZipWriter<W>,
}

impl<W: Write + Seek> Archive<W> {
    /// Adds a file. All have the same date, so that it says nothing of the pictures.
    fn add(&mut self, name: &str, content: &[u8]) -> Result<()> {
        let options = SimpleFileOptions::default().last_modified_time(zip::DateTime::default());
        self.zip.start_file(name, options).map_err(|e| file_error(&e))?;
        self.zip.write_all(content).map_err(|e| file_error(&e))
    }
}

fn file_error(error: &dyn std::fmt::Display) -> Error {
    Error::File { path: "the zip file".into(), problem: error.to_string() }
}
