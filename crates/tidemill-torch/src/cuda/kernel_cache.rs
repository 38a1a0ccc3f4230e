//! Compiled kernels on disk. NVRTC takes seconds for all of them, in every process.

use std::ffi::{CStr, CString};
use std::fs;
use std::io::{self, Write};
use std::iter;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// A digest of everything that the machine code depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KernelKey([u8; DIGEST]);

/// Bytes of a SHA-256 digest.
const DIGEST: usize = 32;

impl KernelKey {
    /// The key of a source that a version of NVRTC compiles with these options, the GPU's architecture among
    /// them.
    pub fn new(nvrtc_version: [i32; 2], source: &CStr, options: &[CString]) -> Self {
        let mut digest = Sha256::new();
        digest.update(nvrtc_version.map(i32::to_le_bytes).concat());
        for text in iter::once(source).chain(options.iter().map(CString::as_c_str)) {
            // The zero at its end separates it from the next one.
            digest.update(text.to_bytes_with_nul());
        }
        Self(digest.finalize().into())
    }

    /// The checksum of machine code that is stored under this key.
    fn checksum(self, machine_code: &[u8]) -> [u8; DIGEST] {
        Sha256::new().chain_update(self.0).chain_update(machine_code).finalize().into()
    }
}

/// A folder of compiled kernels. It may be deleted at any time, and processes may share it.
#[derive(Clone, Debug)]
pub(super) struct KernelCache {
    folder: PathBuf,
}

impl KernelCache {
    /// `tidemill/kernels` in `$XDG_CACHE_HOME`, or in `~/.cache`; `None` if neither is known.
    pub fn in_user_cache() -> Option<Self> {
        let from_variable =
            |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let cache =
            from_variable("XDG_CACHE_HOME").or_else(|| Some(from_variable("HOME")?.join(".cache")))?;
        Some(Self { folder: cache.join("tidemill").join("kernels") })
    }

    /// The machine code that was stored under a key; `None` if there is none, or it is damaged.
    pub fn get(&self, key: KernelKey) -> Option<Vec<u8>> {
        let mut stored = fs::read(self.path(key)).ok()?;
        let checksum = *stored.last_chunk::<DIGEST>()?;
        stored.truncate(stored.len() - DIGEST);
        (key.checksum(&stored) == checksum).then_some(stored)
    }

    /// Stores machine code under a key, in place of what is there.
    ///
    /// # Errors
    /// If the folder or the file cannot be written.
    pub fn put(&self, key: KernelKey, machine_code: &[u8]) -> io::Result<()> {
        let path = self.path(key);
        fs::create_dir_all(&self.folder)?;
        // Several processes may write the same file at a time.
        let part = path.with_extension(format!("{}.part", std::process::id()));
        let written = write_file(&part, &[machine_code, &key.checksum(machine_code)])
            .and_then(|()| fs::rename(&part, &path));
        if written.is_err() {
            let _ = fs::remove_file(&part);
        }
        written
    }

    fn path(&self, key: KernelKey) -> PathBuf {
        let name: String = key.0.iter().map(|byte| format!("{byte:02x}")).collect();
        self.folder.join(name).with_extension("cubin")
    }
}

fn write_file(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let mut file = fs::File::create(path)?;
    parts.iter().try_for_each(|part| file.write_all(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new_key(nvrtc_version: [i32; 2], source: &CStr, options: &[&CStr]) -> KernelKey {
        let options: Vec<CString> = options.iter().copied().map(CString::from).collect();
        KernelKey::new(nvrtc_version, source, &options)
    }

    #[test]
    fn only_the_same_source_compiler_and_architecture_share_a_key() {
        let options = [c"--gpu-architecture=sm_90", c"-DELEMENT=bf16"];
        let key = new_key([13, 0], c"a", &options);
        assert_eq!(key, new_key([13, 0], c"a", &options));
        for other in [
            new_key([13, 0], c"b", &options),
            new_key([13, 1], c"a", &options),
            new_key([13, 0], c"a", &[c"--gpu-architecture=sm_100", c"-DELEMENT=bf16"]),
            new_key([13, 0], c"a--gpu-architecture=sm_90", &options[1..]),
        ] {
            assert_ne!(key, other);
        }
    }

    #[test]
    fn damaged_or_stale_machine_code_is_replaced() {
        let root = tempfile::tempdir().unwrap();
        let key = |source| new_key([13, 0], source, &[c"--gpu-architecture=sm_90"]);
        let cache = KernelCache { folder: root.path().join("not/made yet") };
        assert_eq!(cache.get(key(c"a")), None);
        cache.put(key(c"a"), b"machine code of a").unwrap();
        cache.put(key(c"b"), b"machine code of b").unwrap();
        assert_eq!(cache.get(key(c"a")).unwrap(), b"machine code of a");
        let intact = fs::read(cache.path(key(c"a"))).unwrap();
        let flipped = |at: usize| intact.iter().enumerate().map(|(i, b)| b ^ u8::from(i == at)).collect();
        let damaged: Vec<Vec<u8>> = (0..intact.len())
            .map(flipped)
            .chain((0..intact.len()).map(|length| intact[..length].to_vec()))
            .chain([[&intact[..], b"more"].concat(), fs::read(cache.path(key(c"b"))).unwrap()])
            .collect();
        for bytes in damaged {
            fs::write(cache.path(key(c"a")), &bytes).unwrap();
            assert_eq!(cache.get(key(c"a")), None, "{bytes:?}");
            cache.put(key(c"a"), b"machine code of a").unwrap();
            assert_eq!(fs::read(cache.path(key(c"a"))).unwrap(), intact);
        }
        // Nothing but the two files is left.
        assert_eq!(fs::read_dir(&cache.folder).unwrap().count(), 2);
    }
}
