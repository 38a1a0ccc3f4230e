//! Scenes as LAION-like Parquet. Each row is a function of the seed and its number alone, so files can be drawn on
//! all cores and still come out the same.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryArray, Float64Array, Int64Array, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use rand::seq::index;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use turbojpeg::{Image, PixelFormat, Subsamp};

use crate::caption::caption;
use crate::config::{Broken, SynthConfig, SynthReport};
use crate::draw::draw;
use crate::error::{Error, Result};
use crate::picture::Picture;
use crate::scene::{Scene, random_scene};

/// One row before it becomes columns.
struct Row {
    key: String,
    caption: Option<String>,
    jpg: Option<Vec<u8>>,
    width: i64,
    height: i64,
    score: f64,
    scene: Scene,
}

/// Draws `config.rows` captioned scenes into `out_dir` as `scenes-00000.parquet`, ..., and their report as `synth.json`. Files
/// of an earlier call that had more of them are removed.
///
/// Columns: `key`, `caption` (nullable), `jpg` (Binary, nullable), `width`, `height` (Int64, pixels), `score` (Float64, 4 to 7),
/// and what the scene shows: `size`, `colour`, `shape`, `place`.
///
/// # Errors
/// A setting that cannot be met, or a folder that cannot be written.
pub fn synth(config: &SynthConfig, out_dir: &Path) -> Result<SynthReport> {
    config.validate()?;
    std::fs::create_dir_all(out_dir).map_err(|source| Error::Io { path: out_dir.into(), source })?;
    remove_from(config.files, out_dir).map_err(|source| Error::Io { path: out_dir.into(), source })?;
    let broken = plan_broken(config);
    let files = (0..config.files)
        .into_par_iter()
        .map(|i| write_file(config, &broken, i, out_dir))
        .collect::<Result<Vec<PathBuf>>>()?;
    let report = SynthReport {
        config: config.clone(),
        rows: config.rows,
        bytes: files.iter().map(|path| size_of_file(path)).sum::<Result<u64>>()?,
        files,
        broken: count(&broken),
    };
    let path = out_dir.join("synth.json");
    let write = || serde_json::to_writer_pretty(File::create(&path)?, &report).map_err(Into::into);
    write().map_err(|source| Error::Io { path: path.clone(), source })?;
    Ok(report)
}

