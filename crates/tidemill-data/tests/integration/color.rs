//! Colour profiles and backgrounds, compared with Pillow by tests/python/color.py.

use tidemill_data::decode::{IccHandling, Rendering, Scale, decode, decode_strip};

use crate::support;

#[test]
fn colours_are_converted_as_by_pillow() {
    let folder = tempfile::tempdir().unwrap();
    support::python("color.py", folder.path());
    let cases: Vec<String> = support::json(&folder.path().join("cases.json"));
    assert!(cases.len() > 20);
    let rendering = Rendering { background: [10, 200, 90], icc: IccHandling::Convert };
    let mut converted = 0;
    for (number, name) in cases.iter().enumerate() {
        let read = |part: &str| std::fs::read(folder.path().join(format!("{number}.{part}"))).unwrap();
        let bytes = read("bin");
        let image = decode_strip(&bytes, Scale::FULL, None, rendering).unwrap().image;
        let expected = read("rgb");
        let differences = image.pixels.iter().zip(&expected).map(|(a, b)| a.abs_diff(*b));
        assert_eq!((image.pixels.len(), differences.max()), (expected.len(), Some(0)), "{name}");
        converted += usize::from(decode(&bytes).unwrap() != image);
    }
    // Without the setting, pixels stay as they are stored.
    assert!(converted >= 12, "{converted}");
}
