//! Judges the images of a folder, wherever they come from.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tch::{Cuda, Device};
use tidemill_data::decode::{Rgb8, decode};

use super::arguments::FolderArgs;
use super::statistics::{read_references, save_statistics};
use crate::engine::machine_resources::peak_memory_mib;
use crate::error::{Error, Result};
use crate::evaluation::{
    EvalConfig, Judges, Metric, PictureResult, References, read_prompt_rows, summarise, to_parquet,
};
use crate::progress::Reporter;
use crate::verbs::image_files::{list_images, read_file, write_file};

/// Images that are decoded and judged at once.
const CHUNK: usize = 128;

/// Judges a folder's images, or writes their statistics.
///
/// # Errors
/// If there are fewer than two images, the prompts do not fit them, or a network fails.
pub fn eval_folder(folder: &Path, args: &FolderArgs, reporter: &Reporter) -> Result<Value> {
    let config = to_config(args)?;
    let files = list_images(folder)?;
    let prompts = args.prompts.as_deref().map(|path| pair_prompts(path, files.len())).transpose()?;
    let device = parse_device(&args.device)?;
    let judges = Judges::open(&config.chosen_metrics(), &config.models, config.inception_resize, device)?;
    if let Some(to) = &args.save_statistics {
        return save_statistics(&files, &judges, config.reference.sample, to, reporter);
    }
    let references = match &args.reference {
        Some(reference) => read_references(reference, &judges, config.reference.sample, reporter)?,
        None => References::new(),
    };
    let results = judge_files(&files, prompts.as_deref(), &judges, reporter)?;
    let all: Vec<&PictureResult> = results.iter().collect();
    let (metrics, remarks) = summarise(&all, &all, &config, &references)?;
    if let Some(table) = &args.table {
        write_file(table, &to_parquet(&results, false)?)?;
    }
    let unreadable: Vec<Value> = results
        .iter()
        .filter_map(|result| Some(json!({ "file": result.path, "error": result.error.as_ref()? })))
        .collect();
    for (name, value) in &metrics {
        reporter.report(format!("{name} {value:.4}"));
    }
    remarks.iter().for_each(|remark| reporter.report(remark));
    if !unreadable.is_empty() {
        reporter.report(format!("{} of {} images could not be judged", unreadable.len(), files.len()));
    }
    let peak_memory = peak_memory_mib();
    reporter.report(format!("peak memory {peak_memory} MiB"));
    Ok(json!({
        "verb": "eval", "folder": folder, "images": files.len(), "failed": unreadable.len(),
        "unreadable": unreadable, "metrics": metrics, "remarks": remarks, "table": args.table,
        "peak_memory_mib": peak_memory,
    }))
}

/// The settings of `[eval]` that the arguments stand for.
fn to_config(args: &FolderArgs) -> Result<EvalConfig> {
    let models = args.parse_models().map_err(Error::Arguments)?;
    let mut config = EvalConfig { models, metrics: args.metrics.clone(), ..EvalConfig::default() };
    config
        .validate()
        .map_err(|(_, message)| Error::Arguments(message.replace("set eval.models.", "give --model ")))?;
    let is_saving = args.save_statistics.is_some();
    let is_possible = |needs_reference: bool| {
        if needs_reference { is_saving || args.reference.is_some() } else { args.prompts.is_some() }
    };
    let mut chosen = config.chosen_metrics();
    chosen.retain(|metric| {
        let needs_reference = metric.tower(&config.models).is_some();
        (needs_reference || metric.scorer(&config.models).is_some()) && is_possible(needs_reference)
    });
    if let Some(metric) = args.metrics.iter().find(|metric| !chosen.contains(metric)) {
        let need = match metric {
            Metric::SceneScore | Metric::ValidationLoss => "a run file",
            _ if metric.tower(&config.models).is_some() => "--reference",
            _ => "--prompts",
        };
        return Err(Error::Arguments(format!("--metric {} needs {need}", metric.name())));
    }
    if chosen.is_empty() {
        let message = "there is nothing to measure: give --model with --reference or --prompts";
        return Err(Error::Arguments(message.into()));
    }
    config.metrics = chosen;
    Ok(config)
}

/// The prompt of each image: the file has one for each, or each has as many images.
fn pair_prompts(path: &str, images: usize) -> Result<Vec<String>> {
    let refused = |problem: String| Error::Missing {
        what: format!("prompts in {path}"),
        problem,
        hint: "give one prompt per image, in the order of the images' names".into(),
    };
    let rows = read_prompt_rows(path, None, None).map_err(refused)?;
    if let Some(empty) = rows.iter().position(|(text, _)| text.trim().is_empty()) {
        return Err(refused(format!("prompt {} is empty", empty + 1)));
    }
    if rows.is_empty() || !images.is_multiple_of(rows.len()) {
        return Err(refused(format!("there are {} for {images} images", rows.len())));
    }
    let per_prompt = images / rows.len();
    Ok(rows.into_iter().flat_map(|(text, _)| std::iter::repeat_n(text, per_prompt)).collect())
}

fn judge_files(
    files: &[PathBuf],
    prompts: Option<&[String]>,
    judges: &Judges,
    reporter: &Reporter,
) -> Result<Vec<PictureResult>> {
    let progress = reporter.start_progress("judge", "images", files.len() as u64);
    let mut results = Vec::with_capacity(files.len());
    for (i, chunk) in files.chunks(CHUNK).enumerate() {
        let mut pictures: Vec<(usize, Rgb8)> = Vec::new();
        for (j, file) in chunk.iter().enumerate() {
            let index = i * CHUNK + j;
            let mut result = PictureResult {
                index: index as u64,
                prompt: prompts.map_or_else(String::new, |prompts| prompts[index].clone()),
                path: Some(file.display().to_string()),
                ..PictureResult::default()
            };
            match decode(&read_file(file)?) {
                Ok(picture) => pictures.push((index, picture)),
                Err(error) => result.error = Some(error.to_string()),
            }
            results.push(result);
        }
        let (indices, pixels): (Vec<usize>, Vec<Rgb8>) = pictures.into_iter().unzip();
        let texts: Option<Vec<String>> =
            prompts.map(|prompts| indices.iter().map(|index| prompts[*index].clone()).collect());
        for (index, judged) in indices.iter().zip(judges.judge(&pixels, texts.as_deref())?) {
            match judged {
                Ok(judged) => {
                    (results[*index].features, results[*index].scores) = (judged.features, judged.scores)
                }
                Err(problem) => results[*index].error = Some(problem),
            }
        }
        progress.add(chunk.len() as u64);
    }
    progress.finish();
    Ok(results)
}

/// The device of an option `--device`.
fn parse_device(name: &str) -> Result<Device> {
    let device = match name {
        "cpu" => Some(Device::Cpu),
        "cuda" => Some(Device::Cuda(0)),
        _ => name.strip_prefix("cuda:").and_then(|number| number.parse().ok()).map(Device::Cuda),
    };
    match device {
        Some(Device::Cuda(number)) if (number as i64) < Cuda::device_count() => device,
        Some(Device::Cpu) => device,
        _ => None,
    }
    .ok_or_else(|| {
        Error::Arguments(format!("--device {name}: there is no such device; `tidemill doctor` lists them"))
    })
}
