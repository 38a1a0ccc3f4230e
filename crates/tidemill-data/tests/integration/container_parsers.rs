//! The parsers of containers on bytes: compared with Python's tarfile, truncated at every position,
//! and damaged in many ways.

use std::collections::BTreeMap;

use crate::support;
use crate::support::gzip;
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Map, Value};
use tidemill_data::source::CsvConfig;
use tidemill_data::source::Record;
use tidemill_data::source::records::csv::CsvRecords;
use tidemill_data::source::records::jsonl::{JsonLines, first_byte};
use tidemill_data::source::records::sample::SampleOptions;
use tidemill_data::source::webdataset::Samples;

/// Writes a tar of these members.
fn tar(members: &[(&str, &[u8])]) -> Vec<u8> {
    support::tar(members.iter().copied())
}

fn samples(bytes: &[u8]) -> Vec<Record> {
    Samples::from_tar(bytes, SampleOptions::default()).collect()
}

/// A sample as webdataset returns it.
#[derive(Debug, Deserialize)]
struct Expected {
    key: String,
    image: Option<Vec<u8>>,
    txt: Option<String>,
    fields: Map<String, Value>,
}

#[test]
fn tars_written_by_python_give_the_samples_of_webdataset() {
    let folder = tempfile::tempdir().unwrap();
    support::python("tars.py", folder.path());
    let formats: BTreeMap<String, Vec<Expected>> = support::json(&folder.path().join("expected.json"));
    for (format, expected) in &formats {
        for ending in ["tar", "tar.gz"] {
            let found = samples(&std::fs::read(folder.path().join(format!("{format}.{ending}"))).unwrap());
            assert_eq!(found.len(), expected.len(), "{format}.{ending}");
            for (row, (found, expected)) in found.iter().zip(expected).enumerate() {
                let mut fields = expected.fields.clone();
                for name in ["caption", "txt"] {
                    let text = expected.txt.clone().filter(|text| !text.trim().is_empty());
                    fields.extend(text.map(|text| (name.to_owned(), text.into())));
                }
                assert_eq!(found.error, None);
                assert_eq!((found.row, found.key.as_ref()), (row as u64, Some(&expected.key)));
                assert_eq!(found.image.as_deref(), expected.image.as_deref(), "{}", expected.key);
                assert_eq!(found.fields, fields, "{}", expected.key);
            }
        }
    }
}

#[test]
fn truncated_tar_gives_complete_samples_and_one_error_row() {
    let names: Vec<[String; 2]> = (0..3).map(|i| [format!("s{i}.jpg"), format!("s{i}.txt")]).collect();
    let image = vec![7; 700];
    let members: Vec<(&str, &[u8])> = names
        .iter()
        .flat_map(|[jpg, txt]| [(jpg.as_str(), image.as_slice()), (txt.as_str(), b"text")])
        .collect();
    let whole = tar(&members);
    let complete = samples(&whole);
    // A header and two blocks of image, a header and one of text.
    let (sample, data) = (5 * 512, 5 * 512 - 508);
    let end = 3 * sample;
    for cut in 0..whole.len() {
        let found = samples(&whole[..cut]);
        let broken: Vec<_> = found.iter().filter(|record| record.error.is_some()).collect();
        assert_eq!(broken.len(), usize::from(cut < end + 512), "cut at {cut}: {broken:?}");
        assert!(broken.iter().all(|record| record.error.as_ref().unwrap().starts_with("container: ")));
        assert_eq!(
            broken.first().map(|record| record.row),
            (cut < end + 512).then(|| found.len() as u64 - 1)
        );
        let present = (0..3).filter(|i| i * sample + data <= cut).count();
        assert!(found.len() >= present && found[..present] == complete[..present], "cut at {cut}");
    }

    let packed = gzip(&whole);
    for cut in 0..packed.len() {
        let found = samples(&packed[..cut]);
        assert!(found.last().unwrap().error.as_ref().unwrap().starts_with("container: "), "cut at {cut}");
        let rows = found.len() - 1;
        assert!(rows <= 3 && found[..rows].iter().all(|record| record.error.is_none()), "cut at {cut}");
    }
}

