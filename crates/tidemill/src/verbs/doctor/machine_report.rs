//! libtorch's version and free disk space.

use std::path::Path;

use sysinfo::Disks;

/// The version of the libtorch in this folder. libtorch has its version only in files: `version.py`
/// in the Python wheel, `build-version` in the C++ archive.
pub fn read_torch_version(libtorch: &Path) -> Option<String> {
    if let Ok(text) = std::fs::read_to_string(libtorch.join("build-version")) {
        return Some(text.trim().to_string());
    }
    let text = std::fs::read_to_string(libtorch.join("version.py")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("__version__ = "))?;
    Some(line.trim_matches(['\'', '"']).to_string())
}

/// Free bytes of the disk that contains the folder.
pub fn free_disk_bytes(folder: &Path) -> Option<u64> {
    let folder = folder.canonicalize().ok()?;
    let disks = Disks::new_with_refreshed_list().ok()?;
    let containing = disks.iter().filter(|disk| folder.starts_with(disk.mount_point()));
    containing.max_by_key(|disk| disk.mount_point().as_os_str().len()).map(sysinfo::Disk::available_space)
}
