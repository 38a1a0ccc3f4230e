//! The cases that Python makes, once for all tests of this binary.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use tch::Tensor;
use tidemill_models::Conditions;

static CASES: OnceLock<tempfile::TempDir> = OnceLock::new();

/// The folder that `make_cases.py` filled for `subject`. libtorch gets as many threads as it had in
/// Python.
pub fn folder(subject: &str) -> PathBuf {
    tch::set_num_threads(1);
    let seed = tidemill_testing::seed().to_string();
    let dir = CASES.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        python("make_cases.py", &[dir.path().to_str().unwrap(), &seed]);
        dir
    });
    dir.path().join(subject)
}

/// The seed of the cases, for numbers that a test draws itself.
pub fn seed() -> i64 {
    i64::try_from(tidemill_testing::seed()).unwrap()
}

/// Runs a script of this folder.
pub fn python(script: &str, arguments: &[&str]) {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/parity");
    tidemill_testing::python(&scripts.join(script), arguments);
}

/// The cases of a subject, in order.
pub fn cases(subject: &str) -> Vec<Case> {
    let mut folders: Vec<PathBuf> =
        std::fs::read_dir(folder(subject)).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    folders.into_iter().map(Case::open).collect()
}

/// One case: a folder with a model or a configuration, and `case.safetensors` with inputs and
/// results.
pub struct Case {
    pub dir: PathBuf,
    tensors: HashMap<String, Tensor>,
}

impl Case {
    fn open(dir: PathBuf) -> Self {
        let tensors = Tensor::read_safetensors(dir.join("case.safetensors")).unwrap();
        Self { dir, tensors: tensors.into_iter().collect() }
    }

    pub fn tensor(&self, name: &str) -> &Tensor {
        &self.tensors[name]
    }

    /// What the case's U-Net is conditioned on.
    pub fn conditions(&self) -> Conditions {
        let optional = |name: &str| self.tensors.get(name).map(Tensor::shallow_clone);
        Conditions {
            text: self.tensor("text").shallow_clone(),
            pooled: optional("pooled"),
            time_ids: optional("time_ids"),
        }
    }

    /// The names with this prefix, without the prefix.
    pub fn names(&self, prefix: &str) -> Vec<&str> {
        self.tensors.keys().filter_map(|name| name.strip_prefix(prefix)).collect()
    }

    /// `case.json`: the values that are not tensors.
    pub fn json(&self) -> serde_json::Value {
        json(&self.dir.join("case.json"))
    }

    /// Subject, number and configuration of the case in one line, for messages.
    pub fn label(&self) -> String {
        let config = std::fs::read_to_string(self.dir.join("config.json")).unwrap_or_default();
        format!("{}: {}", self.dir.display(), config.split_whitespace().collect::<String>())
    }
}

pub fn json(path: &Path) -> serde_json::Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}
