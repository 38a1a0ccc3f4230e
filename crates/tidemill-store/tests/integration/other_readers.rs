//! Other tools read a dataset without this crate. The recipe of docs/dataset-format.md, run by
//! pyarrow and DuckDB, gives the bytes that were written, and torch computes the same 8-bit floats.
//! Ray Data runs it in `tests/test_ray_preprocess.py`.

use std::path::Path;

use crate::support::*;
use tidemill_store::{ColumnGroup, DatasetSpec, Dtype, Split, TensorSpec};
use tidemill_testing::seed;

#[test]
fn pyarrow_duckdb_and_torch_read_a_dataset() {
    let folders =
        [TensorSpec::f16([7, 5]), form(Dtype::F8E4m3, &[7, 5]), form(Dtype::I32, &[9])].map(write_with_text);
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/dataset-format.md");
    let paths = [page.as_path()].into_iter().chain(folders.iter().map(|folder| folder.path()));
    python("read_dataset.py", &paths.map(|path| path.to_str().unwrap()).collect::<Vec<_>>());
}

fn form(dtype: Dtype, shape: &[u32]) -> TensorSpec {
    TensorSpec { dtype, shape: shape.into() }
}

/// Writes a dataset with text in this form, and beside it what its tensors must be.
fn write_with_text(text: TensorSpec) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("dataset");
    let given = text.decoded().bytes();
    let spec = DatasetSpec { text, ..bucketed(spec(32, 0.2)) };
    write_dataset(&root, spec, &[150, 3, 220 + seed() % 50]);
    let dataset = open(&root);
    let totals = dataset.totals().unwrap();
    let mut expected = serde_json::json!({ "rows": totals.rows, "tensors": {} });
    for split in Split::ALL {
        for bucket in dataset.spec().latents.keys().filter(|bucket| dataset.num_rows(split, **bucket) > 0) {
            let tensors = dataset.read_tensors(split, *bucket, usize::MAX).unwrap();
            let name = ColumnGroup::Latents(split, *bucket).to_string();
            std::fs::write(folder.path().join(format!("{name}.latents")), &tensors.latents).unwrap();
            std::fs::write(folder.path().join(format!("{name}.text")), &tensors.text[0]).unwrap();
            let written: Vec<u8> =
                tensors.sample_ids.iter().flat_map(|id| tensor(*id, "text", given)).collect();
            std::fs::write(folder.path().join(format!("{name}.written")), written).unwrap();
            expected["tensors"][name] = tensors.sample_ids.into();
        }
    }
    std::fs::write(folder.path().join("expected.json"), expected.to_string()).unwrap();
    folder
}
