//! The run file that trains as diffusers' `train_text_to_image.py` does with some options. Its defaults
//! are the script's where ours differ.

use std::fmt::{Display, Write};
use std::path::Path;

use super::diffusers_options::DiffusersOptions;

/// A run file, and what the user should know of it.
#[derive(Debug)]
pub struct Translated {
    /// The run file.
    pub toml: String,
    /// What is left to do, and what differs.
    pub remarks: Vec<String>,
}

/// Translates the options.
///
/// # Errors
/// If a value has no counterpart, or the number of steps is not given.
pub fn translate(options: &DiffusersOptions) -> Result<Translated, String> {
    let mut file = RunFileText::default();
    let resolution: u32 = options.number("resolution", 512)?;
    file.comment("From a command line of diffusers' train_text_to_image.py.");
    file.set("seed", options.number("seed", 0u64)?);
    file.set_text("output", options.text("output_dir").unwrap_or("sd-model-finetuned"));
    add_source(&mut file, options);
    add_prepare(&mut file, options, resolution)?;
    add_model(&mut file, options);
    add_train(&mut file, options)?;
    add_optimizer(&mut file, options)?;
    file.section("[train.phase]");
    file.set("resolution", resolution);
    file.set("steps", steps(options)?);
    add_previews(&mut file, options);
    file.section("checkpoint");
    file.set("every", options.number("checkpointing_steps", 500u64)?);
    // The script keeps all.
    file.set("keep", options.number("checkpoints_total_limit", 1_000_000u64)?);
    Ok(Translated { toml: file.text, remarks: file.remarks })
}

/// The lines of a run file.
#[derive(Default)]
struct RunFileText {
    text: String,
    remarks: Vec<String>,
}

impl RunFileText {
    fn comment(&mut self, text: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "# {text}");
    }

    fn section(&mut self, name: &str) {
        let _ = writeln!(self.text, "\n[{name}]");
    }

    fn set(&mut self, key: &str, value: impl Display) {
        let _ = writeln!(self.text, "{key} = {value}");
    }

    fn set_text(&mut self, key: &str, value: &str) {
        self.set(key, toml_text(value));
    }

    fn remark(&mut self, text: impl Into<String>) {
        self.remarks.push(text.into());
    }
}

fn toml_text(value: &str) -> String {
    toml::Value::from(value).to_string()
}

fn add_source(file: &mut RunFileText, options: &DiffusersOptions) {
    file.section("source");
    match (options.text("train_data_dir"), options.text("dataset_name")) {
        (Some(folder), _) => {
            file.set_text("format", "images");
            file.set_text("uri", folder);
        }
        (None, name) => {
            let name = name.unwrap_or("pairs");
            let folder = format!("data/{}", name.rsplit('/').next().unwrap_or(name));
            file.set_text("uri", &format!("{folder}/**/*.parquet"));
            if !Path::new(&folder).exists() {
                file.remark(format!(
                    "get the pairs: hf download --repo-type dataset {name} --local-dir {folder}"
                ));
            }
        }
    }
    let image = toml_text(options.text("image_column").unwrap_or("image"));
    let caption = toml_text(options.text("caption_column").unwrap_or("text"));
    file.set("columns", format_args!("{{ image = {image}, caption = {caption} }}"));
    if options.has("max_train_samples") {
        file.remark("--max_train_samples: all pairs are used; name fewer files in source.uri");
    }
}

fn add_prepare(file: &mut RunFileText, options: &DiffusersOptions, resolution: u32) -> Result<(), String> {
    file.section("prepare");
    file.set("resolutions", format_args!("[{resolution}]"));
    // The script crops at random, and anew in each epoch, unless it is told otherwise.
    let is_centered = options.has("center_crop");
    file.set_text("crop", if is_centered { "center" } else { "random" });
    if options.has("random_flip") {
        file.set("flip", true);
    }
    if !is_centered || options.has("random_flip") {
        file.remark("crops and flips are drawn once for each pair; `--mode online` draws them in each epoch");
    }
    let resample = options.text("image_interpolation_mode").unwrap_or("lanczos");
    if !["bilinear", "bicubic", "lanczos"].contains(&resample) {
        return Err(format!(
            "--image_interpolation_mode {resample}: there are bilinear, bicubic and lanczos"
        ));
    }
    file.set_text("resample", resample);
    Ok(())
}

