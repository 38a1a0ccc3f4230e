//! What a report consists of.

use serde::Serialize;

/// A report of one run, or of several side by side.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// The page's title.
    pub title: String,
    /// The program that made the report, with its version.
    pub made_by: String,
    /// The runs. Charts of the same id show the lines of all of them.
    pub runs: Vec<RunReport>,
}

/// A run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RunReport {
    /// The run's name.
    pub name: String,
    /// Numbers to see first, each with its label.
    pub facts: Vec<(String, String)>,
    /// Charts, in order.
    pub charts: Vec<Chart>,
    /// What happened at which step.
    pub marks: Vec<Mark>,
    /// Pictures over steps.
    pub galleries: Vec<Gallery>,
    /// Figures that do not change.
    pub pictures: Vec<(String, Picture)>,
    /// Tables.
    pub tables: Vec<Table>,
    /// Long texts, folded: the configuration.
    pub texts: Vec<(String, String)>,
    /// What could not be shown, and why.
    pub remarks: Vec<String>,
}

/// Lines over steps, or over something else.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Chart {
    /// The same in all runs.
    pub id: String,
    /// The heading below which it is.
    pub group: String,
    /// The title, with the unit.
    pub title: String,
    /// What the lines are over, with the unit. Empty for steps.
    pub x_name: String,
    /// What happened where, if the lines are not over steps.
    pub marks: Vec<Mark>,
    /// Whether values spread over powers of ten.
    pub is_logarithmic: bool,
    /// The lines.
    pub lines: Vec<Line>,
}

/// A line of a chart.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Line {
    /// Its name.
    pub name: String,
    /// Steps or other numbers, ascending.
    pub x: Vec<f64>,
    /// A value for each x.
    pub y: Vec<f64>,
}

/// Something that happened at a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mark {
    /// The step, or the x of a chart that is not over steps.
    pub x: f64,
    /// What happened, in a few words.
    pub label: String,
}

/// Pictures over steps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Gallery {
    /// What they show.
    pub title: String,
    /// The pictures, by step.
    pub pictures: Vec<(u64, Picture)>,
}

/// A picture inside the page.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Picture(String);

impl Picture {
    /// A picture of this media type, such as `image/png`.
    pub fn new(media_type: &str, bytes: &[u8]) -> Self {
        use base64::Engine;
        let encoded = base64::engine::general_purpose::STANDARD.encode(bytes);
        Self(format!("data:{media_type};base64,{encoded}"))
    }

    /// The bytes that it takes in the page.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A table.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Table {
    /// The heading below which it is.
    pub title: String,
    /// The columns.
    pub head: Vec<String>,
    /// The rows.
    pub rows: Vec<Vec<String>>,
}
