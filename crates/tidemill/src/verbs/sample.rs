//! `tidemill sample`: draws images from prompts as PNG files and one grid. Images of the held-out
//! synthetic scenes are scored by rule: does the image show the colour and the shape that its
//! prompt names?

use std::path::{Path, PathBuf};
use std::time::Instant;

use image::RgbImage;
use serde_json::{Value, json};
use tch::{Device, Kind};
use tidemill_models::AutoencoderKl;
use tidemill_synth::{Prompt, RgbView, detect_object, heldout_prompts};
use tidemill_train::image_grid;

use crate::engine::device::select_devices;
use crate::engine::machine_resources::resolve_threads;
use crate::error::{Error, Result};
use crate::progress::Reporter;
use crate::run_file::Run;
use crate::sampling::trained_weights::{self, WeightSelection};
use crate::sampling::{ImageGenerator, SampleConfig, TextEmbedder};
use crate::verbs::shared_arguments::{RunArgs, parse_local_path};
use crate::verbs::train::load_initial_denoiser;

/// The largest number of images in the grid.
const MAX_GRID_IMAGES: usize = 36;

/// Arguments of `tidemill sample`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Examples:\n  tidemill sample run.toml --prompt \"a small red circle in the upper left\"\n  \
    tidemill sample run.toml --set sample.scenes=64 --json"
)]
pub struct Args {
    /// The run file and its overrides.
    #[command(flatten)]
    pub run: RunArgs,
    /// A prompt; may be given several times. Without it, the prompts of the run file are drawn.
    #[arg(long = "prompt", value_name = "TEXT")]
    pub prompts: Vec<String>,
    /// Use the weights that training starts with, for comparison.
    #[arg(long)]
    pub untrained: bool,
    /// Folder to write to. Default: `samples` in the run's output.
    #[arg(long, value_parser = parse_local_path)]
    pub to: Option<PathBuf>,
    /// Also write the initial noise, as `noise.safetensors`.
    #[arg(long)]
    pub save_noise: bool,
}

/// Draws the images and returns where they are.
///
/// # Errors
/// If there is no checkpoint or no prompt, or the folder cannot be written.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    let mut run = args.run.open()?;
    if !args.prompts.is_empty() {
        run.file.sample.prompts = args.prompts.clone();
        run.file.sample.scenes = 0;
    }
    sample(&run, args, reporter)
}

/// Draws the images of an opened run file. Ignores `args.run` and `args.prompts`.
///
/// # Errors
/// As [`run`].
pub fn sample(run: &Run, args: &Args, reporter: &Reporter) -> Result<Value> {
    let config = &run.file.sample;
    let scenes = choose_scenes(config.scenes);
    let prompts: Vec<String> =
        config.prompts.iter().cloned().chain(scenes.iter().map(|scene| scene.text.clone())).collect();
    if prompts.is_empty() {
        return Err(run.refuse("sample.prompts", "there is nothing to draw; give prompts, or --prompt"));
    }
    let to = args.to.clone().unwrap_or_else(|| Path::new(&run.output()).join("samples"));
    std::fs::create_dir_all(&to).map_err(|e| write_error(&to, e))?;
    let generator = load_generator(run, args.untrained)?;
    let drawing = config.to_drawing(run.resolution(), run.file.seed);
    let numbers: Vec<u64> = (0..prompts.len() as u64).collect();
    if args.save_noise {
        let path = to.join("noise.safetensors");
        let noise = generator.draw_noise(&numbers, &drawing).to_device(Device::Cpu);
        tch::Tensor::write_safetensors(&[("noise", noise)], &path)
            .map_err(|e| write_error(&path, std::io::Error::other(e)))?;
    }
    let progress = reporter.start_progress("sample", "image steps", (prompts.len() * config.steps) as u64);
    let started = Instant::now();
    let images = generator.draw(&prompts, &numbers, &drawing, |n| progress.add(n as u64))?;
    let images_per_second = images.len() as f64 / started.elapsed().as_secs_f64();
    progress.finish();

    for (i, image) in images.iter().enumerate() {
        save_png(&to.join(format!("{i:04}.png")), image)?;
    }
    let grid = to.join("grid.png");
    save_grid(&grid, &images, &prompts)?;
    let score = score_scenes(&scenes, &images[config.prompts.len()..])?;
    reporter.report(format!("{} images in {}, together in {}", images.len(), to.display(), grid.display()));
    if let Some(score) = score {
        reporter
            .report(format!("{:.1}% of the held-out scenes show the right colour and shape", 100.0 * score));
    }
    Ok(json!({
        "verb": "sample", "folder": to, "grid": grid, "pictures": images.len(), "prompts": prompts,
        "untrained": args.untrained, "score": score, "images_per_second": images_per_second,
    }))
}

