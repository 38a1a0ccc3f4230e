//! The prompts that images are drawn from.

mod column_names;
mod prompt_file;
mod prompt_list;
mod table;

use tidemill_synth::heldout_prompts;

pub use self::prompt_file::{read_prompt_file, read_prompt_rows};
pub use self::prompt_list::{Prompt, PromptList};
use super::config::{EvalConfig, HELDOUT_CAPTIONS};
use crate::error::{Error, Result};
use crate::run_file::Run;

/// The prompts of `[eval]`.
///
/// # Errors
/// If the file cannot be read, or there is no prompt.
pub fn load_prompts(run: &Run) -> Result<PromptList> {
    let EvalConfig { prompts, prompt_column, category_column, limit, scenes, .. } = &run.file.eval;
    let mut list = match prompts.as_deref() {
        None => PromptList::default(),
        Some(HELDOUT_CAPTIONS) => heldout_captions(run)?,
        Some(path) => read_prompt_file(path, prompt_column.as_deref(), category_column.as_deref())
            .map_err(|problem| run.refuse("eval.prompts", format!("{path}: {problem}")))?,
    };
    if prompts.is_some() && list.prompts.is_empty() {
        return Err(run.refuse("eval.prompts", "there is no prompt in it"));
    }
    list.prompts.truncate(limit.unwrap_or(usize::MAX));
    let all = heldout_prompts();
    let count = (*scenes).min(all.len());
    list.prompts.extend((0..count).map(|i| {
        let scene = all[i * all.len() / count].clone();
        Prompt { text: scene.text.clone(), category: Some("scenes".into()), scene: Some(scene) }
    }));
    if list.prompts.is_empty() {
        return Err(run.refuse("eval", "there is nothing to draw; give eval.prompts or eval.scenes"));
    }
    Ok(list)
}

/// The captions of the rows that are held out of training.
fn heldout_captions(run: &Run) -> Result<PromptList> {
    use arrow::array::AsArray;
    use tidemill_store::{Dataset, Split};

    let dataset = Dataset::open(&run.dataset())?;
    let share = run.file.validation.share;
    let mut rows = Vec::new();
    for batch in dataset.read_rows(&["sample_id", "status", "caption"]) {
        let batch = batch?;
        let malformed = || Error::Unit(format!("the rows of {} have no captions", run.dataset()));
        let ids = tidemill_data::columns::prepared::sample_ids(&batch).ok_or_else(malformed)?;
        let text = |name: &str| batch.column_by_name(name).and_then(|column| column.as_string_opt::<i32>());
        let status = text("status").ok_or_else(malformed)?;
        let captions = text("caption").ok_or_else(malformed)?;
        for (row, id) in ids.iter().enumerate() {
            if status.value(row) == tidemill_data::status::KEPT
                && Split::from_sample_id(*id, share) == Split::Validation
            {
                rows.push((captions.value(row).to_owned(), None));
            }
        }
    }
    if rows.is_empty() {
        let message = "no rows are held out of training: set [validation] share, or name a file of prompts";
        return Err(run.refuse("eval.prompts", message));
    }
    Ok(PromptList::from_rows(rows.into_iter()))
}
