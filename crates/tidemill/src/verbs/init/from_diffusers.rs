//! The run file for a command line of diffusers' `train_text_to_image.py` or `train_text_to_image_sdxl.py`. Where
//! the defaults differ, it has the script's.

use std::path::Path;

use super::diffusers_options::DiffusersOptions;
use super::run_file_text::{RunFileText, float, toml_text};

/// Translates the options.
///
/// # Errors
/// If a value has no counterpart, or the number of steps is not given.
pub fn translate(mut options: DiffusersOptions) -> Result<RunFileText, String> {
    let mut file = RunFileText::default();
    let (script, output, side) = match options.is_sdxl {
        true => ("train_text_to_image_sdxl.py", "sdxl-model-finetuned", 1024),
        false => ("train_text_to_image.py", "sd-model-finetuned", 512),
    };
    let resolution: u32 = options.take_number("resolution")?.unwrap_or(side);
    file.comment(&format!("From a command line of diffusers' {script}."));
    file.set("seed", options.take_number("seed")?.unwrap_or(0u64));
    file.set_text("output", &options.take_text("output_dir").unwrap_or(output.into()));
    add_source(&mut file, &mut options);
    add_prepare(&mut file, &mut options, resolution)?;
    add_model(&mut file, &mut options);
    let global_batch = add_train(&mut file, &mut options)?;
    add_optimizer(&mut file, &mut options, global_batch)?;
    file.section("[train.phase]");
    file.set("resolution", resolution);
    file.set("steps", take_steps(&mut options)?);
    add_previews(&mut file, &mut options);
    file.section("checkpoint");
    file.set("every", options.take_number("checkpointing_steps")?.unwrap_or(500u64));
    // The script keeps all.
    file.set("keep", options.take_number("checkpoints_total_limit")?.unwrap_or(1_000_000u64));
    options.finish()?;
    Ok(file)
}

fn add_source(file: &mut RunFileText, options: &mut DiffusersOptions) {
    file.section("source");
    let name = options.take_text("dataset_name").unwrap_or("pairs".into());
    if let Some(folder) = options.take_text("train_data_dir") {
        file.set_text("format", "images");
        file.set_text("uri", &folder);
    } else {
        let folder = format!("data/{}", last_part(&name));
        file.set_text("uri", &format!("{folder}/**/*.parquet"));
        if !Path::new(&folder).exists() {
            file.remark(format!(
                "get the pairs: hf download --repo-type dataset {name} --local-dir {folder}"
            ));
        }
    }
    let image = toml_text(&options.take_text("image_column").unwrap_or("image".into()));
    let caption = toml_text(&options.take_text("caption_column").unwrap_or("text".into()));
    file.set("columns", format_args!("{{ image = {image}, caption = {caption} }}"));
    if options.take_flag("max_train_samples") {
        file.remark("--max_train_samples: all pairs are used; name fewer files in source.uri");
    }
}

