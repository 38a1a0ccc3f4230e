//! The U-Net with the weights that training starts with.

use tch::Device;
use tidemill_models::{ModelFolder, ParamInit, UNet2DConditionModel, UNetConfig};

use crate::error::Result;
use crate::run_file::Run;

/// Loads the model folder's U-Net. If the folder has no weights, creates random ones from the run's
/// seed.
///
/// # Errors
/// If the configuration is not supported, or the weights do not fit it.
pub fn load_initial_unet(run: &Run, models: &ModelFolder, device: Device) -> Result<UNet2DConditionModel> {
    if models.has_unet_weights()? {
        return Ok(UNet2DConditionModel::load(&models.unet(), device)?);
    }
    tch::manual_seed(run.file.seed as i64);
    let config = UNetConfig::read(&models.unet().join("config.json"))?;
    Ok(UNet2DConditionModel::new(config, device, ParamInit::Random)?)
}
