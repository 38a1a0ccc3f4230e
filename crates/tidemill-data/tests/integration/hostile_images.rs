//! Damaged and truncated images and images with false headers: an error, never a panic. The inputs
//! are the fuzzer's corpus, small files of every kind of each format.

use std::path::Path;

use tidemill_data::decode::{self, Rendering, Scale};
use tidemill_data::{RowError, resize};

fn corpus() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/decode");
    let files = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let files = files.map(|file| file.unwrap().path());
    let mut corpus: Vec<_> = files
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(path).unwrap()))
        .collect();
    corpus.sort();
    assert!(corpus.len() >= 20);
    corpus
}

fn file(name: &str) -> Vec<u8> {
    corpus().into_iter().find(|(found, _)| found == name).unwrap_or_else(|| panic!("no {name}")).1
}

/// Checks the same properties as the fuzzer.
fn decodes_or_fails(name: &str, bytes: &[u8]) -> Result<decode::Rgb8, RowError> {
    let info = decode::probe(bytes);
    let image = decode::decode(bytes);
    if let Ok(image) = &image {
        let info = info.unwrap_or_else(|e| panic!("{name} is decoded, but not probed: {e}"));
        assert_eq!((image.width, image.height), (info.width, info.height), "{name}");
        assert_eq!(image.pixels.len(), 3 * image.width as usize * image.height as usize, "{name}");
    }
    if let Ok(half) = decode::decode_strip(bytes, Scale::smallest_for([(2, 1)]), None, Rendering::default())
        .map(|strip| strip.image)
    {
        assert_eq!(half.pixels.len(), 3 * half.width as usize * half.height as usize, "{name}");
    }
    image
}

/// Corpus files with an extension are complete images. The others are invalid or were found by the
/// fuzzer.
fn is_whole(name: &str) -> bool {
    name.contains('.')
}

#[test]
fn fuzz_corpus_of_images_is_replayed() {
    let errors = corpus().into_iter().filter_map(|(name, bytes)| {
        let error = decodes_or_fails(&name, &bytes).err()?;
        is_whole(&name).then(|| format!("{name}: {error}"))
    });
    assert_eq!(errors.collect::<Vec<_>>(), Vec::<String>::new());
}

#[test]
fn truncated_image_is_an_error() {
    for (name, bytes) in corpus().into_iter().filter(|(name, _)| is_whole(name)) {
        for length in (0..bytes.len()).step_by(1 + bytes.len() / 200) {
            let image = decodes_or_fails(&name, &bytes[..length]);
            // The end of the pixels is known for these formats. Others may have unused bytes after
            // the pixels.
            if name.ends_with(".jpg") && length < bytes.len() - 2 {
                assert!(image.is_err(), "{name} cut to {length} of {} bytes", bytes.len());
            }
        }
    }
}

#[test]
fn jpeg_without_end_marker_is_decoded() {
    for name in ["baseline.jpg", "turned.jpg", "cmyk.jpg"] {
        let bytes = file(name);
        let whole = decode::decode(&bytes).unwrap();
        assert_eq!(decode::decode(&bytes[..bytes.len() - 2]).unwrap(), whole, "{name}");
    }
    // Scans could be missing too, which cannot be detected.
    let bytes = file("progressive.jpg");
    assert!(decode::decode(&bytes[..bytes.len() - 2]).is_err());
}

/// Writes width and height into the header.
fn resized(name: &str, width: u16, height: u16) -> Vec<u8> {
    let mut bytes = file(name);
    let little = [width.to_le_bytes(), height.to_le_bytes()];
    match name {
        "baseline.jpg" => {
            let frame = bytes.windows(2).position(|marker| marker == [0xff, 0xc0]).unwrap();
            bytes[frame + 5..frame + 7].copy_from_slice(&height.to_be_bytes());
            bytes[frame + 7..frame + 9].copy_from_slice(&width.to_be_bytes());
        }
        "rgb.png" => {
            bytes[18..20].copy_from_slice(&width.to_be_bytes());
            bytes[22..24].copy_from_slice(&height.to_be_bytes());
            let crc = crc32(&bytes[12..29]);
            bytes[29..33].copy_from_slice(&crc.to_be_bytes());
        }
        "one.gif" => bytes[6..10].copy_from_slice(&little.concat()),
        "rgb.bmp" => {
            bytes[18..20].copy_from_slice(&little[0]);
            bytes[22..24].copy_from_slice(&little[1]);
        }
        "raw.tiff" => {
            for (tag, value) in [(256_u16, little[0]), (257, little[1])] {
                let entry = tag.to_le_bytes();
                let at = bytes.windows(2).position(|found| found == entry).unwrap();
                bytes[at + 8..at + 10].copy_from_slice(&value);
            }
        }
        _ => panic!("no way to resize {name}"),
    }
    bytes
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for &byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xedb8_8320 & 0_u32.wrapping_sub(crc & 1));
        }
    }
    !crc
}

