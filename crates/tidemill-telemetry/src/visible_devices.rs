//! Which of a machine's GPUs a process sees under which number.

/// How NVML names a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuName {
    /// Its number on the machine.
    Index(u32),
    /// Its UUID, or the beginning of it.
    Uuid(String),
}

/// The GPU that CUDA calls `device` in a process with this `CUDA_VISIBLE_DEVICES`. None if there is no
/// such GPU. Assumes that the GPUs of a machine are alike: otherwise CUDA gives the fastest number 0.
pub fn resolve_device(device: u32, visible: Option<&str>) -> Option<GpuName> {
    let Some(visible) = visible else { return Some(GpuName::Index(device)) };
    let names = visible.split(',').map(str::trim);
    // CUDA stops at the first name that is not valid.
    let mut valid = names.take_while(|name| is_uuid(name) || name.parse::<u32>().is_ok());
    let name = valid.nth(device as usize)?;
    Some(name.parse().map_or_else(|_| GpuName::Uuid(name.to_owned()), GpuName::Index))
}

fn is_uuid(name: &str) -> bool {
    name.starts_with("GPU-") || name.starts_with("MIG-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_cuda_visible_devices() {
        let index = |index| Some(GpuName::Index(index));
        for (device, visible, expected) in [
            (1, None, index(1)),
            (1, Some("4,6"), index(6)),
            (0, Some(" 3 "), index(3)),
            (2, Some("4,6"), None),
            (1, Some("4,-1,6"), None),
            (0, Some(""), None),
            (1, Some("0,GPU-8932f937"), Some(GpuName::Uuid("GPU-8932f937".into()))),
        ] {
            assert_eq!(resolve_device(device, visible), expected, "{device} of {visible:?}");
        }
    }
}
