//! What a rank sets on its GPU before the first step.

use tch::{Device, Kind};
use tidemill_torch::{DeterministicAlgorithms, SideStream, compile_kernels, set_cudnn_benchmark};

use crate::Error;
use crate::observer::Observer;
use crate::train_spec::TrainSpec;

/// Settings of a GPU that hold until this is dropped.
#[derive(Debug)]
pub(super) struct GpuSettings {
    _deterministic: Option<DeterministicAlgorithms>,
    _stream: Option<SideStream>,
}

/// Prepares a GPU for steps in this precision; `None` on a CPU. `cuda_graph_device` is the GPU if steps may
/// be recorded. What takes long is told to `observer`, on the first rank.
///
/// # Errors
/// If the GPU fails.
pub(super) fn set_up_gpu(
    spec: &TrainSpec,
    kind: Kind,
    cuda_graph_device: Option<usize>,
    observer: &mut dyn Observer,
) -> Result<Option<GpuSettings>, Error> {
    let Device::Cuda(device) = spec.denoiser.params().device() else { return Ok(None) };
    let mut log = |message: &str| {
        if spec.world.is_first() {
            observer.log(message);
        }
    };
    compile_kernels(device, kind, |count| {
        log(&format!("compiling {count} kernels for this GPU; the next start finds them compiled"));
    });
    let limit = cudnn_benchmark_limit(spec);
    set_cudnn_benchmark(limit)?;
    match limit {
        Some(0) => log("the first step takes longer: cuDNN tries all its algorithms for each convolution"),
        Some(limit) => log(&format!(
            "the first step takes longer: cuDNN tries up to {limit} algorithms for each convolution"
        )),
        None => {}
    }
    Ok(Some(GpuSettings {
        _deterministic: spec.train.deterministic.then(DeterministicAlgorithms::enter).transpose()?,
        _stream: cuda_graph_device.map(SideStream::enter).transpose()?,
    }))
}

/// Resets a GPU, which waits for it; not if its queue `may_be_stuck`: a collective waits for ever if another rank
/// has died.
pub(super) fn release_gpu(settings: Option<GpuSettings>, may_be_stuck: bool) {
    if may_be_stuck {
        std::mem::forget(settings);
    }
}

/// How many algorithms cuDNN tries for each convolution; `None` if it takes the one that its heuristics name.
fn cudnn_benchmark_limit(spec: &TrainSpec) -> Option<usize> {
    // Which one is the fastest differs from start to start. And encoders in this process would make cuDNN
    // try again for each of their image and batch sizes.
    let is_tried = !spec.train.deterministic && !spec.data.encodes_in_process();
    is_tried.then_some(spec.train.cudnn_benchmark_limit)
}
