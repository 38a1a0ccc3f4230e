//! The arguments of `tidemill doctor`, and its report.

use std::path::PathBuf;

use serde_json::{Value, json};
use tch::Cuda;

use super::machine_report::{free_disk_bytes, read_torch_version};
use super::nccl_network::Network;
use super::network_advice::advise;
use crate::engine::device::count_gpus;
use crate::engine::machine_resources::available_and_total_memory;
use crate::error::Result;
use crate::progress::Reporter;
use crate::python::loaded_libtorch;

/// Arguments of `tidemill doctor`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Show the free space of the disk that contains this folder.
    #[arg(long, default_value = ".")]
    pub disk: PathBuf,
}

/// Shows libtorch, GPUs, cores, memory, disk and network. Values that cannot be found out are null.
///
/// # Errors
/// If there is a GPU driver, but libtorch's CUDA libraries cannot be loaded.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    let libtorch = loaded_libtorch();
    let version = libtorch.as_deref().and_then(read_torch_version);
    let gpus = count_gpus()?;
    let cores = std::thread::available_parallelism().map(usize::from).ok();
    let memory = available_and_total_memory();
    let disk_free = free_disk_bytes(&args.disk);

    let or_unknown = |text: Option<String>| text.unwrap_or_else(|| "unknown".into());
    let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30));
    let path = libtorch.as_ref().map(|path| path.display().to_string());
    reporter.report(format!("tidemill    {}", env!("CARGO_PKG_VERSION")));
    reporter.report(format!("libtorch    {} in {}", or_unknown(version.clone()), or_unknown(path)));
    reporter.report(format!("GPUs        {gpus}{}", if Cuda::cudnn_is_available() { ", cuDNN" } else { "" }));
    reporter.report(format!("cores       {}", or_unknown(cores.map(|n| n.to_string()))));
    reporter.report(format!("threads     {} per libtorch operation", tch::get_num_threads()));
    let available =
        memory.map(|(available, total)| format!("{} available of {}", gib(available), gib(total)));
    reporter.report(format!("memory      {}", or_unknown(available)));
    reporter.report(format!("disk free   {} in {}", or_unknown(disk_free.map(gib)), args.disk.display()));
    let network = Network::detect();
    reporter.report(format!("network     {network}"));
    let advice = advise(&network);
    advice.iter().for_each(|advice| reporter.report(format!("            {advice}")));
    Ok(json!({
        "verb": "doctor",
        "tidemill": env!("CARGO_PKG_VERSION"),
        "libtorch": { "version": version, "path": libtorch },
        "gpus": gpus,
        "cudnn": Cuda::cudnn_is_available(),
        "cores": cores,
        "torch_threads": tch::get_num_threads(),
        "memory": memory.map(|(available, total)| json!({ "available": available, "total": total })),
        "network": network,
        "advice": advice,
        "disk": { "path": args.disk, "free": disk_free },
    }))
}
