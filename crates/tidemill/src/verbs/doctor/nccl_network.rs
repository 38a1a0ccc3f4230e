//! What NCCL finds between machines: network devices, the plugin that it needs for EFA, and variables that lead it astray.
//!
//! NCCL uses InfiniBand and RoCE by itself. Of AWS's Elastic Fabric Adapter it knows nothing without the plugin
//! [aws-ofi-nccl](https://github.com/aws/aws-ofi-nccl), which hands its traffic to libfabric; where one part is missing it
//! takes TCP and says nothing. What variables mean: [NCCL](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};
use serde::Serialize;

/// Where installers put the plugin and libfabric, beside the folders of `LD_LIBRARY_PATH`.
const FOLDERS: [&str; 8] = [
    "opt/amazon/ofi-nccl/lib",
    "opt/amazon/ofi-nccl/lib64",
    "opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
    "opt/amazon/efa/lib",
    "opt/amazon/efa/lib64",
    "opt/aws-ofi-nccl/lib",
    "usr/local/lib",
    "usr/lib/x86_64-linux-gnu",
];

/// Prefixes of the variables that are shown.
const VARIABLES: [&str; 3] = ["NCCL_", "FI_", "OFI_NCCL_"];

/// What there is.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Network {
    /// EFA devices.
    pub efa: Vec<String>,
    /// Other RDMA devices: InfiniBand, RoCE.
    pub rdma: Vec<String>,
    /// Network interfaces.
    pub interfaces: Vec<String>,
    /// NCCL's network plugin.
    pub plugin: Option<PathBuf>,
    /// libfabric.
    pub libfabric: Option<PathBuf>,
    /// Bytes that a process may lock in memory, as RDMA wants to; none if without a limit.
    pub may_lock: Option<u64>,
    /// Variables of NCCL, libfabric and the plugin.
    pub variables: BTreeMap<String, String>,
}

impl Network {
    /// Looks at this machine.
    pub fn here() -> Self {
        let variables = std::env::vars_os().filter_map(|(name, value)| {
            let text = |text: OsString| text.into_string().ok();
            Some((text(name)?, text(value)?))
        });
        Self { may_lock: getrlimit(Resource::Memlock).current, ..Self::at(Path::new("/"), variables) }
    }

    /// Looks at the files below `root` and these variables.
    fn at(root: &Path, variables: impl Iterator<Item = (String, String)>) -> Self {
        let (mut ours, mut folders) = (BTreeMap::new(), Vec::new());
        for (name, value) in variables {
            if name == "LD_LIBRARY_PATH" {
                folders = std::env::split_paths(&value).collect();
            } else if VARIABLES.iter().any(|prefix| name.starts_with(prefix)) {
                ours.insert(name, value);
            }
        }
        folders.extend(FOLDERS.iter().map(|folder| root.join(folder)));
        let library = |stem: &str| folders.iter().find_map(|folder| library(folder, stem));
        let devices = root.join("sys/class/infiniband");
        let is_efa = |device: &String| {
            let driver = std::fs::read_link(devices.join(device).join("device/driver"));
            driver.is_ok_and(|driver| driver.ends_with("efa"))
        };
        let (efa, rdma) = names(&devices).into_iter().partition(is_efa);
        Self {
            efa,
            rdma,
            interfaces: names(&root.join("sys/class/net")),
            plugin: library("libnccl-net"),
            libfabric: library("libfabric.so"),
            may_lock: None,
            variables: ours,
        }
    }

