//! The arguments of `tidemill init`, and where the run file goes.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::diffusers_options::DiffusersOptions;
use super::from_diffusers::translate;
use super::from_pairs::propose;
use crate::error::{Error, Result};
use crate::progress::Reporter;
use crate::verbs::image_files::write_file;
use crate::verbs::shared_arguments::parse_local_path;

/// Arguments of `tidemill init`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Examples:\n  tidemill init data/pairs\n  tidemill init s3://bucket/shards --output laion.toml\n  \
        tidemill init --from-diffusers accelerate launch --num_processes 8 train_text_to_image.py \\\n    \
        --pretrained_model_name_or_path models/sd2 --train_data_dir pairs --resolution 512 --max_train_steps 10000"
)]
pub struct Args {
    /// Image-caption pairs: a folder, a file, a URI or a glob. The first files are looked at; format,
    /// columns and resolutions are proposed.
    #[arg(required_unless_present = "from_diffusers", conflicts_with = "from_diffusers")]
    pub pairs: Option<String>,
    /// The models of the run: a folder in the diffusers layout, or one of the Hugging Face Hub
    /// (`hf://user/name`).
    #[arg(long, value_name = "FOLDER", conflicts_with = "from_diffusers")]
    pub models: Option<String>,
    /// The file to write. It must not exist.
    #[arg(long, default_value = "run.toml", value_name = "FILE", value_parser = parse_local_path)]
    pub output: PathBuf,
    /// The command line of diffusers' `train_text_to_image.py` or `train_text_to_image_sdxl.py`, whose training the run
    /// file does.
    /// It takes all arguments that follow.
    #[arg(long, num_args = 1.., allow_hyphen_values = true, value_name = "ARGUMENTS")]
    pub from_diffusers: Vec<String>,
}

/// Writes the run file, and says what differs or was found.
///
/// # Errors
/// If the command line has options that have no counterpart, the pairs cannot be read, or the file
/// exists or cannot be written.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    if args.output.exists() {
        let message =
            format!("{} exists; give another --output before the other arguments", args.output.display());
        return Err(Error::Arguments(message));
    }
    let file = match &args.pairs {
        Some(pairs) => propose(pairs, args.models.as_deref())?,
        None => translate(DiffusersOptions::parse(&args.from_diffusers)).map_err(Error::Arguments)?,
    };
    write_file(&args.output, file.text.as_bytes())?;
    reporter.report(format!("wrote {}", args.output.display()));
    file.remarks.iter().for_each(|remark| reporter.report(format!("  {remark}")));
    Ok(json!({ "verb": "init", "path": args.output, "remarks": file.remarks }))
}
