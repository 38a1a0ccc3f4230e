//! The columns of a table that have prompts and categories.

/// The columns that the user named.
#[derive(Clone, Copy)]
pub struct ColumnNames<'a> {
    pub prompt: Option<&'a str>,
    pub category: Option<&'a str>,
}

impl ColumnNames<'_> {
    /// The positions of the prompt and the category among the columns.
    ///
    /// # Errors
    /// If there is no such column.
    pub fn find(self, names: &[String]) -> Result<(usize, Option<usize>), String> {
        let position = |wanted: &str| names.iter().position(|name| name == wanted);
        let missing = |wanted: &str| format!("it has no column `{wanted}`, only {}", names.join(", "));
        let known = |candidates: &[&str]| {
            candidates
                .iter()
                .find_map(|wanted| names.iter().position(|name| name.eq_ignore_ascii_case(wanted)))
        };
        let prompt = match self.prompt {
            Some(wanted) => position(wanted).ok_or_else(|| missing(wanted))?,
            None => known(&["prompt", "prompts", "caption", "text"]).ok_or_else(|| {
                format!(
                    "which column has the prompts? Name it with eval.prompt_column; there are {}",
                    names.join(", ")
                )
            })?,
        };
        let category = match self.category {
            Some(wanted) => Some(position(wanted).ok_or_else(|| missing(wanted))?),
            None => known(&["category"]),
        };
        Ok((prompt, category))
    }
}