/// Loads the models that draw, with the trained U-Net or with the one that training starts with.
///
/// # Errors
/// If a network cannot be opened, or there is no checkpoint.
pub fn load_generator(run: &Run, untrained: bool) -> Result<ImageGenerator> {
    let models = run.models()?;
    let device = select_devices(run)?[0];
    tch::set_num_threads(resolve_threads(run.file.engine.encode.threads) as i32);
    let denoiser = load_initial_denoiser(run, &models, device)?;
    if !untrained {
        trained_weights::check_identity(run, &models)?;
        let SampleConfig { step, ema, .. } = &run.file.sample;
        trained_weights::load_weights(
            run,
            denoiser.params(),
            WeightSelection { step: *step, averaged: *ema },
        )?;
    }
    Ok(ImageGenerator {
        text: TextEmbedder::load(run, &models, device)?,
        vae: AutoencoderKl::load(&models.vae(), device, Kind::Float)?,
        denoiser,
        scheduler: run.training_schedule(&models)?,
    })
}

/// Chooses `count` prompts, spread evenly over all held-out ones.
fn choose_scenes(count: usize) -> Vec<Prompt> {
    let all = heldout_prompts();
    spread_evenly(all.len(), count).into_iter().map(|i| all[i].clone()).collect()
}

/// At most `count` indices below `total`, spread evenly.
fn spread_evenly(total: usize, count: usize) -> Vec<usize> {
    let count = count.min(total);
    (0..count).map(|i| i * total / count).collect()
}

/// The share of images that show the colour and the shape of their scene. `None` without scenes.
fn score_scenes(scenes: &[Prompt], images: &[RgbImage]) -> Result<Option<f64>> {
    let mut right = 0;
    for (scene, image) in scenes.iter().zip(images) {
        let view = RgbView::new(image.width() as usize, image.height() as usize, image.as_raw())?;
        let found = detect_object(&view);
        right += usize::from(found.is_some_and(|f| f.colour == scene.colour && f.shape == scene.shape));
    }
    Ok((!scenes.is_empty()).then(|| right as f64 / scenes.len() as f64))
}

/// Writes a grid of some of the images with their prompts.
fn save_grid(path: &Path, images: &[RgbImage], prompts: &[String]) -> Result<()> {
    let chosen = spread_evenly(prompts.len(), MAX_GRID_IMAGES);
    let columns = (chosen.len() as f64).sqrt().ceil() as u32;
    let (images, prompts): (Vec<_>, Vec<_>) =
        chosen.into_iter().map(|i| (images[i].clone(), prompts[i].clone())).unzip();
    save_png(path, &image_grid::make_grid(&images, &prompts, columns))
}

fn save_png(path: &Path, image: &RgbImage) -> Result<()> {
    let png = image_grid::encode_png(image).map_err(|e| write_error(path, std::io::Error::other(e)))?;
    std::fs::write(path, png).map_err(|e| write_error(path, e))
}

fn write_error(path: &Path, source: std::io::Error) -> Error {
    Error::Write { path: path.display().to_string(), source }
}
