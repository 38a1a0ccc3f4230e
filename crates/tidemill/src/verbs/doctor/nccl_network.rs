//! What NCCL finds between machines: network devices, the plugin that it needs for EFA, and
//! environment variables.
//!
//! NCCL uses InfiniBand and RoCE by itself. It uses AWS's Elastic Fabric Adapter (EFA) only through
//! the plugin [aws-ofi-nccl](https://github.com/aws/aws-ofi-nccl), which passes its traffic to
//! libfabric. If a part is missing, NCCL falls back to TCP without a warning.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};
use serde::Serialize;

/// Where installers put the plugin and libfabric, in addition to the folders of `LD_LIBRARY_PATH`.
const LIBRARY_FOLDERS: [&str; 8] = [
    "opt/amazon/ofi-nccl/lib",
    "opt/amazon/ofi-nccl/lib64",
    "opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
    "opt/amazon/efa/lib",
    "opt/amazon/efa/lib64",
    "opt/aws-ofi-nccl/lib",
    "usr/local/lib",
    "usr/lib/x86_64-linux-gnu",
];

/// Prefixes of the environment variables that are shown.
const VARIABLE_PREFIXES: [&str; 3] = ["NCCL_", "FI_", "OFI_NCCL_"];

/// The network devices, libraries and settings of this machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Network {
    /// EFA devices.
    pub efa: Vec<String>,
    /// Other RDMA devices: InfiniBand and RoCE.
    pub rdma: Vec<String>,
    /// Network interfaces.
    pub interfaces: Vec<String>,
    /// NCCL's network plugin.
    pub plugin: Option<PathBuf>,
    /// libfabric.
    pub libfabric: Option<PathBuf>,
    /// Bytes that a process may lock in memory, which RDMA needs. `None` if there is no limit.
    #[serde(rename = "may_lock")]
    pub max_locked_bytes: Option<u64>,
    /// Environment variables of NCCL, libfabric and the plugin.
    pub variables: BTreeMap<String, String>,
}

impl Network {
    /// Finds the devices, libraries and settings of this machine.
    pub fn detect() -> Self {
        let variables = std::env::vars_os().filter_map(|(name, value)| {
            let text = |text: OsString| text.into_string().ok();
            Some((text(name)?, text(value)?))
        });
        let max_locked_bytes = getrlimit(Resource::Memlock).current;
        Self { max_locked_bytes, ..Self::detect_below(Path::new("/"), variables) }
    }

    /// Finds devices and libraries below the folder `root`, with these environment variables.
    pub(super) fn detect_below(root: &Path, variables: impl Iterator<Item = (String, String)>) -> Self {
        let (mut shown_variables, mut folders) = (BTreeMap::new(), Vec::new());
        for (name, value) in variables {
            if name == "LD_LIBRARY_PATH" {
                folders = std::env::split_paths(&value).collect();
            } else if VARIABLE_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
                shown_variables.insert(name, value);
            }
        }
        folders.extend(LIBRARY_FOLDERS.iter().map(|folder| root.join(folder)));
        let find = |prefix: &str| folders.iter().find_map(|folder| find_library(folder, prefix));
        let devices = root.join("sys/class/infiniband");
        let is_efa = |device: &String| {
            let driver = std::fs::read_link(devices.join(device).join("device/driver"));
            driver.is_ok_and(|driver| driver.ends_with("efa"))
        };
        let (efa, rdma) = list_names(&devices).into_iter().partition(is_efa);
        Self {
            efa,
            rdma,
            interfaces: list_names(&root.join("sys/class/net")),
            plugin: find("libnccl-net"),
            libfabric: find("libfabric.so"),
            max_locked_bytes: None,
            variables: shown_variables,
        }
    }

    /// Whether an environment variable has exactly this value.
    pub fn has_variable(&self, variable: &str, value: &str) -> bool {
        self.variables.get(variable).is_some_and(|actual| actual == value)
    }

    /// Whether `NCCL_SOCKET_IFNAME = list` leaves NCCL an interface. The list has prefixes of
    /// names, or whole names after `=`; after `^` it lists what to exclude.
    pub fn matches_any_interface(&self, list: &str) -> bool {
        let (is_exclusion, list) = list.strip_prefix('^').map_or((false, list), |list| (true, list));
        let (is_exact, list) = list.strip_prefix('=').map_or((false, list), |list| (true, list));
        let is_listed = |name: &String| {
            list.split(',').any(|entry| if is_exact { name == entry } else { name.starts_with(entry) })
        };
        self.interfaces.iter().any(|name| is_listed(name) != is_exclusion)
    }
}