fn add_model(file: &mut RunFileText, options: &DiffusersOptions) {
    file.section("models");
    let model = options.text("pretrained_model_name_or_path").unwrap_or("models/stable-diffusion");
    let is_folder = Path::new(model).is_dir();
    let folder = match is_folder || !model.contains('/') {
        true => model.to_owned(),
        false => format!("models/{}", model.rsplit('/').next().unwrap_or(model)),
    };
    file.set_text("path", &folder);
    if !is_folder {
        file.remark(format!("get the model: hf download {model} --local-dir {folder}"));
    }
}

fn add_train(file: &mut RunFileText, options: &DiffusersOptions) -> Result<(), String> {
    file.section("train");
    let batch = options.number("train_batch_size", 16u64)?;
    let accumulated = options.number("gradient_accumulation_steps", 1u64)?;
    let processes = options.number("num_processes", 1u64)?;
    let global_batch = batch * accumulated * processes;
    file.set("global_batch", global_batch);
    file.set("micro_batch", batch);
    // The script never replaces captions by the empty one.
    file.set("caption_dropout", 0.0);
    match options.text("mixed_precision") {
        Some("bf16") => file.set_text("precision", "bf16"),
        Some("fp16") => {
            file.set_text("precision", "bf16");
            file.remark("fp16 becomes bf16, which needs no loss scaling");
        }
        Some("no") | None => file.set_text("precision", "f32"),
        Some(other) => return Err(format!("--mixed_precision {other}: there are no, fp16 and bf16")),
    }
    if options.has("gradient_checkpointing") {
        file.set("gradient_checkpointing", true);
    }
    if let Some(prediction) = options.text("prediction_type") {
        file.set_text("prediction", prediction);
    }
    if options.has("snr_gamma") {
        file.set("min_snr_gamma", float(options.number("snr_gamma", 5.0)?));
    }
    if options.has("noise_offset") {
        file.set("noise_offset", float(options.number("noise_offset", 0.0)?));
    }
    if options.has("use_ema") {
        file.set("ema", "{ decay = 0.9999 }");
    }
    Ok(())
}

fn add_optimizer(file: &mut RunFileText, options: &DiffusersOptions) -> Result<(), String> {
    let factor = match options.has("scale_lr") {
        true => {
            options.number("train_batch_size", 16.0)?
                * options.number("gradient_accumulation_steps", 1.0)?
                * options.number("num_processes", 1.0)?
        }
        false => 1.0,
    };
    file.set("learning_rate", float(factor * options.number("learning_rate", 1e-4)?));
    let (schedule, has_warmup) = match options.text("lr_scheduler").unwrap_or("constant") {
        "constant" => ("constant", false),
        "constant_with_warmup" => ("constant", true),
        "linear" => ("linear", true),
        "cosine" => ("cosine", true),
        other => return Err(format!("--lr_scheduler {other}: there are constant, linear and cosine")),
    };
    file.set_text("schedule", schedule);
    file.set("warmup_steps", if has_warmup { options.number("lr_warmup_steps", 500u64)? } else { 0 });
    let betas = [options.number("adam_beta1", 0.9)?, options.number("adam_beta2", 0.999)?];
    file.set("betas", format_args!("[{}, {}]", float(betas[0]), float(betas[1])));
    file.set("weight_decay", float(options.number("adam_weight_decay", 1e-2)?));
    file.set("eps", float(options.number("adam_epsilon", 1e-8)?));
    file.set("max_grad_norm", float(options.number("max_grad_norm", 1.0)?));
    if options.has("use_8bit_adam") {
        file.set_text("moment_precision", "bf16");
        file.remark("8-bit Adam becomes AdamW with moments in bf16");
    }
    Ok(())
}

