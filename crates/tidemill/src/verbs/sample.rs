//! `tidemill sample`: pictures of prompts as PNG files and one grid. Pictures of the toy world's held-out scenes are
//! scored by rule: does the picture show the colour and the shape that its prompt names?

use std::path::{Path, PathBuf};

use image::RgbImage;
use serde_json::{Value, json};
use tch::{Device, Kind};
use tidemill_models::{AutoencoderKl, ModelFolder, UNet2DConditionModel};
use tidemill_synth::{Prompt, RgbView, check, heldout_prompts};
use tidemill_train::{image_grid as grid, training_scheduler_config};

use crate::engine::device::select_devices;
use crate::engine::machine_resources::resolve_threads;
use crate::error::{Error, Result};
use crate::progress::Reporter;
use crate::run_file::Run;
use crate::sampling::trained_weights;
use crate::sampling::{Generator, TextEmbedder};
use crate::verbs::shared_arguments::{RunArgs, parse_local_path};
use crate::verbs::train::load_initial_unet;

/// Most pictures shown in the grid.
const GRID_PICTURES: usize = 36;

/// Arguments of `tidemill sample`.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Examples:\n  tidemill sample run.toml --prompt \"a small red circle in the upper left\"\n  \
    tidemill sample run.toml --set sample.scenes=64 --json"
)]
pub struct Args {
    /// Which run.
    #[command(flatten)]
    pub run: RunArgs,
    /// A prompt; may be given several times. The run file's prompts are drawn if there is none.
    #[arg(long = "prompt", value_name = "TEXT")]
    pub prompts: Vec<String>,
    /// Use the weights that training starts with, to compare.
    #[arg(long)]
    pub untrained: bool,
    /// Folder to write to; `samples` under the run's output if not given.
    #[arg(long, value_parser = parse_local_path)]
    pub to: Option<PathBuf>,
    /// Also write the initial noise, as `noise.safetensors`.
    #[arg(long)]
    pub save_noise: bool,
}

/// Draws, and says where the pictures are.
///
/// # Errors
/// If there is no checkpoint, no prompt, or the folder cannot be written.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    let mut run = args.run.open()?;
    if !args.prompts.is_empty() {
        run.file.sample.prompts = args.prompts.clone();
        run.file.sample.scenes = 0;
    }
    sample(&run, args, reporter)
}

/// As [`run`], for a run file that is open; `args.run` and `args.prompts` are not looked at.
///
/// # Errors
/// As [`run`].
pub fn sample(run: &Run, args: &Args, reporter: &Reporter) -> Result<Value> {
    let config = &run.file.sample;
    let scenes = scenes(config.scenes);
    let prompts: Vec<String> =
        config.prompts.iter().cloned().chain(scenes.iter().map(|s| s.text.clone())).collect();
    if prompts.is_empty() {
        return Err(run.refuse("sample.prompts", "there is nothing to draw; give prompts, or --prompt"));
    }
    let to = args.to.clone().unwrap_or_else(|| Path::new(&run.output()).join("samples"));
    std::fs::create_dir_all(&to).map_err(|e| unwritable(&to, e))?;
    let generator = load(run, args.untrained)?;
    let resolution = run.resolution();
    if args.save_noise {
        let path = to.join("noise.safetensors");
        let noise = generator.noise(prompts.len(), resolution, run.file.seed).to_device(Device::Cpu);
        tch::Tensor::write_safetensors(&[("noise", noise)], &path)
            .map_err(|e| unwritable(&path, std::io::Error::other(e)))?;
    }
    let progress = reporter.start_progress("sample", "picture steps", (prompts.len() * config.steps) as u64);
    let pictures = generator.draw(&prompts, config, resolution, run.file.seed, |n| progress.add(n as u64))?;
    progress.finish();

    for (i, picture) in pictures.iter().enumerate() {
        save(&to.join(format!("{i:04}.png")), picture)?;
    }
    let path = to.join("grid.png");
    let shown = spread(prompts.len(), GRID_PICTURES);
    let columns = (shown.len() as f64).sqrt().ceil() as u32;
    let (shown_pictures, shown_prompts): (Vec<_>, Vec<_>) =
        shown.into_iter().map(|i| (pictures[i].clone(), prompts[i].clone())).unzip();
    save(&path, &grid::make_grid(&shown_pictures, &shown_prompts, columns))?;
    let score = score(&scenes, &pictures[config.prompts.len()..])?;
    reporter.report(format!(
        "{} pictures in {}, together in {}",
        pictures.len(),
        to.display(),
        path.display()
    ));
    if let Some(score) = score {
        reporter
            .report(format!("{:.1}% of the held-out scenes show the right colour and shape", 100.0 * score));
    }
    Ok(json!({
        "verb": "sample", "folder": to, "grid": path, "pictures": pictures.len(), "prompts": prompts,
        "untrained": args.untrained, "score": score,
    }))
}

/// Loads everything that draws: the last checkpoint's U-Net, or the one that training starts with.
fn load(run: &Run, untrained: bool) -> Result<Generator> {
    let models = run.models()?;
    let device = select_devices(run)?[0];
    tch::set_num_threads(resolve_threads(run.file.engine.encode.threads) as i32);
    let unet = load_initial_unet(run, &models, device)?;
    if !untrained {
        trained_weights::check(run, &models)?;
        trained_weights::load(run, unet.params(), run.file.sample.ema)?;
    }
    generator(run, &models, unet, device)
}

fn generator(
    run: &Run,
    models: &ModelFolder,
    unet: UNet2DConditionModel,
    device: Device,
) -> Result<Generator> {
    Ok(Generator {
        text: TextEmbedder::load(models, device)?,
        vae: AutoencoderKl::load(&models.vae(), device, Kind::Float)?,
        unet,
        scheduler: training_scheduler_config(&run.file.train, &models.scheduler()?),
    })
}

/// `count` prompts spread evenly over all held-out ones.
fn scenes(count: usize) -> Vec<Prompt> {
    let all = heldout_prompts();
    spread(all.len(), count).into_iter().map(|i| all[i].clone()).collect()
}

/// At most `count` indices below `total`, spread evenly.
fn spread(total: usize, count: usize) -> Vec<usize> {
    let count = count.min(total);
    (0..count).map(|i| i * total / count).collect()
}

/// The share of pictures that show the colour and the shape of their scene; none without scenes.
fn score(scenes: &[Prompt], pictures: &[RgbImage]) -> Result<Option<f64>> {
    let mut right = 0;
    for (scene, picture) in scenes.iter().zip(pictures) {
        let view = RgbView::new(picture.width() as usize, picture.height() as usize, picture.as_raw())?;
        let found = check(&view);
        right += usize::from(found.is_some_and(|f| f.colour == scene.colour && f.shape == scene.shape));
    }
    Ok((!scenes.is_empty()).then(|| right as f64 / scenes.len() as f64))
}

fn save(path: &Path, picture: &RgbImage) -> Result<()> {
    let png = grid::encode_png(picture).map_err(|e| unwritable(path, std::io::Error::other(e)))?;
    std::fs::write(path, png).map_err(|e| unwritable(path, e))
}

fn unwritable(path: &Path, source: std::io::Error) -> Error {
    Error::Write { path: path.display().to_string(), source }
}