    /// What keeps NCCL from the network that there is, and what to do about it.
    pub fn advice(&self) -> Vec<String> {
        let mut advice = if self.efa.is_empty() { self.without_efa() } else { self.with_efa() };
        if let Some(given) = self.variables.get("NCCL_SOCKET_IFNAME").filter(|given| !self.any_matches(given))
        {
            advice.push(format!(
                "NCCL_SOCKET_IFNAME = {given} matches no interface of this machine ({}): NCCL cannot start; name \
                 prefixes of those that exist, or unset it",
                self.interfaces.join(", ")
            ));
        }
        for (variable, what) in [
            ("NCCL_P2P_DISABLE", "GPUs of a machine send through the host's memory and not to each other"),
            ("NCCL_SHM_DISABLE", "GPUs of a machine that cannot reach each other send through the network"),
        ] {
            if self.is(variable, "1") {
                advice.push(format!("{variable} = 1: {what}, which is slow; unset it"));
            }
        }
        let limit = self.may_lock.filter(|limit| *limit < 1 << 30);
        if let (Some(limit), false) = (limit, self.efa.is_empty() && self.rdma.is_empty()) {
            advice.push(format!(
                "a process may lock {limit} bytes of memory, and RDMA needs more: raise it with `ulimit -l unlimited`, in \
                 containers with --ulimit memlock=-1"
            ));
        }
        advice
    }

    fn with_efa(&self) -> Vec<String> {
        let mut advice = Vec::new();
        if self.plugin.is_none() {
            advice.push(
                "there are EFA devices, but not NCCL's plugin for them (libnccl-net*.so of aws-ofi-nccl), so NCCL takes \
                 TCP: install it with AWS's EFA installer, or add its folder to LD_LIBRARY_PATH"
                    .into(),
            );
        }
        if self.libfabric.is_none() {
            advice.push(
                "there are EFA devices, but no libfabric.so: install it with AWS's EFA installer, or add its folder to \
                 LD_LIBRARY_PATH"
                    .into(),
            );
        }
        if let Some(provider) = self.variables.get("FI_PROVIDER").filter(|provider| *provider != "efa") {
            advice.push(format!(
                "FI_PROVIDER = {provider} keeps libfabric from EFA: set it to efa, or unset it"
            ));
        }
        if self.variables.get("NCCL_NET").is_some_and(|net| net.eq_ignore_ascii_case("socket")) {
            advice.push("NCCL_NET = Socket makes NCCL take TCP: unset it".into());
        }
        if self.is("NCCL_NET_PLUGIN", "none") {
            advice.push("NCCL_NET_PLUGIN = none keeps NCCL from its plugin for EFA: unset it".into());
        }
        if self.is("FI_EFA_USE_DEVICE_RDMA", "0") {
            advice.push(
                "FI_EFA_USE_DEVICE_RDMA = 0 makes GPUs send through the host's memory: unset it".into(),
            );
        }
        advice
    }

    fn without_efa(&self) -> Vec<String> {
        let mut advice = Vec::new();
        if self.is("FI_PROVIDER", "efa") {
            advice.push(
                "FI_PROVIDER = efa, but there is no EFA device here: start the machine with EFA interfaces (in \
                 containers pass /dev/infiniband on), or unset it"
                    .into(),
            );
        }
        if !self.rdma.is_empty() && self.is("NCCL_IB_DISABLE", "1") {
            advice.push(format!("NCCL_IB_DISABLE = 1 keeps NCCL from {}: unset it", self.rdma.join(", ")));
        }
        advice
    }

    fn is(&self, variable: &str, value: &str) -> bool {
        self.variables.get(variable).is_some_and(|given| given == value)
    }

    /// Whether a list of prefixes, or of names after `=`, leaves NCCL an interface; after `^` they are those it leaves out.
    fn any_matches(&self, list: &str) -> bool {
        let (leave_out, list) = list.strip_prefix('^').map_or((false, list), |list| (true, list));
        let (exact, list) = list.strip_prefix('=').map_or((false, list), |list| (true, list));
        let listed = |name: &String| {
            list.split(',').any(|given| if exact { name == given } else { name.starts_with(given) })
        };
        self.interfaces.iter().any(|name| listed(name) != leave_out)
    }
}

