//! What single verbs require of a run file.

use tidemill_data::prepare::Crop;
use tidemill_models::VaeConfig;

use super::run::Run;
use crate::engine::config::EngineKind;
use crate::error::Result;

impl Run {
    /// Checks what every verb requires that reads pairs.
    ///
    /// # Errors
    /// If the source has no files, or its columns contradict each other.
    pub fn validate_source(&self) -> Result<()> {
        self.file.source.validate().map_err(|e| self.locate(e))
    }

    /// Checks that the models accept what `Prepare` makes. Reads the models' configurations only.
    ///
    /// # Errors
    /// If the VAE does not accept a resolution.
    pub fn check_models(&self) -> Result<()> {
        let models = self.models()?;
        let vae = VaeConfig::read(&models.vae().join("config.json"))?;
        models.text_widths()?;
        let factor = vae.downscale_factor();
        let prepare = &self.file.prepare;
        let sizes = prepare.resolutions.iter().flat_map(|&resolution| prepare.sizes(resolution));
        let mut sides = sizes.flat_map(|(width, height)| [width, height]);
        match sides.find(|side| i64::from(*side) % factor != 0) {
            Some(side) => {
                let message =
                    format!("{side} is not a multiple of {factor}, the VAE's pixels per latent cell");
                let key = if prepare.resolutions.contains(&side) { "resolutions" } else { "buckets" };
                Err(self.refuse(&format!("prepare.{key}"), message))
            }
            None => Ok(()),
        }
    }

    /// Checks what training requires.
    ///
    /// # Errors
    /// If a value of `[train]` is invalid, there is no phase, or the images of a phase have several
    /// sizes.
    pub fn validate_train(&self) -> Result<()> {
        if self.file.output.contains("://") {
            let message = "training writes metrics and images into a local folder: give a path on this machine, and \
                           put checkpoints into a bucket with checkpoint.uri";
            return Err(self.refuse("output", message));
        }
        if self.file.checkpoint.keep_every == Some(0) {
            return Err(self.refuse("checkpoint.keep_every", "must be at least 1"));
        }
        self.file.supervisor.validate().map_err(|(key, message)| self.refuse(key, message))?;
        self.file.train.validate().map_err(|e| self.locate(e))
    }

    /// Checks what training without a dataset requires. `has_local_encoders`: the encoders run in
    /// this process and not on a cluster.
    ///
    /// # Errors
    /// If a setting needs a dataset.
    pub fn validate_online(&self, has_local_encoders: bool) -> Result<()> {
        let file = &self.file;
        let need = "only with a dataset: run `tidemill preprocess` first, or remove this setting";
        if file.online.window == 0 {
            return Err(self.refuse("online.window", "must be at least 1"));
        }
        if file.dedup.is_set() {
            return Err(self.refuse("dedup", format!("duplicates are found {need}")));
        }
        if file.caption.stage.is_some() {
            return Err(self.refuse("caption.stage", format!("captions are made {need}")));
        }
        if !file.train.mix.is_empty() {
            return Err(self.refuse("train.mix", format!("datasets are mixed {need}")));
        }
        if file.prepare.crop == Crop::Bucket {
            return Err(self.refuse("prepare.crop", format!("batches are made of buckets {need}")));
        }
        if file.engine.kind == EngineKind::Ray && has_local_encoders {
            let message =
                "on Ray, pairs are encoded for the workers of Ray Train: define them with [engine.train]";
            return Err(self.refuse("engine.kind", message));
        }
        Ok(())
    }
}
