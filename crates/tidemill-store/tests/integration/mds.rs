//! MDS import and export: this crate reads what MosaicML's writer wrote, MosaicML's reader reads
//! what this crate wrote, and damaged files are named.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::*;
use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{Float64Type, Int64Type, UInt32Type, UInt64Type};
use bytes::Bytes;
use proptest::prelude::*;
use serde_json::Value;
use tidemill_store::mds::{
    Column, Export, Folder, Import, Index, LatentsKind, MdsWriter, Shard, WriteOptions, latent_resolutions,
};
use tidemill_store::{
    Bucket, Dataset, DatasetSpec, DatasetWriter, Digests, Error, Location, Split, TensorSpec, UnitKey,
};
use tidemill_testing::seed;

const FACTOR: f32 = 0.18215;

/// Runs `write_mds.py`, which writes folders with MosaicML's writer.
fn mosaicml_folders() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    python("write_mds.py", &[&seed().to_string(), folder.path().to_str().unwrap()]);
    folder
}

fn mds_spec() -> DatasetSpec {
    let latents = [(256, 4), (512, 8)].map(|(r, side)| (Bucket::square(r), TensorSpec::f16([4, side, side])));
    DatasetSpec {
        latents: latents.into(),
        latents_kind: "sample".into(),
        text: TensorSpec::f16([7, 16]),
        more_text: Default::default(),
        has_time_ids: false,
        ..spec(32, 0.0)
    }
}

/// Imports an MDS folder with one unit per shard.
fn import(mds: &Folder, empty: &[u8], to: &Path) -> Result<Dataset, Error> {
    import_as(mds_spec(), mds, empty, to)
}

/// [`import`] of columns of this form.
fn import_as(spec: DatasetSpec, mds: &Folder, empty: &[u8], to: &Path) -> Result<Dataset, Error> {
    let import = Import::new(spec.clone(), FACTOR, empty)?;
    let writer = DatasetWriter::open(to.to_str().unwrap(), spec, empty)?;
    let mut plan = Vec::new();
    for (shard, number) in mds.shards.iter().zip(0..) {
        let name = mds.files(shard).swap_remove(0);
        let key = UnitKey {
            file: name.clone(),
            identity: format!("{number}"),
            span: 0..shard.info.samples.into(),
            digests: Digests::default(),
        };
        plan.push(key.id());
        let mut unit = writer.begin_unit(&key);
        import.write(&mds.read(shard)?.0, &name, |row| hash(row, number), &mut unit)?;
        unit.commit()?;
    }
    writer.snapshot(&plan)?;
    Dataset::open(to.to_str().unwrap())
}

fn halves(folder: &Path, name: &str) -> Vec<u8> {
    fs::read(folder.join(format!("{name}.f16"))).unwrap()
}

#[test]
fn import_reads_shards_of_mosaicml() {
    let folder = mosaicml_folders();
    let expected: Vec<Value> =
        serde_json::from_slice(&fs::read(folder.path().join("expected.json")).unwrap()).unwrap();
    let spec = mds_spec();
    let text = halves(folder.path(), "text");
    let (empty, text) = text.split_at(spec.text.bytes());
    for (name, hashed) in [("plain", true), ("zstd", true), ("parts", false)] {
        let mds = Folder::open(folder.path().join(name).to_str().unwrap()).unwrap();
        assert!(mds.shards.len() > 1, "{name}");
        assert_eq!(latent_resolutions(&mds.shards[0].info.columns()), [256, 512]);
        assert!(mds.shards.iter().all(|shard| mds.read(shard).unwrap().1 == hashed), "{name}");
        let dataset = import(&mds, empty, &folder.path().join(format!("{name}-dataset"))).unwrap();
        assert!(dataset.verify(|_| ()).unwrap().damaged.is_empty());

        let batches: Vec<RecordBatch> = dataset.read_rows(&[]).map(Result::unwrap).collect();
        let rows = concat_batches(&batches[0].schema(), &batches).unwrap();
        check_rows(&rows, &expected);
        for resolution in [256, 512] {
            let (bucket, name) = (Bucket::square(resolution), resolution.to_string());
            let tensors = dataset.read_tensors(Split::Train, bucket, usize::MAX).unwrap();
            assert!(tensors.latents == halves(folder.path(), &name), "{name}");
            let usable = |row: &&Value| row["usable"].as_array().unwrap().contains(&resolution.into());
            let kept = expected.iter().filter(|row| row["fate"] == "kept");
            let kept = text.chunks(spec.text.bytes()).zip(kept).filter(|(_, row)| usable(row));
            let kept: Vec<u8> = kept.flat_map(|(text, _)| text.to_vec()).collect();
            assert!(tensors.text == [kept], "text at {name}");
        }
    }
}