/// A float as TOML writes it, so that a whole number is not an integer.
fn float(value: f64) -> toml::Value {
    toml::Value::Float(value)
}

fn steps(options: &DiffusersOptions) -> Result<u64, String> {
    if !options.has("max_train_steps") {
        let message = "how many steps epochs are depends on the pairs: give --max_train_steps in place of \
                       --num_train_epochs (100 epochs without either)";
        return Err(message.into());
    }
    options.number("max_train_steps", 0)
}

fn add_previews(file: &mut RunFileText, options: &DiffusersOptions) {
    let prompts: Vec<String> =
        options.list("validation_prompts").iter().map(|prompt| toml_text(prompt)).collect();
    if !prompts.is_empty() {
        file.section("train.preview");
        file.set("prompts", format_args!("[{}]", prompts.join(", ")));
        file.remark("previews are drawn every 1000 steps (train.preview.every), not by epochs");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_file::Run;

    fn translate_line(line: &str) -> Result<Translated, String> {
        let arguments: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        translate(&DiffusersOptions::parse(&arguments)?)
    }

    #[test]
    fn published_command_becomes_a_run_file() {
        // The example of diffusers' documentation.
        let translated = translate_line(
            "accelerate launch --mixed_precision=fp16 --num_processes 4 train_text_to_image.py \
             --pretrained_model_name_or_path=stable-diffusion-v1-5/stable-diffusion-v1-5 \
             --dataset_name=lambdalabs/naruto-blip-captions --use_ema --resolution=512 --center_crop --random_flip \
             --train_batch_size=1 --gradient_accumulation_steps=4 --gradient_checkpointing --max_train_steps=15000 \
             --learning_rate=1e-05 --max_grad_norm=1 --enable_xformers_memory_efficient_attention \
             --lr_scheduler=constant --lr_warmup_steps=0 --output_dir=sd-naruto-model \
             --validation_prompts a b --push_to_hub",
        )
        .unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.toml");
        std::fs::write(&path, &translated.toml).unwrap();
        let file = Run::open(&path, &[]).unwrap_or_else(|error| panic!("{error}\n{}", translated.toml)).file;
        let train = &file.train;
        assert_eq!((train.global_batch, train.micro_batch, train.phase[0].steps), (16, 1, 15_000));
        assert_eq!((train.learning_rate, train.warmup_steps, train.max_grad_norm), (1e-5, 0, 1.0));
        assert!(train.ema.is_some() && train.gradient_checkpointing && file.prepare.flip);
        assert_eq!(train.preview.as_ref().unwrap().prompts, ["a", "b"]);
        assert_eq!(file.source.columns.caption.as_slice(), ["text"]);
        let remarks = translated.remarks.join("\n");
        for expected in ["hf download stable-diffusion-v1-5/", "--repo-type dataset lambdalabs/", "bf16"] {
            assert!(remarks.contains(expected), "{remarks}");
        }
    }

    #[test]
    fn what_has_no_counterpart_is_refused() {
        for (line, expected) in [
            ("--max_train_steps 9 --dream_training", "--dream_training has no counterpart"),
            ("--num_train_epochs 3", "give --max_train_steps"),
            ("--max_train_steps nine", "`nine` is not a number"),
            ("--max_train_steps 9 --lr_scheduler polynomial", "polynomial"),
            ("--max_train_steps 9 --input_perturbation 0.1", "--input_perturbation has no counterpart"),
        ] {
            let problem = translate_line(line).unwrap_err();
            assert!(problem.contains(expected), "{line}: {problem}");
        }
    }
}