#[test]
fn false_size_in_a_header_is_refused_before_allocation() {
    for name in ["baseline.jpg", "rgb.png", "one.gif", "rgb.bmp", "raw.tiff"] {
        let bomb = resized(name, 30_000, 30_000);
        let error = decode::decode(&bomb).unwrap_err();
        // In a TIFF the strips do not add up to that size, which is detected first.
        let strips = matches!(&error, RowError::Damaged(text) if text.contains("inconsistent sizes"));
        let size = matches!(&error, RowError::Size(text) if text.contains("30000x30000"));
        assert!(size || strips && name == "raw.tiff", "{name}: {error}");
        assert_eq!(decode::probe(&bomb).unwrap_err(), error, "{name}");

        let nothing = resized(name, 0, 0);
        assert!(decode::probe(&nothing).is_err() && decode::decode(&nothing).is_err(), "{name}");
        // The size is larger than the data, but within bounds.
        if name != "one.gif" {
            assert!(decode::decode(&resized(name, 3000, 3000)).is_err(), "{name}");
        }
    }
}

/// After a damaged image, the next image on the same thread is decoded as always.
#[test]
fn damaged_image_does_not_affect_the_next_one() {
    let (bytes, next) = (file("progressive.jpg"), file("baseline.jpg"));
    let (info, pixels) = (decode::probe(&next).unwrap(), decode::decode(&next).unwrap());
    let tables = [&[0xff, 0xd8][..], &bytes[2..bytes.len().min(90)], &[0xff, 0xd9]].concat();
    let cuts = (0..bytes.len()).map(|end| bytes[..end].to_vec());
    for damaged in cuts.chain([tables]) {
        let length = damaged.len();
        let _ = decode::probe(&damaged);
        assert_eq!(decode::decode(&next).unwrap(), pixels, "after {length} bytes");
        let _ = decode::decode(&damaged);
        assert_eq!(decode::probe(&next).unwrap(), info, "after {length} bytes");
    }
}

/// A JPEG may hold only tables. The size of the previous image must not be reported for it.
#[test]
fn jpeg_of_tables_only_is_an_error() {
    let tables = [&[0xff, 0xd8, 0xff, 0xdb, 0, 67, 0][..], &[1; 64], &[0xff, 0xd9]].concat();
    assert!(decode::probe(&file("baseline.jpg")).is_ok());
    assert!(decode::probe(&tables).is_err());
}

#[test]
fn scaled_jpeg_shows_the_same_image() {
    let bytes = file("turned.jpg");
    let (info, whole) = (decode::probe(&bytes).unwrap(), decode::decode(&bytes).unwrap());
    for wanted in [1, 2, 4, 8] {
        let scale = Scale::smallest_for([(8, wanted)]);
        let small = decode::decode_strip(&bytes, scale, None, Rendering::default()).unwrap().image;
        let eighths = |side: u32| (side * wanted).div_ceil(8);
        assert_eq!((small.width, small.height), (eighths(info.width), eighths(info.height)));
        if wanted == 8 {
            assert_eq!(small, whole);
        }
        // Both images reduced to a few pixels look alike: upright, and with the crop in pixels of
        // the original.
        let crop = resize::Rect { x: 2, y: 3, width: 18, height: 24 };
        let tiny = |image: &decode::Rgb8| {
            let area = crop.scale_to((info.width, info.height), (image.width, image.height));
            let strip = decode::Strip::from_image(image.clone());
            resize::resize(&strip, area, (2, 2), tidemill_data::prepare::Resample::Area).unwrap().pixels
        };
        let distance = tiny(&small).iter().zip(tiny(&whole)).map(|(a, b)| a.abs_diff(b)).max();
        assert!(distance < Some(if wanted == 1 { 60 } else { 25 }), "{wanted}/8: {distance:?}");
    }
}
