//! The cases that Python made, once for all tests of this binary.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};
use tch::Tensor;

static CASES: OnceLock<(tempfile::TempDir, u64)> = OnceLock::new();

/// The folder that `make_cases.py` filled for `subject`. libtorch is set to the threads Python had.
pub fn folder(subject: &str) -> PathBuf {
    tch::set_num_threads(1);
    let (dir, _) = CASES.get_or_init(|| {
        let seed = std::env::var("TIDEMILL_SEED").map_or_else(|_| clock(), |s| s.parse().unwrap());
        println!("TIDEMILL_SEED={seed} repeats these cases");
        let dir = tempfile::tempdir().unwrap();
        python("make_cases.py", &[dir.path().to_str().unwrap(), &seed.to_string()]);
        (dir, seed)
    });
    dir.path().join(subject)
}

/// The seed the cases were drawn from, for what a test itself draws.
pub fn seed() -> i64 {
    folder("");
    i64::try_from(CASES.get().unwrap().1).unwrap()
}

fn clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// Runs a script that lies beside this file; its output is this test's.
pub fn python(script: &str, arguments: &[&str]) {
    let python = std::env::var("TIDEMILL_PYTHON").expect("TIDEMILL_PYTHON: the .venv's interpreter");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parity").join(script);
    let output = Command::new(python).arg(path).args(arguments).output().unwrap();
    println!("{}", String::from_utf8_lossy(&output.stdout));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script} failed:\n{errors}");
}

/// The cases of a subject, in order.
pub fn cases(subject: &str) -> Vec<Case> {
    let mut folders: Vec<PathBuf> =
        std::fs::read_dir(folder(subject)).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    folders.into_iter().map(Case::open).collect()
}

/// One case: a folder with a model or a configuration, and `case.safetensors` with inputs and results.
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

    /// The names that begin with `prefix`, without it.
    pub fn names(&self, prefix: &str) -> Vec<&str> {
        self.tensors.keys().filter_map(|name| name.strip_prefix(prefix)).collect()
    }

    /// `case.json`: what is no tensor.
    pub fn json(&self) -> serde_json::Value {
        json(&self.dir.join("case.json"))
    }

    /// For messages: the subject and number of the case, and its configuration in one line.
    pub fn label(&self) -> String {
        let config = std::fs::read_to_string(self.dir.join("config.json")).unwrap_or_default();
        format!("{}: {}", self.dir.display(), config.split_whitespace().collect::<String>())
    }
}

pub fn json(path: &Path) -> serde_json::Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}