impl fmt::Display for Network {
    /// Devices, libraries and variables in one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |names: &[String]| if names.is_empty() { "none".into() } else { names.join(" ") };
        let path =
            |path: &Option<PathBuf>| path.as_ref().map_or("none".into(), |path| path.display().to_string());
        write!(
            f,
            "EFA: {}; InfiniBand or RoCE: {}; NCCL plugin: {}; libfabric: {}",
            list(&self.efa),
            list(&self.rdma),
            path(&self.plugin),
            path(&self.libfabric)
        )?;
        self.variables.iter().try_for_each(|(name, value)| write!(f, "; {name}={value}"))
    }
}

/// The first shared library in the folder whose name starts with `prefix`.
fn find_library(folder: &Path, prefix: &str) -> Option<PathBuf> {
    let name = list_names(folder).into_iter().find(|name| name.starts_with(prefix) && name.contains(".so"));
    name.map(|name| folder.join(name))
}

/// The sorted names of the folder's entries. Empty if there is no such folder.
fn list_names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::doctor::network_advice::advise;

    #[test]
    fn interface_list_matches_as_in_nccl() {
        let interfaces = vec!["ens32".into(), "lo".into()];
        let network = Network { interfaces, ..Network::default() };
        for (list, any) in [
            ("ens", true),
            ("eth,ens", true),
            ("eth", false),
            ("=ens", false),
            ("=ens32", true),
            ("^lo", true),
            ("^lo,ens", false),
            ("^=lo,ens", true),
        ] {
            assert_eq!(network.matches_any_interface(list), any, "{list}");
        }
    }

    #[test]
    fn detection_finds_devices_libraries_and_variables() {
        let root = tempfile::tempdir().unwrap();
        let folder = |path: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(&path).unwrap();
            path
        };
        let drivers = [("rdmap0s6", "efa"), ("mlx5_0", "mlx5_core")];
        for (device, driver) in drivers {
            let device = folder(&format!("sys/class/infiniband/{device}/device"));
            std::os::unix::fs::symlink(format!("../../bus/pci/drivers/{driver}"), device.join("driver"))
                .unwrap();
        }
        folder("sys/class/net/eth0");
        let plugin = folder("opt/amazon/ofi-nccl/lib").join("libnccl-net-ofi.so");
        let libfabric = folder("other").join("libfabric.so.1");
        std::fs::write(&plugin, "").unwrap();
        std::fs::write(&libfabric, "").unwrap();
        let path = libfabric.parent().unwrap().display().to_string();
        let variables = [("LD_LIBRARY_PATH", path.as_str()), ("FI_PROVIDER", "efa"), ("HOME", "/root")];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let network = Network::detect_below(root.path(), variables.into_iter());
        assert_eq!((network.efa.join(" "), network.rdma.join(" ")), ("rdmap0s6".into(), "mlx5_0".into()));
        assert_eq!((network.plugin.clone(), network.libfabric.clone()), (Some(plugin), Some(libfabric)));
        assert_eq!(network.interfaces, ["eth0"]);
        assert_eq!(network.variables.keys().collect::<Vec<_>>(), ["FI_PROVIDER"]);
        assert!(advise(&network).is_empty());
    }
}
