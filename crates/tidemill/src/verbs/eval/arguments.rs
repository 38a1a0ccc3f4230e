//! The arguments of `tidemill eval`.

use std::path::PathBuf;

use crate::evaluation::{EvalModels, Metric};

/// Arguments of `tidemill eval`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:\n  tidemill eval run.toml --all\n  \
    tidemill eval run.toml --watch --set engine.device=cuda:1\n  \
    tidemill eval images --prompts prompts.txt --model clip=models/clip\n  \
    tidemill eval images --reference photos --model inception=models/inception")]
pub struct Args {
    /// A run file, or a folder of images.
    #[arg(value_name = "RUN_FILE|FOLDER")]
    pub path: PathBuf,
    /// Override one key of the run file; may be given several times.
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    pub overrides: Vec<String>,
    /// Evaluate the checkpoint of this step. Default: the newest.
    #[arg(long, conflicts_with_all = ["all", "watch"])]
    pub step: Option<u64>,
    /// Evaluate all checkpoints.
    #[arg(long, conflicts_with = "watch")]
    pub all: bool,
    /// Evaluate all checkpoints, and wait for new ones until training is done.
    #[arg(long)]
    pub watch: bool,
    /// This process is an evaluator of a Ray cluster.
    #[arg(long, hide = true)]
    pub worker: bool,
    /// Options for a folder of images.
    #[command(flatten)]
    pub folder: FolderArgs,
}

/// The device of [`FolderArgs`].
const DEFAULT_DEVICE: &str = "cpu";

/// Options for a folder of images.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Options for a folder of images")]
pub struct FolderArgs {
    /// The prompts of the images, in the order of the images' names: text, CSV, TSV or Parquet.
    #[arg(long, value_name = "FILE")]
    pub prompts: Option<String>,
    /// The images to compare with: a folder, or a file of statistics.
    #[arg(long, value_name = "FOLDER|FILE")]
    pub reference: Option<PathBuf>,
    /// Write a row per image with its scores (Parquet).
    #[arg(long, value_name = "FILE")]
    pub table: Option<PathBuf>,
    /// Only write the statistics of the images, for eval.reference.statistics.
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["prompts", "reference", "table", "metrics"])]
    pub save_statistics: Option<PathBuf>,
    /// A network that judges: inception, clip, dinov2, pickscore or hpsv2, and its folder.
    #[arg(long = "model", value_name = "NAME=FOLDER")]
    pub models: Vec<String>,
    /// What is measured; may be given several times. Default: all that the models and the other
    /// options allow.
    #[arg(long = "metric", value_enum)]
    pub metrics: Vec<Metric>,
    /// The device: cpu, cuda, or cuda:1.
    #[arg(long, default_value = DEFAULT_DEVICE)]
    pub device: String,
}

impl FolderArgs {
    /// Whether any of them was given.
    pub fn is_used(&self) -> bool {
        self.prompts.is_some()
            || self.reference.is_some()
            || self.save_statistics.is_some()
            || self.table.is_some()
            || self.device != DEFAULT_DEVICE
            || !self.models.is_empty()
            || !self.metrics.is_empty()
    }

    /// The networks' folders.
    ///
    /// # Errors
    /// If a text is not of the form NAME=FOLDER, or the name is unknown.
    pub fn parse_models(&self) -> Result<EvalModels, String> {
        let mut models = EvalModels::default();
        for text in &self.models {
            let (name, folder) = text
                .split_once('=')
                .ok_or_else(|| format!("--model {text}: give NAME=FOLDER, as in clip=models/clip"))?;
            let folder = Some(PathBuf::from(folder));
            match name {
                "inception" => models.inception = folder,
                "clip" => models.clip = folder,
                "dinov2" => models.dinov2 = folder,
                "pickscore" => models.pickscore = folder,
                "hpsv2" => models.hpsv2 = folder,
                _ => {
                    let known = "inception, clip, dinov2, pickscore and hpsv2";
                    return Err(format!("--model {text}: there is no network `{name}`, only {known}"));
                }
            }
        }
        Ok(models)
    }
}