/// Removes the scenes' files from this number on, which an earlier call left: whoever reads the folder would take them in.
fn remove_from(first: usize, out_dir: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(out_dir)? {
        let entry = entry?;
        let number = entry.file_name().to_str().and_then(file_number);
        if number.is_some_and(|number| number >= first) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn file_name(file: usize) -> String {
    format!("scenes-{file:05}.parquet")
}

/// The number of the file of this name, if it is one of the scenes' files.
fn file_number(name: &str) -> Option<usize> {
    let number = name.strip_prefix("scenes-")?.strip_suffix(".parquet")?.parse().ok()?;
    (file_name(number) == name).then_some(number)
}

/// Which rows are broken, and how.
fn plan_broken(config: &SynthConfig) -> HashMap<usize, Broken> {
    let mut rng = ChaCha8Rng::seed_from_u64(config.seed);
    let rows = index::sample(&mut rng, config.rows, config.broken_rows());
    rows.into_iter().zip(Broken::ALL.iter().copied().cycle()).collect()
}

fn count(broken: &HashMap<usize, Broken>) -> BTreeMap<Broken, usize> {
    let mut counts: BTreeMap<_, _> = Broken::ALL.iter().map(|&way| (way, 0)).collect();
    for way in broken.values() {
        *counts.entry(*way).or_default() += 1;
    }
    counts
}

fn size_of_file(path: &Path) -> Result<u64> {
    let metadata = path.metadata().map_err(|source| Error::Io { path: path.into(), source })?;
    Ok(metadata.len())
}

fn write_file(
    config: &SynthConfig,
    broken: &HashMap<usize, Broken>,
    file: usize,
    out_dir: &Path,
) -> Result<PathBuf> {
    let path = out_dir.join(file_name(file));
    let first = config.rows * file / config.files;
    let end = config.rows * (file + 1) / config.files;
    let parquet_error = |source| Error::Parquet { path: path.clone(), source };

    let handle = File::create(&path).map_err(|source| Error::Io { path: path.clone(), source })?;
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_max_row_group_row_count(Some(config.row_group_rows))
        .build();
    let schema = batch(&[])?.schema();
    let mut writer = ArrowWriter::try_new(handle, schema, Some(properties)).map_err(parquet_error)?;
    for start in (first..end).step_by(config.row_group_rows) {
        let rows = (start..end.min(start + config.row_group_rows))
            .into_par_iter()
            .map(|i| row(config, i, broken.get(&i).copied()))
            .collect::<Result<Vec<_>>>()?;
        writer.write(&batch(&rows)?).map_err(parquet_error)?;
    }
    writer.close().map_err(parquet_error)?;
    Ok(path)
}

/// Row number `i`, whatever the others are.
fn row(config: &SynthConfig, i: usize, broken: Option<Broken>) -> Result<Row> {
    let mut rng = ChaCha8Rng::seed_from_u64(config.seed);
    // Stream 0 belongs to `plan_broken`.
    rng.set_stream(i as u64 + 1);
    let scene = random_scene(config.combinations, &mut rng);
    let mut side = || rng.random_range(config.min_side..=config.max_side);
    let picture = draw(&scene, side(), side())?;
    let mut row = Row {
        key: format!("{i:09}"),
        caption: Some(caption(&scene, &mut rng)),
        jpg: Some(encode(&picture, &mut rng)?),
        width: picture.width as i64,
        height: picture.height as i64,
        score: rng.random_range(4.0..7.0),
        scene,
    };
    if let Some(way) = broken {
        break_row(&mut row, way);
    }
    Ok(row)
}

fn encode(picture: &Picture, rng: &mut impl Rng) -> Result<Vec<u8>> {
    let subsampling = if rng.random_bool(0.5) { Subsamp::Sub2x2 } else { Subsamp::None };
    let image = Image {
        pixels: picture.rgb.as_slice(),
        width: picture.width,
        pitch: 3 * picture.width,
        height: picture.height,
        format: PixelFormat::RGB,
    };
    Ok(turbojpeg::compress(image, rng.random_range(92..=95), subsampling)?.to_vec())
}

fn break_row(row: &mut Row, way: Broken) {
    let jpg = row.jpg.take().unwrap_or_default();
    row.jpg = match way {
        Broken::TruncatedJpeg => Some(jpg[..jpg.len() / 2].to_vec()),
        Broken::ZeroBytes => Some(vec![0; jpg.len()]),
        Broken::WrongMagic => Some([&b"XX"[..], &jpg[2..]].concat()),
        Broken::EmptyImage => Some(Vec::new()),
        Broken::NullImage => None,
        Broken::NullCaption | Broken::NanScore => Some(jpg),
    };
    match way {
        Broken::NullCaption => row.caption = None,
        Broken::NanScore => row.score = f64::NAN,
        _ => {}
    }
}

fn batch(rows: &[Row]) -> Result<RecordBatch> {
    let words = |word: fn(&Scene) -> &'static str| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(rows.iter().map(|r| word(&r.scene))))
    };
    let columns: [(&str, ArrayRef, bool); 10] = [
        ("key", Arc::new(StringArray::from_iter_values(rows.iter().map(|r| &r.key))), false),
        ("caption", Arc::new(StringArray::from_iter(rows.iter().map(|r| r.caption.as_deref()))), true),
        ("jpg", Arc::new(BinaryArray::from_iter(rows.iter().map(|r| r.jpg.as_deref()))), true),
        ("width", Arc::new(Int64Array::from_iter_values(rows.iter().map(|r| r.width))), false),
        ("height", Arc::new(Int64Array::from_iter_values(rows.iter().map(|r| r.height))), false),
        ("score", Arc::new(Float64Array::from_iter_values(rows.iter().map(|r| r.score))), false),
        ("size", words(|scene| scene.size.word()), false),
        ("colour", words(|scene| scene.colour.word()), false),
        ("shape", words(|scene| scene.shape.word()), false),
        ("place", words(|scene| scene.place.word()), false),
    ];
    Ok(RecordBatch::try_from_iter_with_nullable(columns)?)
}
