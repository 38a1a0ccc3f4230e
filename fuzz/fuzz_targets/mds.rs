//! An `index.json` in the first line, then a shard, raw or compressed: any bytes give samples or
//! errors.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tidemill_store::mds::{Index, Shard};

fuzz_target!(|bytes: &[u8]| {
    let cut = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let (line, content) = bytes.split_at(cut);
    let Ok(index) = Index::parse(line) else { return };
    let content = Bytes::copy_from_slice(content.get(1..).unwrap_or_default());
    for info in &index.shards {
        let file = info.files().next().and_then(|file| Shard::read(info, file, content.clone()).ok());
        let raw = Shard::parse(content.clone(), info.columns(), info.samples).ok();
        for shard in file.map(|(shard, _)| shard).into_iter().chain(raw) {
            for i in 0..shard.len() {
                let values = shard.sample(i);
                assert!(values.is_err() || values.is_ok_and(|values| values.len() == shard.columns().len()));
            }
        }
    }
});
