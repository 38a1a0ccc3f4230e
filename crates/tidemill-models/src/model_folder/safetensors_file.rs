//! Safetensors files, read one tensor at a time.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::Metadata;
use tch::{Kind, Tensor};

use crate::Error;

/// The dtype of safetensors for a dtype of libtorch; `None` if no network has it.
pub fn to_safetensors_dtype(kind: Kind) -> Option<Dtype> {
    Some(match kind {
        Kind::Float => Dtype::F32,
        Kind::Half => Dtype::F16,
        Kind::BFloat16 => Dtype::BF16,
        Kind::Double => Dtype::F64,
        Kind::Int64 => Dtype::I64,
        _ => return None,
    })
}

fn to_kind(dtype: Dtype) -> Option<Kind> {
    Some(match dtype {
        Dtype::F32 => Kind::Float,
        Dtype::F16 => Kind::Half,
        Dtype::BF16 => Kind::BFloat16,
        Dtype::F64 => Kind::Double,
        Dtype::I64 => Kind::Int64,
        _ => return None,
    })
}

/// An open safetensors file. Only its header is in memory.
pub struct SafetensorsFile {
    path: PathBuf,
    file: File,
    header: Metadata,
    data_start: u64,
}

impl SafetensorsFile {
    /// Opens the file, and checks its header and length.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let invalid = |message: String| Error::Safetensors { path: path.into(), message };
        let mut file = File::open(path).map_err(Error::io(path))?;
        let length = file.metadata().map_err(Error::io(path))?.len();
        let mut size = [0u8; 8];
        file.read_exact(&mut size).map_err(|e| invalid(e.to_string()))?;
        let header_size = u64::from_le_bytes(size);
        if size == *b"version " {
            return Err(invalid("it is a git-lfs pointer: run `git lfs pull`".into()));
        }
        // The limit is that of the format; it also prevents the allocation of a corrupt size.
        if header_size > 100_000_000.min(length) {
            return Err(invalid(format!("it claims a header of {header_size} bytes")));
        }
        let mut json = vec![0u8; usize::try_from(header_size).unwrap_or(0)];
        file.read_exact(&mut json).map_err(|e| invalid(e.to_string()))?;
        let header: Metadata = serde_json::from_slice(&json).map_err(|e| invalid(e.to_string()))?;
        let claimed = (8 + header_size).saturating_add(header.data_len() as u64);
        if claimed != length {
            return Err(invalid(format!("it has {length} bytes where its header says {claimed}")));
        }
        Ok(Self { path: path.into(), file, header, data_start: 8 + header_size })
    }

    /// The names of its tensors, sorted.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.header.tensors().into_keys().collect();
        names.sort();
        names
    }

    /// Whether there is a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.header.info(name).is_some()
    }

    /// Reads a tensor.
    pub fn read(&mut self, name: &str) -> Result<Tensor, Error> {
        let invalid = |message: String| Error::Safetensors { path: self.path.clone(), message };
        let Some(info) = self.header.info(name) else {
            return Err(invalid(format!("no tensor {name}")));
        };
        let kind =
            to_kind(info.dtype).ok_or_else(|| invalid(format!("{name} has the dtype {:?}", info.dtype)))?;
        let (start, end) = info.data_offsets;
        let mut bytes = vec![0u8; end - start];
        self.file
            .seek(SeekFrom::Start(self.data_start + start as u64))
            .and_then(|_| self.file.read_exact(&mut bytes))
            .map_err(|e| invalid(format!("{name}: {e}")))?;
        Ok(tidemill_torch::guard(|| Tensor::from_data_size(&bytes, &self.shape(name), kind))?)
    }

    /// The shape of a tensor; empty if there is no such tensor.
    pub fn shape(&self, name: &str) -> Vec<i64> {
        let shape = self.header.info(name).map_or(&[][..], |info| &info.shape);
        shape.iter().map(|n| i64::try_from(*n).unwrap_or(0)).collect()
    }
}
