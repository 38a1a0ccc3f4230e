//! Which devices a run uses, from `engine.device`.

use tch::{Cuda, Device};

use crate::error::Result;
use crate::run_file::Run;

/// The devices that `engine.device` names: all GPUs, one of them, or the CPU.
///
/// # Errors
/// If a GPU is asked for that is not there.
pub fn devices(run: &Run) -> Result<Vec<Device>> {
    let name = run.file.engine.device.as_str();
    if name == "cpu" {
        return Ok(vec![Device::Cpu]);
    }
    let gpus = gpus()?;
    choose(name, gpus).ok_or_else(|| {
        let message = format!("\"{name}\" asks for a GPU, but libtorch sees {gpus} on this machine; `tidemill doctor` tells more");
        run.refuse("engine.device", message)
    })
}

/// The device of one of the ranks of this machine. Where each sees but one GPU, that is its own.
///
/// # Errors
/// If there are several GPUs, but fewer than ranks, or one of them is named for all ranks.
pub fn device_of(run: &Run, devices: &[Device], local_rank: usize, ranks: usize) -> Result<Device> {
    if ranks > 1 && matches!(devices, [Device::Cuda(_)]) && gpus()? > 1 {
        let message =
            format!("{ranks} ranks cannot share one GPU; give \"cuda\", of which each takes its own");
        return Err(run.refuse("engine.device", message));
    }
    own(devices, local_rank).ok_or_else(|| {
        let message = format!(
            "rank {local_rank} of this machine has no GPU of its own: there are {}; start as many processes",
            devices.len()
        );
        run.refuse("engine.device", message)
    })
}

fn own(devices: &[Device], local_rank: usize) -> Option<Device> {
    match devices {
        [one] => Some(*one),
        several => several.get(local_rank).copied(),
    }
}

/// How many GPUs libtorch sees.
///
/// # Errors
/// If there is a driver, but libtorch's CUDA half cannot be loaded.
pub fn gpus() -> Result<usize> {
    tidemill_torch::load_cuda().map_err(tidemill_models::Error::from)?;
    Ok(if Cuda::is_available() { Cuda::device_count().max(0) as usize } else { 0 })
}

/// Devices, for people. Where the run file leaves the choice, a CPU may be a mistake.
pub fn shown(run: &Run, devices: &[Device]) -> String {
    match devices {
        [Device::Cuda(index)] => format!("GPU {index}"),
        [Device::Cuda(_), ..] => format!("{} GPUs", devices.len()),
        _ if run.file.engine.device == "auto" => "the CPU, for libtorch sees no GPU".into(),
        _ => "the CPU".into(),
    }
}

/// The decision alone, for a machine with so many GPUs.
fn choose(name: &str, gpus: usize) -> Option<Vec<Device>> {
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
    fn each_rank_has_a_gpu_of_its_own() {
        let two = [Device::Cuda(0), Device::Cuda(1)];
        assert_eq!([0, 1, 2].map(|rank| own(&two, rank)), [Some(two[0]), Some(two[1]), None]);
        assert_eq!(own(&[Device::Cpu], 5), Some(Device::Cpu));
    }

    #[test]
    fn devices_by_name_and_number_of_gpus() {
        let two = vec![Device::Cuda(0), Device::Cuda(1)];
        for (name, gpus, expected) in [
            ("auto", 0, Some(vec![Device::Cpu])),
            ("auto", 2, Some(two.clone())),
            ("cuda", 0, None),
            ("cuda", 2, Some(two)),
            ("cuda:1", 2, Some(vec![Device::Cuda(1)])),
            ("cuda:2", 2, None),
        ] {
            assert_eq!(choose(name, gpus), expected, "{name} with {gpus} GPUs");
        }
    }
}
