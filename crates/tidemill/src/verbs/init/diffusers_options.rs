//! The command line of diffusers' `train_text_to_image.py` or `train_text_to_image_sdxl.py`. Each option is taken
//! once; what is left at the end has no counterpart.

use std::collections::BTreeMap;
use std::str::FromStr;

/// The script's options and those of `accelerate launch`, with their values.
#[derive(Debug, Default)]
pub struct DiffusersOptions {
    values: BTreeMap<String, Vec<String>>,
    /// Whether the script is the one for SDXL.
    pub is_sdxl: bool,
}

/// Options that change nothing here: where things are cached and logged, on which machines the script
/// runs, and how the same is computed faster.
const WITHOUT_EFFECT: [&str; 26] = [
    "allow_tf32",
    "cache_dir",
    "config_file",
    "dataloader_num_workers",
    "debug_loss",
    "dynamo_backend",
    "enable_npu_flash_attention",
    "enable_xformers_memory_efficient_attention",
    "foreach_ema",
    "gpu_ids",
    "hub_model_id",
    "hub_token",
    "local_rank",
    "logging_dir",
    "machine_rank",
    "main_process_ip",
    "main_process_port",
    "multi_gpu",
    "num_machines",
    "num_validation_images",
    "offload_ema",
    "push_to_hub",
    "report_to",
    "resume_from_checkpoint",
    "tracker_project_name",
    "validation_epochs",
];

impl DiffusersOptions {
    /// Reads a command line: with or without `accelerate launch` and the script's name before it.
    pub fn parse(arguments: &[String]) -> Self {
        let mut options = Self::default();
        // The option that the next words belong to. Other words are the program's name.
        let mut last: Option<String> = None;
        for argument in arguments {
            if let Some(option) = argument.strip_prefix("--") {
                let (name, value) = option.split_once('=').map_or((option, None), |(n, v)| (n, Some(v)));
                options.values.entry(name.to_owned()).or_default().extend(value.map(str::to_owned));
                last = value.is_none().then(|| name.to_owned());
            } else if argument.ends_with(".py") {
                options.is_sdxl = argument.ends_with("_sdxl.py");
                last = None;
            } else if let Some(values) = last.as_ref().and_then(|name| options.values.get_mut(name)) {
                values.push(argument.clone());
            }
        }
        options
    }

    /// Whether an option is given.
    pub fn take_flag(&mut self, name: &str) -> bool {
        self.values.remove(name).is_some()
    }

    /// An option's text.
    pub fn take_text(&mut self, name: &str) -> Option<String> {
        self.values.remove(name)?.into_iter().next()
    }

    /// All words of an option.
    pub fn take_list(&mut self, name: &str) -> Vec<String> {
        self.values.remove(name).unwrap_or_default()
    }

    /// An option's number.
    ///
    /// # Errors
    /// If it is not a number.
    pub fn take_number<T: FromStr>(&mut self, name: &str) -> Result<Option<T>, String> {
        let Some(text) = self.take_text(name) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| format!("--{name}: `{text}` is not a number"))
    }

    /// Refuses what nobody has taken.
    ///
    /// # Errors
    /// The first option that has no counterpart.
    pub fn finish(self) -> Result<(), String> {
        match self.values.keys().find(|name| !WITHOUT_EFFECT.contains(&name.as_str())) {
            Some(name) => {
                Err(format!("--{name} has no counterpart here; leave it out, and compare the runs"))
            }
            None => Ok(()),
        }
    }
}
