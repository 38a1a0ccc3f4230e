//! Where a model's pictures come from.

use std::path::{Path, PathBuf};

use image::RgbImage;
use tidemill_compare::study::SourceConfig;
use tidemill_data::decode::decode;
use tidemill_models::{DenoiserConfig, ModelFolder};
use tidemill_train::Checkpoints;

use crate::error::{Error, Result};
use crate::run_file::Run;
use crate::sampling::Drawing;
use crate::verbs::image_files::{list_images, read_file};
use crate::verbs::sample::load_generator;

/// Pixels per latent of Stable Diffusion's VAE.
const PIXELS_PER_LATENT: u32 = 8;

/// Pictures that are read at once.
const FILES_AT_ONCE: usize = 16;

/// A model's pictures. No network is loaded until they are drawn.
pub enum PictureSource {
    /// The model of a run draws.
    Drawn {
        /// The run.
        run: Box<Run>,
        /// Whether the weights are those of the model folder, not of a checkpoint.
        untrained: bool,
        /// How pictures are drawn.
        drawing: Drawing,
    },
    /// The pictures are there, in the order of the prompts.
    Files(Vec<PathBuf>),
}

impl PictureSource {
    /// Opens a source of `pictures` pictures. `seed` is that of the noise, the same for all models.
    ///
    /// # Errors
    /// If there is no model, or a folder has another number of pictures.
    pub fn open(config: &SourceConfig, pictures: usize, seed: u64) -> Result<Self> {
        let drawn = |run: Run, untrained| {
            let drawing = run.file.sample.to_drawing(run.resolution(), seed);
            Self::Drawn { run: Box::new(run), untrained, drawing }
        };
        match (&config.run, &config.diffusers, &config.folder) {
            (Some(path), ..) => {
                let mut run = Run::open(path, &config.set)?;
                run.file.sample.step = config.step.or(run.file.sample.step);
                Ok(drawn(run, false))
            }
            (_, Some(folder), _) => Ok(drawn(run_of_diffusers(folder, &config.set)?, true)),
            (.., Some(folder)) => Ok(Self::Files(list_pictures(folder, pictures)?)),
            _ => Err(Error::Arguments(format!("source {} has no pictures", config.name))),
        }
    }

    /// The shorter side of the smallest picture.
    ///
    /// # Errors
    /// If a picture cannot be read.
    pub fn side(&self) -> Result<u32> {
        match self {
            Self::Drawn { drawing, .. } => Ok(drawing.resolution),
            Self::Files(files) => {
                let sides = files.iter().map(|file| {
                    let picture = read_picture_file(file)?;
                    Ok(picture.width().min(picture.height()))
                });
                Ok(sides.collect::<Result<Vec<_>>>()?.into_iter().min().unwrap_or(u32::MAX))
            }
        }
    }

    /// Draws or reads pictures by their numbers, some at a time, and passes each time's numbers and
    /// pictures to `store`.
    ///
    /// # Errors
    /// If a picture cannot be drawn or read, or the error of `store`.
    pub fn draw(
        &self,
        prompt_of: impl Fn(usize) -> String,
        numbers: &[usize],
        mut store: impl FnMut(&[usize], &[RgbImage]) -> Result<()>,
    ) -> Result<()> {
        match self {
            Self::Drawn { run, untrained, drawing } => {
                let generator = load_generator(run, *untrained)?;
                for batch in numbers.chunks(drawing.batch_size) {
                    let prompts: Vec<String> = batch.iter().map(|number| prompt_of(*number)).collect();
                    let noise: Vec<u64> = batch.iter().map(|number| *number as u64).collect();
                    store(batch, &generator.draw(&prompts, &noise, drawing, |_| ())?)?;
                }
            }
            Self::Files(files) => {
                for batch in numbers.chunks(FILES_AT_ONCE) {
                    let pictures = batch.iter().map(|number| read_picture_file(&files[*number]));
                    store(batch, &pictures.collect::<Result<Vec<_>>>()?)?;
                }
            }
        }
        Ok(())
    }
}

/// Notes the newest checkpoint of a run without step, so that all pictures are of one checkpoint.
///
/// # Errors
/// If the run cannot be opened, or has no checkpoint.
pub fn choose_step(config: &mut SourceConfig) -> Result<()> {
    let (Some(path), None) = (&config.run, config.step) else { return Ok(()) };
    let run = Run::open(path, &config.set)?;
    let steps = Checkpoints::open(&run.file.checkpoint, Path::new(&run.output()))?.list_steps()?;
    config.step = run.file.sample.step.or(steps.last().copied());
    Ok(())
}

/// A run whose model is that of a diffusers folder, and whose resolution is that of its U-Net unless
/// an override says otherwise.
fn run_of_diffusers(folder: &Path, overrides: &[String]) -> Result<Run> {
    let network = DenoiserConfig::read(&ModelFolder::open(folder)?)?;
    let side = network.sample_size() as u32 * PIXELS_PER_LATENT;
    let path = format!("models.path={:?}", folder.display().to_string());
    let mut settings = vec![path, format!("prepare.resolutions=[{side}]")];
    settings.extend(overrides.iter().cloned());
    Run::parse(&folder.display().to_string(), "", &settings)
}

fn list_pictures(folder: &Path, expected: usize) -> Result<Vec<PathBuf>> {
    let files = list_images(folder)?;
    if files.len() == expected {
        return Ok(files);
    }
    Err(Error::Missing {
        what: folder.display().to_string(),
        problem: format!("it has {} pictures, and there must be {expected}", files.len()),
        hint: "give `images` pictures for each prompt; sorted by their names they follow the prompts".into(),
    })
}

/// A picture's file as pixels.
fn read_picture_file(path: &Path) -> Result<RgbImage> {
    let refuse =
        |problem: String| tidemill_compare::Error::Picture { name: path.display().to_string(), problem };
    let decoded = decode(&read_file(path)?).map_err(|e| refuse(e.to_string()))?;
    let picture = RgbImage::from_raw(decoded.width, decoded.height, decoded.pixels);
    Ok(picture.ok_or_else(|| refuse("it has no pixels".into()))?)
}
