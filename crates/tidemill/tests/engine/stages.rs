//! What the engine needs from the real `Encode`, with the quickstart's models: quarantined rows
//! have the same schema as encoded rows.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListArray, Int32Array, LargeBinaryArray, RecordBatch, StringArray,
    UInt32Array,
};
use arrow::datatypes::{DataType, Field};
use tch::Device;
use tidemill::Encode;
use tidemill::encode::EncodeConfig;
use tidemill_models::ModelFolder;

/// Two kept rows as `Prepare` makes them, at 32 pixels.
fn prepared_rows() -> RecordBatch {
    let ids = Int32Array::from(vec![0; 2 * 77]);
    let item = Arc::new(Field::new_list_field(DataType::Int32, true));
    let pixels = vec![128_u8; 2 * 3 * 32 * 32];
    let item_of_size = Arc::new(Field::new_list_field(DataType::UInt32, true));
    let sizes = FixedSizeListArray::new(item_of_size, 2, Arc::new(UInt32Array::from(vec![32; 4])), None);
    let columns: [(&str, ArrayRef); 5] = [
        ("status", Arc::new(StringArray::from(vec!["kept", "kept"]))),
        ("reason", Arc::new(StringArray::from(vec![None::<&str>, None]))),
        ("token_ids", Arc::new(FixedSizeListArray::new(item, 77, Arc::new(ids), None))),
        ("pixels_32", Arc::new(LargeBinaryArray::from_iter_values(pixels.chunks(3 * 32 * 32)))),
        ("size_32", Arc::new(sizes)),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).unwrap()
}

#[test]
fn quarantined_rows_have_null_tensors_and_the_encoded_schema() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets");
    let models = ModelFolder::open(&folder).unwrap();
    let encode = Encode::load(&models, &EncodeConfig::default(), Device::Cpu).unwrap();
    let (encoded, quarantined) = (
        encode.run(&prepared_rows()).unwrap(),
        encode.quarantine(&prepared_rows(), "panic: encode: oh").unwrap(),
    );
    assert_eq!(encoded.schema(), quarantined.schema());
    let tensors = ["text", "latents_32"];
    assert_eq!(tensors.map(|name| encoded[name].null_count()), [0, 0]);
    assert_eq!(tensors.map(|name| quarantined[name].null_count()), [2, 2]);
    assert_eq!(quarantined["status"].as_string::<i32>().value(1), "quarantined");
    assert_eq!(quarantined["reason"].as_string::<i32>().value(0), "panic: encode: oh");
    let text = encoded["text"].as_fixed_size_binary().value(0).len();
    let latents = encoded["latents_32"].as_binary::<i64>().value(0).len();
    assert_eq!(encode.row_bytes(&[vec![(32, 32)]]).unwrap(), (text + latents) as u64);
}
