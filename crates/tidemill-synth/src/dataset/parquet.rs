//! Writes scenes as LAION-like Parquet. Each row depends only on the seed and its number, so files
//! that are drawn on all cores are still reproducible.

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

use crate::dataset::config::{SynthConfig, SynthReport};
use crate::dataset::defect::Defect;
use crate::drawing::{Scene, draw_scene, random_caption, random_scene};
use crate::error::{Error, Result};
use crate::image::RgbImage;

/// One row of the table.
struct Row {
    key: String,
    caption: Option<String>,
    jpg: Option<Vec<u8>>,
    width: i64,
    height: i64,
    score: f64,
    scene: Scene,
}

/// Draws `config.rows` captioned scenes and writes them to `out_dir` as `scenes-00000.parquet` and
/// so on, with a report in `synth.json`. Removes surplus files of an earlier call that wrote more
/// files.
///
/// Columns: `key`, `caption` (nullable), `jpg` (Binary, nullable), `width` and `height` (Int64,
/// pixels), `score` (Float64, 4 to 7), and the scene's attributes `size`, `colour`, `shape` and
/// `place`.
///
/// # Errors
/// If a setting is invalid, or the folder cannot be written.
pub fn write_scenes(config: &SynthConfig, out_dir: &Path) -> Result<SynthReport> {
    config.validate()?;
    std::fs::create_dir_all(out_dir).map_err(|source| Error::Io { path: out_dir.into(), source })?;
    remove_surplus_files(config.files, out_dir)
        .map_err(|source| Error::Io { path: out_dir.into(), source })?;
    let defects = choose_defects(config);
    let files = (0..config.files)
        .into_par_iter()
        .map(|i| write_file(config, &defects, i, out_dir))
        .collect::<Result<Vec<PathBuf>>>()?;
    let report = SynthReport {
        config: config.clone(),
        rows: config.rows,
        bytes: files.iter().map(|path| size_of_file(path)).sum::<Result<u64>>()?,
        files,
        broken: count_defects(&defects),
    };
    let path = out_dir.join("synth.json");
    let write = || serde_json::to_writer_pretty(File::create(&path)?, &report).map_err(Into::into);
    write().map_err(|source| Error::Io { path: path.clone(), source })?;
    Ok(report)
}

/// Removes the files from number `first` on. An earlier call wrote them, and readers of the folder
/// would include them.
fn remove_surplus_files(first: usize, out_dir: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(out_dir)? {
        let entry = entry?;
        let number = entry.file_name().to_str().and_then(parse_file_number);
        if number.is_some_and(|number| number >= first) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn file_name(file: usize) -> String {
    format!("scenes-{file:05}.parquet")
}

/// The number of a file of this dataset; `None` for other file names.
fn parse_file_number(name: &str) -> Option<usize> {
    let number = name.strip_prefix("scenes-")?.strip_suffix(".parquet")?.parse().ok()?;
    (file_name(number) == name).then_some(number)
}

/// Chooses the broken rows and their defects.
fn choose_defects(config: &SynthConfig) -> HashMap<usize, Defect> {
    let mut rng = ChaCha8Rng::seed_from_u64(config.seed);
    let rows = index::sample(&mut rng, config.rows, config.count_broken_rows());
    rows.into_iter().zip(Defect::ALL.iter().copied().cycle()).collect()
}

fn count_defects(defects: &HashMap<usize, Defect>) -> BTreeMap<Defect, usize> {
    let mut counts: BTreeMap<_, _> = Defect::ALL.iter().map(|&defect| (defect, 0)).collect();
    for defect in defects.values() {
        *counts.entry(*defect).or_default() += 1;
    }
    counts
}

fn size_of_file(path: &Path) -> Result<u64> {
    let metadata = path.metadata().map_err(|source| Error::Io { path: path.into(), source })?;
    Ok(metadata.len())
}

fn write_file(
    config: &SynthConfig,
    defects: &HashMap<usize, Defect>,
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
    let schema = to_record_batch(&[])?.schema();
    let mut writer = ArrowWriter::try_new(handle, schema, Some(properties)).map_err(parquet_error)?;
    for start in (first..end).step_by(config.row_group_rows) {
        let rows = (start..end.min(start + config.row_group_rows))
            .into_par_iter()
            .map(|i| draw_row(config, i, defects.get(&i).copied()))
            .collect::<Result<Vec<_>>>()?;
        writer.write(&to_record_batch(&rows)?).map_err(parquet_error)?;
    }
    writer.close().map_err(parquet_error)?;
    Ok(path)
}

/// Draws row number `i`, independently of all other rows.
fn draw_row(config: &SynthConfig, i: usize, defect: Option<Defect>) -> Result<Row> {
    let mut rng = ChaCha8Rng::seed_from_u64(config.seed);
    // `choose_defects` uses stream 0.
    rng.set_stream(i as u64 + 1);
    let scene = random_scene(config.combinations, &mut rng);
    let mut side = || rng.random_range(config.min_side..=config.max_side);
    let image = draw_scene(&scene, side(), side())?;
    let mut row = Row {
        key: format!("{i:09}"),
        caption: Some(random_caption(&scene, &mut rng)),
        jpg: Some(encode_jpeg(&image, &mut rng)?),
        width: image.width as i64,
        height: image.height as i64,
        score: rng.random_range(4.0..7.0),
        scene,
    };
    if let Some(defect) = defect {
        break_row(&mut row, defect);
    }
    Ok(row)
}

fn encode_jpeg(image: &RgbImage, rng: &mut impl Rng) -> Result<Vec<u8>> {
    let subsampling = if rng.random_bool(0.5) { Subsamp::Sub2x2 } else { Subsamp::None };
    let pixels = Image {
        pixels: image.rgb.as_slice(),
        width: image.width,
        pitch: 3 * image.width,
        height: image.height,
        format: PixelFormat::RGB,
    };
    Ok(turbojpeg::compress(pixels, rng.random_range(92..=95), subsampling)?.to_vec())
}

fn break_row(row: &mut Row, defect: Defect) {
    let jpg = row.jpg.take().unwrap_or_default();
    row.jpg = match defect {
        Defect::TruncatedJpeg => Some(jpg[..jpg.len() / 2].to_vec()),
        Defect::ZeroBytes => Some(vec![0; jpg.len()]),
        Defect::WrongMagic => Some([&b"XX"[..], &jpg[2..]].concat()),
        Defect::EmptyImage => Some(Vec::new()),
        Defect::NullImage => None,
        Defect::NullCaption | Defect::NanScore => Some(jpg),
    };
    match defect {
        Defect::NullCaption => row.caption = None,
        Defect::NanScore => row.score = f64::NAN,
        _ => {}
    }
}

fn to_record_batch(rows: &[Row]) -> Result<RecordBatch> {
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
