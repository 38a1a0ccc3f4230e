//! Which devices a run uses, from `engine.device`.

use tch::{Cuda, Device};

use crate::error::Result;
use crate::run_file::Run;

/// The devices that `engine.device` names: all GPUs, one of them, or the CPU.
///
/// # Errors
/// If the run file names a GPU that the machine does not have.
pub fn select_devices(run: &Run) -> Result<Vec<Device>> {
    let name = run.file.engine.device.as_str();
    if name == "cpu" {
        return Ok(vec![Device::Cpu]);
    }
    let gpus = count_gpus()?;
    devices_by_name(name, gpus).ok_or_else(|| {
        let message = format!(
            "\"{name}\" asks for a GPU, but libtorch sees {gpus} on this machine; \
             run `tidemill doctor` to find out why"
        );
        run.refuse("engine.device", message)
    })
}

/// The device of one of the `ranks` ranks of this machine. If each rank sees only one GPU, that GPU
/// is its own.
///
/// # Errors
/// If there are several GPUs, but fewer than ranks, or if the run file names one GPU for all ranks.
pub fn select_rank_device(run: &Run, devices: &[Device], local_rank: usize, ranks: usize) -> Result<Device> {
    if ranks > 1 && matches!(devices, [Device::Cuda(_)]) && count_gpus()? > 1 {
        let message =
            format!("{ranks} ranks cannot share one GPU; give \"cuda\", so that each rank takes its own");
        return Err(run.refuse("engine.device", message));
    }
    device_of_rank(devices, local_rank).ok_or_else(|| {
        let message = format!(
            "rank {local_rank} of this machine has no GPU of its own: there are {} GPUs; \
             start as many processes",
            devices.len()
        );
        run.refuse("engine.device", message)
    })
}

/// One device serves all ranks; of several devices each rank has one of its own.
fn device_of_rank(devices: &[Device], local_rank: usize) -> Option<Device> {
    match devices {
        [one] => Some(*one),
        several => several.get(local_rank).copied(),
    }
}

/// The number of GPUs that libtorch sees.
///
/// # Errors
/// If there is a driver, but libtorch's CUDA libraries cannot be loaded.
pub fn count_gpus() -> Result<usize> {
    tidemill_torch::load_cuda().map_err(tidemill_models::Error::from)?;
    Ok(if Cuda::is_available() { Cuda::device_count().max(0) as usize } else { 0 })
}

/// Describes devices for the log. If the run file leaves the choice to us, the CPU may be a
/// surprise, so the text gives the reason.
pub fn describe_devices(run: &Run, devices: &[Device]) -> String {
    match devices {
        [Device::Cuda(index)] => format!("GPU {index}"),
        [Device::Cuda(_), ..] => format!("{} GPUs", devices.len()),
        _ if run.file.engine.device == "auto" => "the CPU, because libtorch sees no GPU".into(),
        _ => "the CPU".into(),
    }
}

/// The devices of this name on a machine with this number of GPUs. `None` if it has no such GPU.
fn devices_by_name(name: &str, gpus: usize) -> Option<Vec<Device>> {
    let all = || (0..gpus).map(Device::Cuda).collect();
    match name {
        "auto" if gpus == 0 => Some(vec![Device::Cpu]),
        "auto" => Some(all()),
        "cuda" => (gpus > 0).then(all),
        one => {
            let index = one.strip_prefix("cuda:")?.parse().ok()?;
            (index < gpus).then(|| vec![Device::Cuda(index)])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_has_its_own_gpu() {
        let two = [Device::Cuda(0), Device::Cuda(1)];
        assert_eq!([0, 1, 2].map(|rank| device_of_rank(&two, rank)), [Some(two[0]), Some(two[1]), None]);
        assert_eq!(device_of_rank(&[Device::Cpu], 5), Some(Device::Cpu));
    }

    #[test]
    fn device_names_resolve_to_available_gpus() {
        let two = vec![Device::Cuda(0), Device::Cuda(1)];
        for (name, gpus, expected) in [
            ("auto", 0, Some(vec![Device::Cpu])),
            ("auto", 2, Some(two.clone())),
            ("cuda", 0, None),
            ("cuda", 2, Some(two)),
            ("cuda:1", 2, Some(vec![Device::Cuda(1)])),
            ("cuda:2", 2, None),
        ] {
            assert_eq!(devices_by_name(name, gpus), expected, "{name} with {gpus} GPUs");
        }
    }
}
