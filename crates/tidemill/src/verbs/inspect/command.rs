//! Decides whether the path of `tidemill inspect` is a run file, a dataset or pairs.

use serde_json::{Value, json};
use tidemill_data::ClipTokenizer;
use tidemill_store::Error as Store;

use super::arguments::Args;
use super::contact_sheet::write_contact_sheet;
use super::dataset::inspect_dataset;
use super::source::inspect_source;
use crate::error::{Error, Result};
use crate::progress::Reporter;
use crate::run_file::Run;

/// Shows what the path contains.
///
/// # Errors
/// If there is nothing at the path, it is neither a dataset nor pairs, or `--verify` finds damaged
/// files.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    if args.path.extension().is_some_and(|extension| extension == "toml") {
        return inspect_run_file(args, reporter);
    }
    let refuse = |message: &str| Err(Error::Arguments(message.into()));
    if args.sheet.is_some() {
        return refuse("--sheet draws rows of a source; give the run file that names the source");
    }
    if !args.overrides.is_empty() {
        return refuse("--set changes a run file's settings; give the run file");
    }
    let path = args.path.to_string_lossy();
    let is_dataset = args.path.join("dataset.json").is_file();
    if is_dataset || args.list.is_some() || args.verify {
        return inspect_dataset(&path, None, args, reporter);
    }
    if !path.contains("://") {
        return inspect_source(&path, reporter);
    }
    let no_dataset = match inspect_dataset(&path, None, args, reporter) {
        Err(error @ Error::Store(Store::NoDataset { .. } | Store::NoManifest { .. })) => error,
        inspected => return inspected,
    };
    match inspect_source(&path, reporter) {
        // There is nothing at all.
        Err(Error::Data(tidemill_data::Error::Uri { .. })) => Err(no_dataset),
        inspected => inspected,
    }
}

/// Shows the dataset of a run, and its source on a contact sheet. The sheet can be drawn before
/// there is a dataset.
fn inspect_run_file(args: &Args, reporter: &Reporter) -> Result<Value> {
    let run = Run::open(&args.path, &args.overrides)?;
    let sheet =
        args.sheet.as_ref().map(|path| write_contact_sheet(&run, path, args, reporter)).transpose()?;
    let tokenizer = run.models().ok().and_then(|models| ClipTokenizer::open(&models.tokenizer()).ok());
    let inspected = inspect_dataset(&run.dataset(), tokenizer.as_ref(), args, reporter);
    let mut result = match inspected {
        Err(Error::Store(Store::NoDataset { .. } | Store::NoManifest { .. })) if sheet.is_some() => {
            json!({ "verb": "inspect", "kind": "source", "path": args.path })
        }
        inspected => inspected?,
    };
    if let Some(sheet) = sheet {
        result["sheet"] = sheet;
    }
    Ok(result)
}