/// Checks that the rows have the values and outcomes of the samples.
fn check_rows(rows: &RecordBatch, expected: &[Value]) {
    assert_eq!(rows.num_rows(), expected.len());
    let text = |name: &str, row: usize| rows[name].as_string::<i32>().value(row).to_owned();
    let fates = count_items(expected.iter().map(|row| row["fate"].as_str().unwrap()));
    assert!(fates.len() == 3 && fates["kept"] > 50, "{fates:?}");
    for (row, sample) in expected.iter().enumerate() {
        for name in ["key", "caption", "url"] {
            assert_eq!(text(name, row), sample[name].as_str().unwrap());
        }
        for name in ["width", "height"] {
            assert_eq!(u64::from(rows[name].as_primitive::<UInt32Type>().value(row)), sample[name]);
        }
        assert_eq!(rows["hash"].as_primitive::<Int64Type>().value(row), sample["hash"]);
        assert_eq!(
            rows["text_similarity"].as_primitive::<Float64Type>().value(row),
            sample["text_similarity"]
        );
        assert_eq!(text("status", row), sample["fate"].as_str().unwrap(), "{sample}");
        let reason = rows["reason"].as_string::<i32>();
        let reason = if reason.is_valid(row) { reason.value(row) } else { "" };
        match sample["fate"].as_str().unwrap() {
            "rejected" => assert_eq!(reason, "resolution"),
            "quarantined" => assert!(reason.starts_with("mds: "), "{reason}"),
            _ => assert_eq!(rows["caption_dropped"].as_boolean().value(row), sample["dropped"]),
        }
    }
    assert!(rows.column_by_name("jpg").is_none() && rows.column_by_name("caption_latents").is_none());
    let ids = rows["sample_id"].as_primitive::<UInt64Type>().values();
    assert_eq!(count_items(ids.iter().copied()).len(), expected.len());
}

