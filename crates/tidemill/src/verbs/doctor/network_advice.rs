//! Advice about the network: what keeps NCCL from using it, and what to do. Source for the
//! variables: [NCCL](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html).

use super::nccl_network::Network;

/// Below this limit on locked memory, RDMA may fail, in bytes.
const MIN_LOCKED_BYTES: u64 = 1 << 30;

/// One line for each problem.
pub fn advise(network: &Network) -> Vec<String> {
    let mut advice =
        if network.efa.is_empty() { advise_without_efa(network) } else { advise_with_efa(network) };
    let interface_list = network.variables.get("NCCL_SOCKET_IFNAME");
    if let Some(list) = interface_list.filter(|list| !network.matches_any_interface(list)) {
        advice.push(format!(
            "NCCL_SOCKET_IFNAME = {list} matches no interface of this machine ({}), so NCCL cannot start: name \
             prefixes of existing interfaces, or unset it",
            network.interfaces.join(", ")
        ));
    }
    for (variable, effect) in [
        ("NCCL_P2P_DISABLE", "GPUs of a machine send data through host memory instead of directly"),
        (
            "NCCL_SHM_DISABLE",
            "GPUs of a machine that cannot reach each other directly send data through the network",
        ),
    ] {
        if network.has_variable(variable, "1") {
            advice.push(format!("{variable} = 1: {effect}, which is slow; unset it"));
        }
    }
    let has_rdma = !network.efa.is_empty() || !network.rdma.is_empty();
    if let Some(limit) = network.max_locked_bytes.filter(|limit| has_rdma && *limit < MIN_LOCKED_BYTES) {
        advice.push(format!(
            "a process may lock {limit} bytes of memory, but RDMA needs more: raise the limit with `ulimit -l \
             unlimited`, in containers with --ulimit memlock=-1"
        ));
    }
    advice
}

fn advise_with_efa(network: &Network) -> Vec<String> {
    let mut advice: Vec<String> = Vec::new();
    if network.plugin.is_none() {
        advice.push(
            "there are EFA devices, but NCCL's plugin for them is missing (libnccl-net*.so of aws-ofi-nccl), so NCCL \
             uses TCP: install it with AWS's EFA installer, or add its folder to LD_LIBRARY_PATH"
                .into(),
        );
    }
    if network.libfabric.is_none() {
        advice.push(
            "there are EFA devices, but no libfabric.so: install it with AWS's EFA installer, or add its folder to \
             LD_LIBRARY_PATH"
                .into(),
        );
    }
    if let Some(provider) = network.variables.get("FI_PROVIDER").filter(|provider| *provider != "efa") {
        advice.push(format!("FI_PROVIDER = {provider} keeps libfabric from EFA: set it to efa, or unset it"));
    }
    if network.variables.get("NCCL_NET").is_some_and(|net| net.eq_ignore_ascii_case("socket")) {
        advice.push("NCCL_NET = Socket makes NCCL use TCP: unset it".into());
    }
    if network.has_variable("NCCL_NET_PLUGIN", "none") {
        advice.push("NCCL_NET_PLUGIN = none keeps NCCL from its plugin for EFA: unset it".into());
    }
    if network.has_variable("FI_EFA_USE_DEVICE_RDMA", "0") {
        advice.push("FI_EFA_USE_DEVICE_RDMA = 0 makes GPUs send data through host memory: unset it".into());
    }
    advice
}

fn advise_without_efa(network: &Network) -> Vec<String> {
    let mut advice = Vec::new();
    if network.has_variable("FI_PROVIDER", "efa") {
        advice.push(
            "FI_PROVIDER = efa, but this machine has no EFA device: start the machine with EFA interfaces (pass \
             /dev/infiniband to containers), or unset it"
                .into(),
        );
    }
    if !network.rdma.is_empty() && network.has_variable("NCCL_IB_DISABLE", "1") {
        let devices = network.rdma.join(", ");
        advice.push(format!("NCCL_IB_DISABLE = 1 keeps NCCL from {devices}: unset it"));
    }
    advice
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

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
    fn each_problem_has_one_line_of_advice() {
        let good = [("FI_PROVIDER", "efa"), ("NCCL_SOCKET_IFNAME", "^lo,docker")];
        let none: [&str; 0] = [];
        for (efa, installed, variables, expected) in [
            (false, false, &[][..], &none[..]),
            (true, true, &good[..], &none[..]),
            (true, false, &good[..], &["aws-ofi-nccl", "no libfabric.so"][..]),
            (false, true, &good[..], &["has no EFA device"][..]),
            (true, true, &[("FI_PROVIDER", "tcp")][..], &["FI_PROVIDER = tcp keeps libfabric from EFA"][..]),
            (true, true, &[("NCCL_NET", "Socket")][..], &["NCCL_NET = Socket"][..]),
            (true, true, &[("NCCL_NET_PLUGIN", "none")][..], &["NCCL_NET_PLUGIN = none"][..]),
            (true, true, &[("FI_EFA_USE_DEVICE_RDMA", "0")][..], &["FI_EFA_USE_DEVICE_RDMA"][..]),
            (false, true, &[("NCCL_SOCKET_IFNAME", "eth")][..], &["(ens32, lo)"][..]),
            (false, true, &[("NCCL_P2P_DISABLE", "1")][..], &["NCCL_P2P_DISABLE = 1"][..]),
        ] {
            let advice = advise(&network(efa, installed, variables));
            assert_eq!(advice.len(), expected.len(), "{variables:?}: {advice:?}");
            assert!(advice.iter().zip(expected).all(|(line, part)| line.contains(part)), "{advice:?}");
        }
        let locked = Network { max_locked_bytes: Some(65536), ..network(true, true, &[]) };
        assert!(advise(&locked)[0].contains("ulimit -l"));
        let disabled =
            Network { rdma: vec!["mlx5_0".into()], ..network(false, true, &[("NCCL_IB_DISABLE", "1")]) };
        assert!(advise(&disabled)[0].contains("mlx5_0"));
    }
}
