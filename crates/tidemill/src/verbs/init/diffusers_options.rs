//! The command line of diffusers' `train_text_to_image.py`.

use std::collections::BTreeMap;
use std::str::FromStr;

/// The script's options and those of `accelerate launch`, with their values.
#[derive(Debug, Default)]
pub struct DiffusersOptions {
    values: BTreeMap<String, Vec<String>>,
}

/// Options that change nothing here: where things are cached and logged, and how the same is computed
/// faster.
const WITHOUT_EFFECT: [&str; 23] = [
    "allow_tf32",
    "cache_dir",
    "dataloader_num_workers",
    "enable_xformers_memory_efficient_attention",
    "foreach_ema",
    "offload_ema",
    "hub_model_id",
    "hub_token",
    "local_rank",
    "logging_dir",
    "push_to_hub",
    "report_to",
    "tracker_project_name",
    "resume_from_checkpoint",
    "validation_epochs",
    "multi_gpu",
    "gpu_ids",
    "num_machines",
    "machine_rank",
    "main_process_ip",
    "main_process_port",
    "config_file",
    "dynamo_backend",
];
/// Options that are translated.
const TRANSLATED: [&str; 40] = [
    "pretrained_model_name_or_path",
    "dataset_name",
    "train_data_dir",
    "image_column",
    "caption_column",
    "output_dir",
    "seed",
    "resolution",
    "center_crop",
    "random_flip",
    "train_batch_size",
    "num_train_epochs",
    "max_train_steps",
    "gradient_accumulation_steps",
    "gradient_checkpointing",
    "learning_rate",
    "scale_lr",
    "lr_scheduler",
    "lr_warmup_steps",
    "snr_gamma",
    "use_8bit_adam",
    "use_ema",
    "adam_beta1",
    "adam_beta2",
    "adam_weight_decay",
    "adam_epsilon",
    "max_grad_norm",
    "prediction_type",
    "mixed_precision",
    "checkpointing_steps",
    "checkpoints_total_limit",
    "noise_offset",
    "validation_prompts",
    "num_processes",
    "image_interpolation_mode",
    "max_train_samples",
    "revision",
    "variant",
    "non_ema_revision",
    "dataset_config_name",
];

impl DiffusersOptions {
    /// Reads a command line: with or without `accelerate launch` and the script's name before it.
    ///
    /// # Errors
    /// If it has an option that cannot be translated.
    pub fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut options = Self::default();
        let mut last: Option<String> = None;
        for argument in arguments {
            match argument.strip_prefix("--") {
                Some(option) => {
                    let (name, value) = option.split_once('=').map_or((option, None), |(n, v)| (n, Some(v)));
                    check_option(name)?;
                    let values = options.values.entry(name.to_owned()).or_default();
                    values.extend(value.map(str::to_owned));
                    last = value.is_none().then(|| name.to_owned());
                }
                // Words before the options are the program's name.
                None => {
                    if let Some(values) = last.as_ref().and_then(|name| options.values.get_mut(name)) {
                        values.push(argument.clone());
                    }
                    if argument.ends_with(".py") {
                        last = None;
                    }
                }
            }
        }
        Ok(options)
    }

    /// Whether an option is given.
    pub fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    /// An option's text.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.values.get(name)?.first().map(String::as_str)
    }

    /// All words of an option.
    pub fn list(&self, name: &str) -> &[String] {
        self.values.get(name).map_or(&[], Vec::as_slice)
    }

    /// An option's number, or the script's default.
    ///
    /// # Errors
    /// If it is not a number.
    pub fn number<T: FromStr>(&self, name: &str, default: T) -> Result<T, String> {
        let Some(text) = self.text(name) else { return Ok(default) };
        text.parse().map_err(|_| format!("--{name}: `{text}` is not a number"))
    }
}

fn check_option(name: &str) -> Result<(), String> {
    if WITHOUT_EFFECT.contains(&name) || TRANSLATED.contains(&name) {
        return Ok(());
    }
    Err(format!("--{name} has no counterpart here; leave it out, and compare the runs"))
}
