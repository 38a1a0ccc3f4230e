//! A study of drawn pictures.

use std::path::{Path, PathBuf};

use image::{Rgb, RgbImage};
use tidemill_compare::database::{Database, StoredPrompt};
use tidemill_compare::study::{ComparisonKind, SourceConfig, StudyConfig, damage, encode, plan_comparisons};

/// The models' names, which must appear in no answer to a rater.
pub const MODELS: [&str; 3] = ["secret-alpha", "secret-beta", "secret-gamma"];

/// The settings of a study of `models` models.
pub fn config(models: usize) -> StudyConfig {
    let mut config: StudyConfig = serde_json::from_str(r#"{"prompts": "prompts.csv"}"#).unwrap();
    config.sources = MODELS[..models]
        .iter()
        .map(|name| SourceConfig {
            name: (*name).into(),
            folder: Some("x".into()),
            ..SourceConfig::default()
        })
        .collect();
    config
}

/// Makes a study with a picture of one colour per model and prompt.
pub fn make_study(folder: &Path, config: &StudyConfig, prompts: usize) -> PathBuf {
    let path = folder.join("study.sqlite");
    let database = Database::create(&path, config).unwrap().unwrap();
    let texts: Vec<StoredPrompt> = (0..prompts)
        .map(|i| StoredPrompt { text: format!("prompt {i} <b>"), category: Some(format!("c{}", i % 2)) })
        .collect();
    database.put_prompts(&texts).unwrap();
    let models = config.sources.len();
    let picture = |prompt: usize, model: usize| {
        RgbImage::from_pixel(32, 32, Rgb([prompt as u8, 60 * model as u8, 200]))
    };
    for prompt in 0..prompts {
        for model in 0..models {
            let content = encode(&picture(prompt, model)).unwrap();
            database.put_picture((prompt, model, 0), false, &content).unwrap();
        }
    }
    let comparisons = plan_comparisons(prompts, 1, models, config.attention_checks, config.seed);
    for comparison in &comparisons {
        if let ComparisonKind::Check(model) = comparison.kind {
            let content = encode(&damage(&picture(comparison.prompt, model), 1)).unwrap();
            database.put_picture((comparison.prompt, model, 0), true, &content).unwrap();
        }
    }
    database.put_comparisons(&comparisons).unwrap();
    path
}