#[test]
fn errors_of_a_sample_affect_no_other_sample() {
    let long = format!("{}/x", "folder".repeat(40));
    let long_jpg = format!("{long}.jpg");
    // Members, and for each sample its key, the length of its image, and the start of its error.
    type Sample<'a> = (Option<&'a str>, Option<usize>, Option<&'a str>);
    let cases: Vec<(&str, Vec<u8>, Vec<Sample>)> = vec![
        ("an empty file", vec![], vec![(None, None, Some("container: the tar ends without"))]),
        ("no members", tar(&[]), vec![]),
        ("no tar", vec![b'<'; 2000], vec![(None, None, Some("container: the tar has a damaged header"))]),
        ("only other files", tar(&[("README", b"x"), ("a/.hidden.jpg", b"x")]), vec![]),
        ("no image", tar(&[("a.txt", b"t")]), vec![(Some("a"), None, None)]),
        ("an empty image", tar(&[("a.jpg", b"")]), vec![(Some("a"), Some(0), None)]),
        ("bad JSON", tar(&[("a.jpg", b"x"), ("a.json", b"{")]), vec![(Some("a"), Some(1), Some("json: "))]),
        ("JSON, no object", tar(&[("a.json", b"[1]")]), vec![(Some("a"), None, Some("json: "))]),
        (
            "twice the same member",
            tar(&[("a.jpg", b"x"), ("a.jpg", b"yy")]),
            vec![(Some("a"), Some(1), Some("container: a second member `a.jpg`"))],
        ),
        (
            "the same key elsewhere",
            tar(&[("a.jpg", b"x"), ("b.jpg", b"yy"), ("a.jpg", b"zzz")]),
            vec![(Some("a"), Some(1), None), (Some("b"), Some(2), None), (Some("a"), Some(3), None)],
        ),
        ("a long name", tar(&[(&long_jpg, b"x")]), vec![(Some(&long), Some(1), None)]),
        (
            "one tar after the other",
            [tar(&[("a.jpg", b"x")]), tar(&[("b.jpg", b"yy")])].concat(),
            vec![(Some("a"), Some(1), None), (Some("b"), Some(2), None)],
        ),
        (
            "garbage behind the end",
            [tar(&[("a.jpg", b"x")]), vec![b'?'; 512]].concat(),
            vec![(Some("a"), Some(1), None), (None, None, Some("container: behind member `a.jpg`"))],
        ),
    ];
    for (name, bytes, expected) in cases {
        let (found, packed) = (samples(&bytes), samples(&gzip(&bytes)));
        assert_eq!(found, packed, "{name}");
        assert_eq!(found.len(), expected.len(), "{name}: {found:?}");
        for (record, (key, image, error)) in found.iter().zip(expected) {
            assert_eq!(record.key.as_deref(), key, "{name}");
            assert_eq!(record.image.as_ref().map(|image| image.len()), image, "{name}");
            let text = record.error.as_deref();
            assert_eq!(text.is_some(), error.is_some(), "{name}: {text:?}");
            assert!(text.unwrap_or_default().starts_with(error.unwrap_or_default()), "{name}: {text:?}");
        }
    }
}

#[test]
fn false_member_size_allocates_nothing() {
    let mut bytes = tar(&[("a.jpg", b"x"), ("b.jpg", b"y")]);
    // The sizes are within the limit of an image and far beyond the file.
    bytes[124..135].copy_from_slice(b"00777777777");
    let sum = bytes[..512]
        .iter()
        .enumerate()
        .map(|(i, &b)| if (148..156).contains(&i) { 32 } else { u32::from(b) });
    let sum = format!("{:06o}\0 ", sum.sum::<u32>());
    bytes[148..156].copy_from_slice(sum.as_bytes());
    let found = samples(&bytes);
    assert_eq!(found.len(), 1);
    assert!(found[0].error.as_ref().unwrap().contains("in the middle of member `a.jpg`"), "{found:?}");
}

/// Lines of all kinds: valid, broken, blank, with and without a line end.
fn lines() -> impl Strategy<Value = Vec<u8>> {
    let line = prop_oneof![
        4 => "[a-z]{0,40}".prop_map(|text| format!("{{\"a\": \"{text}\"}}\n").into_bytes()),
        1 => "[^\\n]{0,30}".prop_map(|text| format!("{text}\n").into_bytes()),
        1 => Just(b"\n".to_vec()),
        1 => Just(b"\xff\xfe\r\n".to_vec()),
    ];
    (prop::collection::vec(line, 0..30), any::<bool>()).prop_map(|(lines, ends)| {
        let mut bytes = lines.concat();
        if !ends {
            bytes.pop();
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// For every split of a file, each line is read once, by the range that contains its first
    /// byte.
    #[test]
    fn ranges_cover_every_line_once(bytes in lines(), cuts in prop::collection::vec(0.0..1.0_f64, 0..12)) {
        let size = bytes.len() as u64;
        let mut ends: Vec<u64> = cuts.iter().map(|cut| (cut * size as f64) as u64).chain([0, size]).collect();
        ends.sort_unstable();
        let read = |span: std::ops::Range<u64>| {
            let from = &bytes[first_byte(&span) as usize..];
            let records: Vec<Record> = JsonLines::new(from, span.clone()).collect();
            assert!(records.iter().all(|record| span.contains(&record.row)));
            records
        };
        let pieces: Vec<Record> = ends.windows(2).flat_map(|ends| read(ends[0]..ends[1])).collect();
        prop_assert_eq!(&pieces, &read(0..size));
        let texts = bytes.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
        prop_assert_eq!(pieces.len(), texts.count());
    }

    /// Damage is an error of some row, never a panic.
    #[test]
    fn parsers_survive_damage(
        which in 0..4_usize, cut in 0.0..1.0_f64, flips in prop::collection::vec((0.0..1.0_f64, any::<u8>()), 0..8),
    ) {
        let plain = tar(&[("a.jpg", &[1; 600]), ("a.json", b"{\"caption\": \"x\"}"), ("b.png", b"y")]);
        let text = b"key,image,caption\n1,\"a\",b\n2,c,\"d\ne\"\n{\"a\": 1}\n".to_vec();
        let mut bytes = [plain.clone(), gzip(&plain), text.clone(), text][which].clone();
        for (place, value) in flips {
            let at = (place * bytes.len() as f64) as usize;
            bytes[at] = value;
        }
        bytes.truncate((bytes.len() as f64 * (1.0 - cut * cut)) as usize);
        let rows = match which {
            0 | 1 => samples(&bytes).len(),
            2 => CsvRecords::new(bytes.as_slice(), &CsvConfig::default()).map_or(0, Iterator::count),
            _ => JsonLines::new(bytes.as_slice(), 0..bytes.len() as u64).count(),
        };
        prop_assert!(rows <= 20);
    }
}