/// `name` of `user/name`.
fn last_part(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

fn add_prepare(
    file: &mut RunFileText,
    options: &mut DiffusersOptions,
    resolution: u32,
) -> Result<(), String> {
    file.section("prepare");
    file.set("resolutions", format_args!("[{resolution}]"));
    // The script crops at random, and anew in each epoch, unless it is told otherwise.
    let (is_centered, is_flipped) = (options.take_flag("center_crop"), options.take_flag("random_flip"));
    file.set_text("crop", if is_centered { "center" } else { "random" });
    file.set("flip", is_flipped);
    if !is_centered || is_flipped {
        file.remark("crops and flips are drawn once for each pair; `--mode online` draws them in each epoch");
    }
    let resample = options.take_text("image_interpolation_mode").unwrap_or("lanczos".into());
    if !["bilinear", "bicubic", "lanczos"].contains(&resample.as_str()) {
        return Err(format!(
            "--image_interpolation_mode {resample}: there are bilinear, bicubic and lanczos"
        ));
    }
    file.set_text("resample", &resample);
    Ok(())
}

fn add_model(file: &mut RunFileText, options: &mut DiffusersOptions) {
    file.section("models");
    let model =
        options.take_text("pretrained_model_name_or_path").unwrap_or("models/stable-diffusion".into());
    let is_here = Path::new(&model).is_dir();
    let folder = if is_here { model.clone() } else { format!("models/{}", last_part(&model)) };
    file.set_text("path", &folder);
    if !is_here {
        file.remark(format!("get the model: hf download {model} --local-dir {folder}"));
    }
    if let Some(vae) = options.take_text("pretrained_vae_model_name_or_path") {
        file.remark(format!(
            "put the VAE of {vae} into {folder}/vae: hf download {vae} --local-dir {folder}/vae"
        ));
    }
}

/// Returns the global batch.
fn add_train(file: &mut RunFileText, options: &mut DiffusersOptions) -> Result<u64, String> {
    file.section("train");
    let batch = options.take_number("train_batch_size")?.unwrap_or(16u64);
    let accumulated = options.take_number("gradient_accumulation_steps")?.unwrap_or(1u64);
    let processes = options.take_number("num_processes")?.unwrap_or(1u64);
    let global_batch = batch * accumulated * processes;
    file.set("global_batch", global_batch);
    file.set("micro_batch", batch);
    // Only the script for SDXL can replace captions by the empty one.
    file.set("caption_dropout", float(options.take_number("proportion_empty_prompts")?.unwrap_or(0.0)));
    match options.take_text("mixed_precision").as_deref() {
        Some("bf16") => file.set_text("precision", "bf16"),
        Some("fp16") => {
            file.set_text("precision", "bf16");
            file.remark("fp16 becomes bf16, which needs no loss scaling");
        }
        Some("no") | None => file.set_text("precision", "f32"),
        Some(other) => return Err(format!("--mixed_precision {other}: there are no, fp16 and bf16")),
    }
    file.set("gradient_checkpointing", options.take_flag("gradient_checkpointing"));
    if let Some(prediction) = options.take_text("prediction_type") {
        file.set_text("prediction", &prediction);
    }
    if let Some(gamma) = options.take_number("snr_gamma")? {
        file.set("min_snr_gamma", float(gamma));
    }
    file.set("noise_offset", float(options.take_number("noise_offset")?.unwrap_or(0.0)));
    match options.take_text("timestep_bias_strategy").as_deref() {
        None | Some("none") => {}
        Some(other) => {
            return Err(format!(
                "--timestep_bias_strategy {other} has no counterpart; look at train.timesteps"
            ));
        }
    }
    if options.take_flag("use_ema") {
        file.set("ema", "{ decay = 0.9999 }");
    }
    Ok(global_batch)
}

fn add_optimizer(
    file: &mut RunFileText,
    options: &mut DiffusersOptions,
    global_batch: u64,
) -> Result<(), String> {
    let factor = if options.take_flag("scale_lr") { global_batch as f64 } else { 1.0 };
    let mut number = |name: &str, default: f64| -> Result<toml::Value, String> {
        Ok(float(options.take_number(name)?.unwrap_or(default)))
    };
    let betas = [number("adam_beta1", 0.9)?, number("adam_beta2", 0.999)?];
    file.set("betas", format_args!("[{}, {}]", betas[0], betas[1]));
    file.set("weight_decay", number("adam_weight_decay", 1e-2)?);
    file.set("eps", number("adam_epsilon", 1e-8)?);
    file.set("max_grad_norm", number("max_grad_norm", 1.0)?);
    file.set("learning_rate", float(factor * options.take_number("learning_rate")?.unwrap_or(1e-4)));
    let (schedule, has_warmup) = match options.take_text("lr_scheduler").as_deref() {
        Some("constant") | None => ("constant", false),
        Some("constant_with_warmup") => ("constant", true),
        Some("linear") => ("linear", true),
        Some("cosine") => ("cosine", true),
        Some(other) => return Err(format!("--lr_scheduler {other}: there are constant, linear and cosine")),
    };
    file.set_text("schedule", schedule);
    let warmup = options.take_number("lr_warmup_steps")?.unwrap_or(500u64);
    file.set("warmup_steps", if has_warmup { warmup } else { 0 });
    if options.take_flag("use_8bit_adam") {
        file.set_text("moment_precision", "bf16");
        file.remark("8-bit Adam becomes AdamW with moments in bf16");
    }
    Ok(())
}

fn take_steps(options: &mut DiffusersOptions) -> Result<u64, String> {
    // Beside a number of steps the script ignores epochs, too.
    options.take_flag("num_train_epochs");
    let message = "how many steps epochs are depends on the pairs: give --max_train_steps in place of \
                   --num_train_epochs (100 epochs without either)";
    options.take_number("max_train_steps")?.ok_or_else(|| message.to_owned())
}

fn add_previews(file: &mut RunFileText, options: &mut DiffusersOptions) {
    let mut prompts = options.take_list("validation_prompts");
    // One prompt, of several words.
    let prompt = options.take_list("validation_prompt").join(" ");
    prompts.extend(Some(prompt).filter(|prompt| !prompt.is_empty()));
    if !prompts.is_empty() {
        let prompts: Vec<String> = prompts.iter().map(|prompt| toml_text(prompt)).collect();
        file.section("train.preview");
        file.set("prompts", format_args!("[{}]", prompts.join(", ")));
        file.remark("previews are drawn every 1000 steps (train.preview.every), not by epochs");
    }
}

#[cfg(test)]
mod tests {
    use tidemill_models::GradientCheckpointing;

    use super::*;
    use crate::run_file::Run;

    fn translate_line(line: &str) -> Result<RunFileText, String> {
        let arguments: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        translate(DiffusersOptions::parse(&arguments))
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
        std::fs::write(&path, &translated.text).unwrap();
        let file = Run::open(&path, &[]).unwrap_or_else(|error| panic!("{error}\n{}", translated.text)).file;
        let train = &file.train;
        assert_eq!((train.global_batch, train.micro_batch, train.phase[0].steps), (16, 1, 15_000));
        assert_eq!((train.learning_rate, train.warmup_steps, train.max_grad_norm), (1e-5, 0, 1.0));
        assert!(
            train.ema.is_some()
                && train.gradient_checkpointing == GradientCheckpointing::Full
                && file.prepare.flip
        );
        assert_eq!(train.preview.as_ref().unwrap().prompts, ["a", "b"]);
        assert_eq!(file.source.columns.caption.as_slice(), ["text"]);
        let remarks = translated.remarks.join("\n");
        for expected in ["hf download stable-diffusion-v1-5/", "--repo-type dataset lambdalabs/", "bf16"] {
            assert!(remarks.contains(expected), "{remarks}");
        }
    }

    #[test]
    fn published_command_for_sdxl_becomes_a_run_file() {
        // The example of diffusers' README_sdxl.md.
        let translated = translate_line(
            "accelerate launch train_text_to_image_sdxl.py \
             --pretrained_model_name_or_path=stabilityai/stable-diffusion-xl-base-1.0 \
             --pretrained_vae_model_name_or_path=madebyollin/sdxl-vae-fp16-fix \
             --dataset_name=lambdalabs/naruto-blip-captions --enable_xformers_memory_efficient_attention --center_crop \
             --random_flip --proportion_empty_prompts=0.2 --train_batch_size=1 --gradient_accumulation_steps=4 \
             --gradient_checkpointing --max_train_steps=10000 --use_8bit_adam --learning_rate=1e-06 \
             --lr_scheduler=constant --lr_warmup_steps=0 --mixed_precision=fp16 --report_to=wandb \
             --validation_prompt a cute creature --validation_epochs 5 --checkpointing_steps=5000 --push_to_hub",
        )
        .unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.toml");
        std::fs::write(&path, &translated.text).unwrap();
        let file = Run::open(&path, &[]).unwrap_or_else(|error| panic!("{error}\n{}", translated.text)).file;
        assert_eq!(file.prepare.resolutions, [1024]);
        assert_eq!(file.train.caption_dropout.shares(), [0.2]);
        assert_eq!(file.train.preview.as_ref().unwrap().prompts, ["a cute creature"]);
        let remarks = translated.remarks.join("\n");
        let vae = "--local-dir models/stable-diffusion-xl-base-1.0/vae";
        assert!(remarks.contains(vae) && remarks.contains("moments in bf16"), "{remarks}");
    }

    #[test]
    fn what_has_no_counterpart_is_refused() {
        for (line, expected) in [
            ("--max_train_steps 9 --dream_training", "--dream_training has no counterpart"),
            ("--num_train_epochs 3", "give --max_train_steps"),
            ("--max_train_steps nine", "`nine` is not a number"),
            ("--max_train_steps 9 --lr_scheduler polynomial", "polynomial"),
            ("--max_train_steps 9 --timestep_bias_strategy later", "later has no counterpart"),
            ("--max_train_steps 9 --revision fp16", "--revision has no counterpart"),
            ("--max_train_steps 9 --input_perturbation 0.1", "--input_perturbation has no counterpart"),
        ] {
            let problem = translate_line(line).unwrap_err();
            assert!(problem.contains(expected), "{line}: {problem}");
        }
    }
}
