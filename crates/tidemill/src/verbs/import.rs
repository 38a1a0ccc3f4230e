//! `tidemill import`: makes a model folder from a single file in the layout of the first Stable
//! Diffusion releases.

use std::path::PathBuf;

use serde_json::{Value, json};
use tidemill_models::ModelFolder;

use crate::error::Result;
use crate::hub::Repository;
use crate::progress::Reporter;
use crate::verbs::shared_arguments::parse_local_path;

/// Arguments of `tidemill import`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Example:\n  tidemill import v2-base.safetensors --config hf://user/stable-diffusion-2-base --to models/sd2"
)]
pub struct Args {
    /// The file (`.safetensors`).
    #[arg(value_name = "FILE", value_parser = parse_local_path)]
    pub file: PathBuf,
    /// A model folder of the same architecture, or one of the Hugging Face Hub (`hf://user/name`). A
    /// single file has no configuration and no tokenizer.
    #[arg(long, value_name = "FOLDER")]
    pub config: PathBuf,
    /// The folder to write.
    #[arg(long, value_name = "FOLDER", value_parser = parse_local_path)]
    pub to: PathBuf,
}

/// Writes the folder.
///
/// # Errors
/// If the file is of another architecture, or one of both cannot be read or written.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    let config = match Repository::parse(&args.config) {
        Some(repository) => repository?.download()?,
        None => args.config.clone(),
    };
    ModelFolder::open(config)?.import_single_file(&args.file, &args.to)?;
    reporter.report(format!("{} as a model folder: {}", args.file.display(), args.to.display()));
    Ok(json!({ "verb": "import", "path": args.to }))
}
