//! The metrics, and the networks that they need.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::models::EvalModels;

/// What is measured, as `eval.metrics` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Metric {
    /// Fréchet distance of InceptionV3's features.
    Fid,
    /// Kernel distance of InceptionV3's features.
    Kid,
    /// Discrepancy of CLIP's image features.
    Cmmd,
    /// Fréchet distance of DINOv2's features.
    FdDinov2,
    /// Precision, recall, density and coverage.
    PrecisionRecall,
    /// 100 times the cosine of image and prompt in CLIP's space.
    ClipScore,
    /// PickScore: the cosine times the model's scale.
    Pickscore,
    /// HPSv2: the cosine.
    Hpsv2,
    /// The share of synthetic scenes with the right colour and shape.
    SceneScore,
    /// The validation loss that training logged at this step.
    ValidationLoss,
}

/// A network whose features images are compared by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tower {
    /// FID's InceptionV3.
    Inception,
    /// CLIP's image tower.
    Clip,
    /// DINOv2.
    Dinov2,
}

impl Tower {
    /// All towers, the preferred ones for precision and recall first.
    pub const ALL: [Self; 3] = [Self::Inception, Self::Dinov2, Self::Clip];

    /// The key of the tower in `[eval.models]`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inception => "inception",
            Self::Clip => "clip",
            Self::Dinov2 => "dinov2",
        }
    }

    /// The folder of the tower.
    pub fn folder(self, models: &EvalModels) -> Option<&Path> {
        match self {
            Self::Inception => models.inception.as_deref(),
            Self::Clip => models.clip.as_deref(),
            Self::Dinov2 => models.dinov2.as_deref(),
        }
    }
}

impl Metric {
    /// All metrics.
    pub const ALL: [Self; 10] = [
        Self::Fid,
        Self::Kid,
        Self::Cmmd,
        Self::FdDinov2,
        Self::PrecisionRecall,
        Self::ClipScore,
        Self::Pickscore,
        Self::Hpsv2,
        Self::SceneScore,
        Self::ValidationLoss,
    ];

    /// The name in the run file and in records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fid => "fid",
            Self::Kid => "kid",
            Self::Cmmd => "cmmd",
            Self::FdDinov2 => "fd_dinov2",
            Self::PrecisionRecall => "precision_recall",
            Self::ClipScore => "clip_score",
            Self::Pickscore => "pickscore",
            Self::Hpsv2 => "hpsv2",
            Self::SceneScore => "scene_score",
            Self::ValidationLoss => "validation_loss",
        }
    }

    /// The tower by whose features images are compared; `None` for metrics of single images.
    pub fn tower(self, models: &EvalModels) -> Option<Tower> {
        match self {
            Self::Fid | Self::Kid => Some(Tower::Inception),
            Self::Cmmd => Some(Tower::Clip),
            Self::FdDinov2 => Some(Tower::Dinov2),
            Self::PrecisionRecall => {
                let has_folder = |tower: &Tower| tower.folder(models).is_some();
                Some(Tower::ALL.into_iter().find(has_folder).unwrap_or(Tower::Inception))
            }
            _ => None,
        }
    }

    /// The folder of the CLIP model that scores images and prompts, and its key; `None` for other
    /// metrics.
    pub fn scorer(self, models: &EvalModels) -> Option<(&'static str, Option<&Path>)> {
        match self {
            Self::ClipScore => Some(("clip", models.clip.as_deref())),
            Self::Pickscore => Some(("pickscore", models.pickscore.as_deref())),
            Self::Hpsv2 => Some(("hpsv2", models.hpsv2.as_deref())),
            _ => None,
        }
    }

    /// The key of `[eval.models]` that the metric needs and that is missing.
    pub fn missing_model(self, models: &EvalModels) -> Option<&'static str> {
        let tower = self.tower(models).filter(|tower| tower.folder(models).is_none()).map(Tower::name);
        let scorer = self.scorer(models).filter(|(_, folder)| folder.is_none()).map(|(key, _)| key);
        tower.or(scorer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_run_file() {
        for metric in Metric::ALL {
            assert_eq!(serde_json::to_value(metric).unwrap(), metric.name());
        }
    }

    #[test]
    fn each_metric_names_the_model_it_lacks() {
        let none = EvalModels::default();
        let missing: Vec<_> = Metric::ALL.iter().map(|metric| metric.missing_model(&none)).collect();
        let expected = [
            Some("inception"),
            Some("inception"),
            Some("clip"),
            Some("dinov2"),
            Some("inception"),
            Some("clip"),
            Some("pickscore"),
            Some("hpsv2"),
            None,
            None,
        ];
        assert_eq!(missing, expected);
        let clip = EvalModels { clip: Some("clip".into()), ..EvalModels::default() };
        assert_eq!(Metric::PrecisionRecall.tower(&clip), Some(Tower::Clip));
        assert_eq!(Metric::Cmmd.missing_model(&clip), None);
    }
}
