//! The arguments of `tidemill init`, and where the run file goes.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::diffusers_options::DiffusersOptions;
use super::from_diffusers::translate;
use crate::error::{Error, Result};
use crate::progress::Reporter;
use crate::verbs::image_files::write_file;
use crate::verbs::shared_arguments::parse_local_path;

/// Arguments of `tidemill init`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Example:\n  tidemill init --from-diffusers accelerate launch --num_processes 8 train_text_to_image.py \\\n    \
        --pretrained_model_name_or_path models/sd2 --train_data_dir pairs --resolution 512 --max_train_steps 10000"
)]
pub struct Args {
    /// The file to write. It must not exist.
    #[arg(long, default_value = "run.toml", value_name = "FILE", value_parser = parse_local_path)]
    pub output: PathBuf,
    /// The command line of diffusers' `train_text_to_image.py`, whose training the run file does.
    /// It takes all arguments that follow.
    #[arg(long, num_args = 1.., allow_hyphen_values = true, required = true, value_name = "ARGUMENTS")]
    pub from_diffusers: Vec<String>,
}

/// Writes the run file, and says what differs.
///
/// # Errors
/// If the command line has options that have no counterpart, or the file exists or cannot be written.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    if args.output.exists() {
        let message =
            format!("{} exists; give another --output before the other arguments", args.output.display());
        return Err(Error::Arguments(message));
    }
    let translated = translate(DiffusersOptions::parse(&args.from_diffusers)).map_err(Error::Arguments)?;
    write_file(&args.output, translated.toml.as_bytes())?;
    reporter.report(format!("wrote {}", args.output.display()));
    translated.remarks.iter().for_each(|remark| reporter.report(format!("  {remark}")));
    Ok(json!({ "verb": "init", "path": args.output, "remarks": translated.remarks }))
}
