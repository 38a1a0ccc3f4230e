//! `tidemill compare new`: the pictures of a study are drawn, or read, and stored once.

use std::path::PathBuf;

use image::RgbImage;
use serde_json::{Value, json};
use tidemill_compare::database::{Database, StoredPrompt};
use tidemill_compare::study::{
    Comparison, ComparisonKind, SourceConfig, StudyConfig, damage, encode, fit_to_square, plan_comparisons,
};

use super::sources::{PictureSource, choose_step};
use super::study_file::{database_path, parse_source, read_study};
use crate::error::{Error, Result};
use crate::evaluation::read_prompt_file;
use crate::progress::Reporter;

/// Arguments of `tidemill compare new`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The study's file (TOML); with --prompts and --source, the name of the study.
    pub study: PathBuf,
    /// The prompts: text, CSV with categories as DrawBench has, TSV or Parquet.
    #[arg(long, value_name = "FILE", requires = "sources")]
    pub prompts: Option<String>,
    /// A model: a run file (with @STEP for a checkpoint), a diffusers folder, or a folder of
    /// pictures; give two or more.
    #[arg(long = "source", value_name = "NAME=PATH", value_parser = parse_source, requires = "prompts")]
    pub sources: Vec<SourceConfig>,
}

/// Draws the pictures.
///
/// # Errors
/// If the study is refused, or a picture cannot be drawn or stored.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    let mut config = read_config(args)?;
    config.validate()?;
    config.sources.iter_mut().try_for_each(choose_step)?;
    let prompts = read_prompts(&config, reporter)?;
    let path = database_path(&args.study);
    let database = Database::create(&path, &config)?.ok_or_else(|| {
        let problem = "it has other settings; remove it, or give the study another name".to_owned();
        tidemill_compare::Error::Config { key: path.display().to_string(), problem }
    })?;
    if !database.put_prompts(&prompts)? {
        let problem = "the study has other prompts; give this one another name".to_owned();
        let key = format!("prompts {}", config.prompts);
        return Err(tidemill_compare::Error::Config { key, problem }.into());
    }
    if !database.is_complete()? {
        make_study(&database, &prompts, reporter)?;
    }
    let contents = database.read_contents()?;
    let checks = contents.comparisons.iter().filter(|comparison| comparison.is_check).count();
    let comparisons = contents.comparisons.len() - checks;
    let judgements = comparisons * config.judgements;
    reporter.report(format!(
        "{}: {} prompts, {comparisons} comparisons, {judgements} wanted judgements of {} questions each",
        path.display(),
        contents.prompts.len(),
        config.questions.len()
    ));
    reporter.report(format!("next: tidemill compare serve {}", path.display()));
    Ok(json!({
        "verb": "compare", "study": path, "prompts": contents.prompts.len(), "comparisons": comparisons,
        "checks": checks, "models": config.model_names(), "judgements_wanted": judgements,
    }))
}

fn read_config(args: &Args) -> Result<StudyConfig> {
    let Some(prompts) = &args.prompts else { return read_study(&args.study) };
    let flags = json!({ "prompts": prompts, "source": args.sources });
    serde_json::from_value(flags).map_err(|e| Error::Arguments(e.to_string()))
}

fn read_prompts(config: &StudyConfig, reporter: &Reporter) -> Result<Vec<StoredPrompt>> {
    let refuse = |problem: String| {
        let problem = problem.replace("eval.prompt_column", "prompt_column");
        tidemill_compare::Error::Config { key: format!("prompts {}", config.prompts), problem }
    };
    let (prompt_column, category_column) =
        (config.prompt_column.as_deref(), config.category_column.as_deref());
    let list = read_prompt_file(&config.prompts, prompt_column, category_column).map_err(refuse)?;
    if let Some(omissions) = list.omissions() {
        reporter.report(format!("{}: {omissions}", config.prompts));
    }
    let prompts = list.prompts.into_iter().take(config.limit.unwrap_or(usize::MAX));
    let prompts: Vec<StoredPrompt> =
        prompts.map(|prompt| StoredPrompt { text: prompt.text, category: prompt.category }).collect();
    if prompts.is_empty() {
        return Err(refuse("there is no prompt in it".into()).into());
    }
    Ok(prompts)
}

fn make_study(database: &Database, prompts: &[StoredPrompt], reporter: &Reporter) -> Result<()> {
    let config = &database.config;
    let mut sources = Vec::new();
    for source in &config.sources {
        sources.push(PictureSource::open(source, prompts.len() * config.images, config.seed)?);
    }
    let side = match config.size {
        Some(side) => side,
        None => sources
            .iter()
            .map(PictureSource::side)
            .collect::<Result<Vec<_>>>()?
            .into_iter()
            .min()
            .unwrap_or(512),
    };
    // One after the other: a GPU may have room for one model only.
    for (model, source) in sources.iter().enumerate() {
        draw_model(database, (model, source), prompts, side, reporter)?;
    }
    let comparisons = plan_comparisons(
        prompts.len(),
        config.images,
        config.sources.len(),
        config.attention_checks,
        config.seed,
    );
    for comparison in &comparisons {
        damage_for_check(database, comparison)?;
    }
    Ok(database.put_comparisons(&comparisons)?)
}

/// Draws the pictures of a model that are not there yet.
fn draw_model(
    database: &Database,
    (model, source): (usize, &PictureSource),
    prompts: &[StoredPrompt],
    side: u32,
    reporter: &Reporter,
) -> Result<()> {
    let images = database.config.images;
    let mut missing = Vec::new();
    for index in 0..prompts.len() * images {
        if !database.has_picture(index / images, model, index % images, false)? {
            missing.push(index);
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let name = &database.config.sources[model].name;
    let progress = reporter.start_progress(name, "pictures", missing.len() as u64);
    let store = |numbers: &[usize], pictures: &[RgbImage]| {
        let encoded: Vec<Vec<u8>> = pictures
            .iter()
            .map(|picture| encode(&fit_to_square(picture, side)))
            .collect::<tidemill_compare::Result<_>>()?;
        database.transaction(|database| {
            for (index, content) in numbers.iter().zip(&encoded) {
                database.put_picture((index / images, model, index % images), false, content)?;
            }
            Ok(())
        })?;
        progress.add(numbers.len() as u64);
        Ok(())
    };
    source.draw(|index| prompts[index / images].text.clone(), &missing, store)?;
    progress.finish();
    Ok(())
}

/// Stores the damaged picture of an attention check, unless it is there.
fn damage_for_check(database: &Database, comparison: &Comparison) -> Result<()> {
    let Comparison { prompt, image, kind: ComparisonKind::Check(model) } = *comparison else { return Ok(()) };
    let picture = read_webp(&database.read_picture_of(prompt, model, image)?)?;
    let seed = database.config.seed ^ ((prompt as u64) << 20 | image as u64);
    Ok(database.put_picture((prompt, model, image), true, &encode(&damage(&picture, seed))?)?)
}

fn read_webp(content: &[u8]) -> Result<RgbImage> {
    let picture = image::load_from_memory_with_format(content, image::ImageFormat::WebP);
    let failed = |e: image::ImageError| Error::Unit(format!("a picture of the study: {e}"));
    Ok(picture.map_err(failed)?.into_rgb8())
}
