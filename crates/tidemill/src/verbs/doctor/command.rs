//! `tidemill doctor`: what this machine offers, for bug reports and for choosing settings.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sysinfo::Disks;
use tch::Cuda;

use super::nccl_network::Network;
use crate::engine::device::count_gpus;
use crate::engine::machine_resources::available_and_total_memory;
use crate::error::Result;
use crate::progress::Reporter;
use crate::python::loaded_libtorch;

/// Arguments of `tidemill doctor`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Folder whose disk is looked at.
    #[arg(long, default_value = ".")]
    pub disk: PathBuf,
}

/// Looks at libtorch, GPUs, cores, memory, disk and network.
///
/// # Errors
/// If there is a driver, but libtorch's CUDA half cannot be loaded. What cannot be found out is null.
pub fn run(args: &Args, reporter: &Reporter) -> Result<Value> {
    let libtorch = loaded_libtorch();
    let version = libtorch.as_deref().and_then(torch_version);
    let gpus = count_gpus()?;
    let cores = std::thread::available_parallelism().map(usize::from).ok();
    let memory = available_and_total_memory();
    let disk_free = disk_free(&args.disk);

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
    let network = Network::here();
    reporter.report(format!("network     {}", describe_devices(&network)));
    let advice = network.advice();
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

/// Devices, what drives them, and variables, in a line.
fn describe_devices(network: &Network) -> String {
    let list = |names: &[String]| if names.is_empty() { "none".into() } else { names.join(" ") };
    let path =
        |path: &Option<PathBuf>| path.as_ref().map_or("none".into(), |path| path.display().to_string());
    let variables = network.variables.iter().map(|(name, value)| format!("; {name}={value}"));
    format!(
        "EFA: {}; InfiniBand or RoCE: {}; NCCL plugin: {}; libfabric: {}{}",
        list(&network.efa),
        list(&network.rdma),
        path(&network.plugin),
        path(&network.libfabric),
        variables.collect::<String>()
    )
}

/// libtorch tells its version only in files beside it: `version.py` in the wheel, `build-version` in the archive.
fn torch_version(libtorch: &Path) -> Option<String> {
    if let Ok(text) = std::fs::read_to_string(libtorch.join("build-version")) {
        return Some(text.trim().to_string());
    }
    let text = std::fs::read_to_string(libtorch.join("version.py")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("__version__ = "))?;
    Some(line.trim_matches(['\'', '"']).to_string())
}

/// Free bytes of the disk that holds the folder.
fn disk_free(folder: &Path) -> Option<u64> {
    let folder = folder.canonicalize().ok()?;
    let disks = Disks::new_with_refreshed_list().ok()?;
    let holding = disks.iter().filter(|disk| folder.starts_with(disk.mount_point()));
    holding.max_by_key(|disk| disk.mount_point().as_os_str().len()).map(sysinfo::Disk::available_space)
}