/// The first file in the folder whose name starts like this and which is a shared library.
fn library(folder: &Path, stem: &str) -> Option<PathBuf> {
    let found = names(folder).into_iter().find(|name| name.starts_with(stem) && name.contains(".so"));
    found.map(|name| folder.join(name))
}

/// What is in a folder, sorted; nothing if there is no such folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(efa: bool, installed: bool, variables: &[(&str, &str)]) -> Network {
        let file = installed.then(|| PathBuf::from("/opt/lib"));
        Network {
            efa: efa.then(|| "rdmap0s6".into()).into_iter().collect(),
            interfaces: vec!["ens32".into(), "lo".into()],
            plugin: file.clone(),
            libfabric: file,
            variables: variables.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
            ..Network::default()
        }
    }

    #[test]
    fn each_thing_in_the_way_is_named() {
        let good = [("FI_PROVIDER", "efa"), ("NCCL_SOCKET_IFNAME", "^lo,docker")];
        let none: [&str; 0] = [];
        for (efa, installed, variables, expected) in [
            (false, false, &[][..], &none[..]),
            (true, true, &good[..], &none[..]),
            (true, false, &good[..], &["aws-ofi-nccl", "no libfabric.so"][..]),
            (false, true, &good[..], &["no EFA device here"][..]),
            (true, true, &[("FI_PROVIDER", "tcp")][..], &["FI_PROVIDER = tcp keeps libfabric from EFA"][..]),
            (true, true, &[("NCCL_NET", "Socket")][..], &["NCCL_NET = Socket"][..]),
            (true, true, &[("NCCL_NET_PLUGIN", "none")][..], &["NCCL_NET_PLUGIN = none"][..]),
            (true, true, &[("FI_EFA_USE_DEVICE_RDMA", "0")][..], &["FI_EFA_USE_DEVICE_RDMA"][..]),
            (false, true, &[("NCCL_SOCKET_IFNAME", "eth")][..], &["(ens32, lo)"][..]),
            (false, true, &[("NCCL_P2P_DISABLE", "1")][..], &["NCCL_P2P_DISABLE = 1"][..]),
        ] {
            let advice = network(efa, installed, variables).advice();
            assert_eq!(advice.len(), expected.len(), "{variables:?}: {advice:?}");
            assert!(advice.iter().zip(expected).all(|(said, part)| said.contains(part)), "{advice:?}");
        }
        let locked = Network { may_lock: Some(65536), ..network(true, true, &[]) };
        assert!(locked.advice()[0].contains("ulimit -l"));
        let disabled =
            Network { rdma: vec!["mlx5_0".into()], ..network(false, true, &[("NCCL_IB_DISABLE", "1")]) };
        assert!(disabled.advice()[0].contains("mlx5_0"));
    }

    #[test]
    fn interfaces_match_as_nccl_takes_them() {
        let network = network(false, false, &[]);
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
            assert_eq!(network.any_matches(list), any, "{list}");
        }
    }

    #[test]
    fn a_machine_is_looked_at() {
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
        let libfabric = folder("elsewhere").join("libfabric.so.1");
        std::fs::write(&plugin, "").unwrap();
        std::fs::write(&libfabric, "").unwrap();
        let path = libfabric.parent().unwrap().display().to_string();
        let variables = [("LD_LIBRARY_PATH", path.as_str()), ("FI_PROVIDER", "efa"), ("HOME", "/root")];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let network = Network::at(root.path(), variables.into_iter());
        assert_eq!((network.efa.join(" "), network.rdma.join(" ")), ("rdmap0s6".into(), "mlx5_0".into()));
        assert_eq!((network.plugin.clone(), network.libfabric.clone()), (Some(plugin), Some(libfabric)));
        assert_eq!(network.interfaces, ["eth0"]);
        assert_eq!(network.variables.keys().collect::<Vec<_>>(), ["FI_PROVIDER"]);
        assert!(network.advice().is_empty());
    }
}
