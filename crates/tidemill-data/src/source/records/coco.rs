//! Captions as COCO has them: one JSON object with a list of images and a list of annotations that
//! name their image. It is parsed whole.

use std::collections::HashMap;
use std::io::Read;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::source::records::record::Record;

/// The field with the captions of an image.
pub const CAPTION: &str = "caption";

/// The parts of the object that are read.
#[derive(Deserialize)]
struct CocoFile {
    images: Vec<Map<String, Value>>,
    annotations: Vec<Annotation>,
}

#[derive(Deserialize)]
struct Annotation {
    image_id: Value,
    /// Other annotations than captions, such as boxes, have none.
    #[serde(default)]
    caption: Option<String>,
}

/// The images of a file, each with all its captions in the order of the file. A file that cannot be
/// parsed is one row with an error.
pub fn coco_records(reader: impl Read) -> impl Iterator<Item = Record> {
    let parsed: Result<CocoFile, _> = serde_json::from_reader(std::io::BufReader::new(reader));
    match parsed {
        Ok(file) => join(file).into_iter(),
        Err(e) => {
            let problem = format!("json: the file is no object with `images` and `annotations`: {e}");
            vec![Record::with_error(0, problem)].into_iter()
        }
    }
}

fn join(file: CocoFile) -> Vec<Record> {
    let mut captions: HashMap<String, Vec<Value>> = HashMap::new();
    for annotation in file.annotations {
        let of_image = captions.entry(annotation.image_id.to_string()).or_default();
        of_image.extend(annotation.caption.map(Value::String));
    }
    let record = |(row, mut fields): (u64, Map<String, Value>)| {
        let id = fields.get("id").map(ToString::to_string).unwrap_or_default();
        let captions = captions.remove(&id).unwrap_or_default();
        fields.insert(CAPTION.into(), Value::Array(captions));
        // About as many bytes as in the file.
        let text_bytes = fields.iter().map(|(name, value)| name.len() + value_bytes(value)).sum();
        Record { row, fields, text_bytes, ..Record::default() }
    };
    (0..).zip(file.images).map(record).collect()
}

fn value_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(values) => values.iter().map(value_bytes).sum(),
        _ => 8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_have_all_their_captions() {
        let file = serde_json::json!({
            "info": {"year": 2017},
            "images": [{"id": 9, "file_name": "9.jpg", "height": 480}, {"id": 3, "file_name": "3.jpg"}],
            "annotations": [
                {"image_id": 3, "id": 1, "caption": "a"}, {"image_id": 9, "id": 2, "caption": "b"},
                {"image_id": 3, "id": 3, "caption": "c"}, {"image_id": 3, "bbox": [1, 2, 3, 4]},
            ],
        });
        let rows: Vec<Record> = coco_records(file.to_string().as_bytes()).collect();
        let found: Vec<_> =
            rows.iter().map(|row| (row.row, &row.fields["file_name"], &row.fields["caption"])).collect();
        let found = serde_json::json!(found);
        assert_eq!(found, serde_json::json!([[0, "9.jpg", ["b"]], [1, "3.jpg", ["a", "c"]]]));
        for text in ["{}", "[]", "{\"images\": 3}", ""] {
            let rows: Vec<Record> = coco_records(text.as_bytes()).collect();
            assert!(rows.len() == 1 && rows[0].error.as_ref().unwrap().starts_with("json: "), "{text}");
        }
    }
}
