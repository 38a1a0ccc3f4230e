//! `tidemill explain`: what a key of the run file means.

use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::progress::Reporter;
use crate::run_file::reference::{Key, Named, Section, find, read_sections};

/// Arguments of `tidemill explain`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Examples:\n  tidemill explain                 all sections\n  tidemill explain train.ema\n  \
        tidemill explain train.phase.0.steps"
)]
pub struct Args {
    /// The dotted name of a key or a section. Without it: all sections.
    pub key: Option<String>,
}

/// Prints what docs/run-file.md says, and returns it.
///
/// # Errors
/// If there is no such key.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    let sections = read_sections();
    let Some(name) = &args.key else {
        sections.iter().filter(|section| !section.name.is_empty()).for_each(|section| {
            reporter.report(format!("[{}]", section.name));
        });
        let names: Vec<&str> = sections.iter().map(|section| section.name).collect();
        return Ok(json!({ "verb": "explain", "sections": names }));
    };
    let Named { section, key } = find(&sections, name).map_err(Error::Arguments)?;
    if let Some((of, key)) = key {
        reporter.report(format!("{} (default: {})\n  {}", of.path(key), key.default, key.meaning));
    }
    if let Some(section) = section {
        print_section(section, reporter);
    }
    Ok(json!({
        "verb": "explain",
        "key": key.map(|(of, key)| to_json(of, key)),
        "section": section.map(|section| {
            section.keys.iter().map(|key| to_json(section, key)).collect::<Vec<_>>()
        }),
    }))
}

fn print_section(section: &Section, reporter: &Reporter) {
    reporter.report(format!("\n[{}]", section.name));
    let text = section.text.trim();
    if !text.is_empty() {
        reporter.report(format!("{text}\n"));
    }
    for key in &section.keys {
        reporter.report(format!("  {} (default: {})\n    {}", key.name, key.default, key.meaning));
    }
}

fn to_json(section: &Section, key: &Key) -> Value {
    json!({ "name": section.path(key), "default": key.default, "meaning": key.meaning })
}