#[test]
fn mosaicml_reads_exported_shards() {
    let folder = mosaicml_folders();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let text = halves(folder.path(), "text");
    let options = WriteOptions { zstd: Some(3), size_limit: 30_000 };
    let nothing: &(dyn Fn(u64, &mut [f32]) + Sync) = &|_, _| panic!("samples are there already");
    let export =
        Export { split: Split::Train, latents: LatentsKind::Sample(nothing), scaled_by: FACTOR, options };
    let mds = Folder::open(&path("plain")).unwrap();
    let dataset = import(&mds, &text[..mds_spec().text.bytes()], Path::new(&path("dataset"))).unwrap();
    let exported = export.run(&dataset, &path("again"), |_| ()).unwrap();
    assert!(exported.shards > 1 && exported.samples == dataset.totals().unwrap().rows.kept, "{exported:?}");
    python("read_mds.py", &["again", &path("plain"), &path("again")]);
    let error = export.run(&dataset, &path("again"), |_| ()).unwrap_err().to_string();
    assert!(error.contains("again/index.json: there is a finished folder"), "{error}");
    let mean = Export { latents: LatentsKind::Mean, ..export };
    let error = mean.run(&dataset, &path("mean"), |_| ()).unwrap_err().to_string();
    assert!(error.contains("holds a sample of each image"), "{error}");

    write_dataset(Path::new(&path("moments")), spec(32, 0.2), &[150, 3, 220 + seed() % 50]);
    let dataset = open(Path::new(&path("moments")));
    let draw = |id: u64, out: &mut [f32]| {
        out.iter_mut().zip(0..).for_each(|(x, i)| *x = (id % 1009 + i) as f32 / 1009.0 - 0.5);
    };
    let sample = Export { latents: LatentsKind::Sample(&draw), ..export };
    let plain = WriteOptions { zstd: None, size_limit: 50_000 };
    Export { options: plain, ..mean }.run(&dataset, &path("means"), |_| ()).unwrap();
    sample.run(&dataset, &path("samples"), |_| ()).unwrap();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/dataset-format.md");
    let (page, factor) = (page.to_str().unwrap(), FACTOR.to_string());
    python("read_mds.py", &["moments", page, &path("moments"), &path("means"), &path("samples"), &factor]);
    let buckets = write_dataset(Path::new(&path("buckets")), bucketed(spec(32, 0.2)), &[50]);
    assert_eq!(buckets.1.number, 1);
    let error = sample.run(&open(Path::new(&path("buckets"))), &path("x"), |_| ()).unwrap_err().to_string();
    assert!(error.contains("must be squares"), "{error}");
}

/// Text of a second encoder, pooled text, and sizes of image and crop go through MDS unchanged.
#[test]
fn columns_of_several_text_encoders_are_exported_and_imported() {
    let folder = tempfile::tempdir().unwrap();
    let [original, imported] = ["original", "imported"].map(|name| folder.path().join(name));
    write_dataset(&original, conditioned(spec(32, 0.2)), &[150, 3, 90 + seed() % 50]);
    let original = open(&original);
    let export = Export {
        split: Split::Train,
        latents: LatentsKind::Mean,
        scaled_by: FACTOR,
        options: WriteOptions { zstd: None, size_limit: 50_000 },
    };
    let mds = folder.path().join("mds");
    export.run(&original, mds.to_str().unwrap(), |_| ()).unwrap();

    let mut form = DatasetSpec { latents_kind: "sample".into(), ..original.spec().clone() };
    form.validation_share = 0.0;
    form.latents.values_mut().for_each(|latents| latents.shape[0] /= 2);
    let mds = Folder::open(mds.to_str().unwrap()).unwrap();
    let imported = import_as(form, &mds, original.empty_caption(), &imported).unwrap();
    assert_eq!(imported.totals().unwrap().rows.total_quarantined(), 0);
    for resolution in RESOLUTIONS {
        let [ours, theirs] = [&imported, &original].map(|dataset| {
            dataset.read_tensors(Split::Train, Bucket::square(resolution), usize::MAX).unwrap()
        });
        assert!(ours.sample_ids.len() > 20 && ours.text.len() == 3);
        assert!(ours.text == theirs.text && ours.time_ids == theirs.time_ids, "{resolution}");
    }
}

/// Writes an MDS folder. Column `a` has a fixed size, and `b` and `c` do not.
fn write_mds_folder(folder: &Path, samples: &[(u32, Vec<u8>, String)], options: WriteOptions) -> Index {
    let columns = vec![Column::new("c", "str"), Column::new("a", "uint32"), Column::new("b", "bytes")];
    let location = Location::open(folder.to_str().unwrap()).unwrap();
    let mut writer = MdsWriter::create(location, columns, options).unwrap();
    for (a, b, c) in samples {
        writer.write(&[&a.to_le_bytes(), b, c.as_bytes()]).unwrap();
    }
    writer.finish().unwrap()
}

#[test]
fn export_does_not_overwrite_another_export() {
    let (folder, zstd) = (tempfile::tempdir().unwrap(), WriteOptions { zstd: Some(3), ..Default::default() });
    let samples: Vec<_> = (0..4).map(|i| (i, vec![i as u8; 9], format!("caption {i}"))).collect();
    write_mds_folder(folder.path(), &samples, WriteOptions::default());
    let create = || {
        let location = Location::open(folder.path().to_str().unwrap()).unwrap();
        MdsWriter::create(location, vec![Column::new("a", "uint32")], zstd)
    };
    assert!(create().unwrap_err().to_string().contains("index.json: there is a finished folder"));
    fs::remove_file(folder.path().join("index.json")).unwrap();
    let error = create().unwrap_err().to_string();
    assert!(error.contains("shard.00000.mds: another export did not finish"), "{error}");
    fs::remove_file(folder.path().join("shard.00000.mds")).unwrap();

    // Two exports that start at the same time.
    let [mut one, mut other] = [create().unwrap(), create().unwrap()];
    one.write(&[&1u32.to_le_bytes()]).unwrap();
    other.write(&[&2u32.to_le_bytes()]).unwrap();
    one.finish().unwrap();
    assert!(other.finish().unwrap_err().to_string().contains("writes into the same folder"));
}

#[test]
fn damaged_folders_are_refused_by_file_name() {
    let samples: Vec<_> = (0..40).map(|i| (i, vec![i as u8; 9], format!("caption {i}"))).collect();
    type Damage = (&'static str, fn(&Path), &'static str);
    let cases: [Damage; 9] = [
        ("shard.00001.mds", |file| truncate(file, 1), "bytes, but its index says"),
        ("shard.00001.mds", |file| flip(file, 300), "has the xxh64"),
        ("shard.00001.mds", |file| fs::remove_file(file).unwrap(), "is missing"),
        ("shard.00000.mds.zstd", |file| flip(file, 40), "has the xxh64"),
        ("index.json", |file| truncate(file, 10), "is not an index of MDS shards"),
        ("index.json", |file| replace(file, "\"version\":2}", "\"version\":1}"), "has version 1"),
        ("index.json", |file| replace(file, "shard.00001.mds", "../00000000.mds"), "is not a path below"),
        ("index.json", |file| replace(file, "\"zstd:3\"", "\"br:3\""), "its compression is br:3"),
        ("index.json", |file| fs::remove_file(file).unwrap(), "there is no index.json in or below it"),
    ];
    for (name, damage, message) in cases {
        let folder = tempfile::tempdir().unwrap();
        let zstd = (name.ends_with("zstd") || message.contains("br:3")).then_some(3);
        write_mds_folder(folder.path(), &samples, WriteOptions { zstd, size_limit: 900 });
        damage(&folder.path().join(name));
        let read = || {
            Folder::open(folder.path().to_str().unwrap())
                .and_then(|mds| mds.shards.iter().try_for_each(|shard| mds.read(shard).map(|_| ())))
        };
        let error = read().unwrap_err().to_string();
        let named = error.contains(name) || !folder.path().join(name).exists();
        assert!(named && error.contains(message), "{name}: {error}");
    }
}

#[test]
fn tensors_of_other_models_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let location = Location::open(folder.path().join("mds").to_str().unwrap()).unwrap();
    let columns = ["caption_latents", "latents_256", "latents_512"].map(|name| Column::new(name, "bytes"));
    let mut writer = MdsWriter::create(location, columns.into(), WriteOptions::default()).unwrap();
    writer.write(&[&[0; 2 * 7 * 16], &[0; 2 * 3 * 4 * 4], &[]]).unwrap();
    writer.finish().unwrap();
    let mds = Folder::open(folder.path().join("mds").to_str().unwrap()).unwrap();
    let empty = vec![0; mds_spec().text.bytes()];
    let error = import(&mds, &empty, &folder.path().join("dataset")).unwrap_err().to_string();
    let wanted = "mds/shard.00000.mds: sample 0: `latents_256` has 96 bytes, but with the models given it would have 128";
    assert!(error.contains(wanted), "{error}");
    assert!(Import::new(mds_spec(), 0.0, &empty).is_err());
}

fn truncate(file: &Path, bytes: u64) {
    let length = fs::metadata(file).unwrap().len();
    fs::OpenOptions::new().write(true).open(file).unwrap().set_len(length - bytes).unwrap();
}

fn flip(file: &Path, at: usize) {
    let mut bytes = fs::read(file).unwrap();
    bytes[at] ^= 1;
    fs::write(file, bytes).unwrap();
}

fn replace(file: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(file).unwrap();
    assert!(text.contains(from), "{text}");
    fs::write(file, text.replace(from, to)).unwrap();
}

/// Parses what the fuzz target parses: an index in the first line, then a shard.
fn parse(bytes: &[u8]) -> u64 {
    let cut = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let (line, content) = bytes.split_at(cut);
    let Ok(index) = Index::parse(line) else { return 0 };
    let content = Bytes::copy_from_slice(content.get(1..).unwrap_or_default());
    let mut good = 0;
    for info in &index.shards {
        let zipped = info.files().next().and_then(|file| Shard::read(info, file, content.clone()).ok());
        let raw = Shard::parse(content.clone(), info.columns(), info.samples).ok();
        for shard in zipped.map(|(shard, _)| shard).into_iter().chain(raw) {
            good += (0..shard.len()).filter(|i| shard.sample(*i).is_ok()).count() as u64;
        }
    }
    good
}

#[test]
fn fuzz_corpus_parses_as_expected() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/mds");
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let good = parse(&fs::read(&path).unwrap());
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        assert_eq!(good > 0, ["plain", "zstd"].contains(&name.as_str()), "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Written samples read back, and shards respect their size limit.
    #[test]
    fn any_samples_round_trip(
        samples in prop::collection::vec((any::<u32>(), prop::collection::vec(any::<u8>(), 0..200), ".{0,20}"), 1..60),
        zstd in prop::option::of(1..10), size_limit in 600_u32..5000,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let index = write_mds_folder(folder.path(), &samples, WriteOptions { zstd, size_limit });
        let mds = Folder::open(folder.path().to_str().unwrap()).unwrap();
        prop_assert_eq!(mds.shards.len(), index.shards.len());
        let mut found = Vec::new();
        for shard in &mds.shards {
            let (read, compared) = mds.read(shard).unwrap();
            prop_assert!(compared && (shard.info.raw_data.bytes <= size_limit.into() || read.len() == 1));
            for i in 0..read.len() {
                let values = read.sample(i).unwrap();
                let a = u32::from_le_bytes(values[0].try_into().unwrap());
                found.push((a, values[1].to_vec(), String::from_utf8(values[2].to_vec()).unwrap()));
            }
        }
        prop_assert_eq!(found, samples);
    }

    /// A damaged shard gives samples or errors. It never panics and never gives more samples than
    /// it has.
    #[test]
    fn damaged_shards_never_panic(
        flips in prop::collection::vec((0.0..1.0_f64, any::<u8>()), 0..6), cut in 0.0..1.0_f64,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let samples: Vec<_> = (0..9).map(|i| (i, vec![1; 5], "x".into())).collect();
        let index = write_mds_folder(folder.path(), &samples, WriteOptions::default());
        let mut bytes = fs::read(folder.path().join("shard.00000.mds")).unwrap();
        for (fraction, value) in flips {
            let at = (fraction * bytes.len() as f64) as usize;
            bytes[at] = value;
        }
        bytes.truncate((bytes.len() as f64 * (1.0 - cut * cut)) as usize);
        if let Ok(shard) = Shard::parse(bytes.into(), index.shards[0].columns(), 9) {
            let good = (0..shard.len() + 1).filter(|i| shard.sample(*i).is_ok()).count();
            prop_assert!(good <= 9);
        }
    }
}
