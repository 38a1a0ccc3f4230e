//! Listings of rejected and quarantined rows, and deduplication.

use std::path::Path;
use std::sync::Arc;

use crate::support::*;
use arrow::array::{ArrayRef, FixedSizeBinaryArray, RecordBatch, UInt32Array, UInt64Array};
use arrow::datatypes::{Field, Schema};
use tidemill_store::dataset::row_listing::list_rows;
use tidemill_store::dedup::{DedupConfig, Mask, NearConfig, Reason, read_rows};
use tidemill_store::{Dataset, DatasetSpec, Error};

const UNITS: [u64; 3] = [120, 7, 90];

/// A batch as `Encode` gives it, with columns that [`batch`] does not have.
fn batch_with_hashes(ids: &[u64], spec: &DatasetSpec, hashes: bool) -> RecordBatch {
    let bare = batch(ids, spec);
    let numbers = |value: &dyn Fn(u64) -> u64| -> ArrayRef {
        Arc::new(UInt64Array::from_iter_values(ids.iter().map(|id| value(*id))))
    };
    let sides = |bits: u64| -> ArrayRef {
        Arc::new(UInt32Array::from_iter_values(ids.iter().map(|id| 64 + (hash(*id, bits) % 9) as u32)))
    };
    let digests = ids.iter().map(|id| [(image(*id) % 250) as u8; 32]);
    let mut more: Vec<(&str, ArrayRef)> = vec![
        ("width", sides(1)),
        ("height", sides(2)),
        ("source_row", Arc::new(UInt64Array::from_iter_values(0..ids.len() as u64))),
    ];
    if hashes {
        more.push(("sha256", Arc::new(FixedSizeBinaryArray::try_from_iter(digests).unwrap())));
        more.push(("phash", numbers(&|id| hash(image(id), 3))));
    }
    let schema = bare.schema();
    let mut fields: Vec<Arc<Field>> = schema.fields().iter().cloned().collect();
    let mut columns = bare.columns().to_vec();
    for (name, column) in more {
        fields.push(Arc::new(Field::new(name, column.data_type().clone(), true)));
        columns.push(column);
    }
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
}

/// The image of a row, one of forty.
fn image(id: u64) -> u64 {
    hash(id, 77) % 40
}

/// Writes the units in the given order.
fn write(folder: &Path, order: &[usize], hashes: bool) -> Dataset {
    let writer = writer(folder, spec(64, 0.1));
    for &unit in order {
        let rows = UNITS[unit];
        let mut attempt = writer.begin_unit(&unit_key(unit as u64, rows));
        attempt.write(&batch_with_hashes(&sample_ids(unit as u64, rows), writer.spec(), hashes)).unwrap();
        attempt.commit().unwrap();
    }
    writer.snapshot(&plan(&UNITS)).unwrap();
    open(folder)
}

#[test]
fn rejected_and_quarantined_rows_are_listed() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = write(folder.path(), &[0, 1, 2], false);
    let expected = |status: &str, reason: Option<&str>| -> Vec<(String, u64)> {
        let unit = |unit: u64| sample_ids(unit, UNITS[unit as usize]).into_iter().zip(0..);
        let rows = (0..3).flat_map(unit).filter(|(id, _)| {
            let (found, why, _) = row_outcome(*id);
            found == status && reason.is_none_or(|reason| why.unwrap().starts_with(reason))
        });
        rows.map(|(id, row)| (format!("key {id}"), row)).collect()
    };
    for (status, reason) in [
        ("rejected", None),
        ("rejected", Some("min_side")),
        ("quarantined", None),
        ("quarantined", Some("damaged")),
        ("rejected", Some("none")),
    ] {
        let listed = list_rows(&dataset, status, reason, usize::MAX).unwrap();
        let found: Vec<_> = listed.iter().map(|row| (row.key.clone(), row.row)).collect();
        assert_eq!(found, expected(status, reason), "{status} {reason:?}");
        assert!(listed.iter().all(|row| row.file == "in.parquet"));
    }
    let all = list_rows(&dataset, "rejected", None, usize::MAX).unwrap();
    assert_eq!(list_rows(&dataset, "rejected", None, 3).unwrap(), all[..3]);
}

#[test]
fn dedup_mask_depends_only_on_the_rows() {
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let config = DedupConfig { exact: true, near: Some(NearConfig { phash_distance: 3 }), similar: None };
    let masks = folders.iter().zip([[0, 1, 2], [2, 0, 1]]).map(|(folder, order)| {
        let dataset = write(folder.path(), &order, true);
        let rows = read_rows(&dataset).unwrap();
        assert_eq!(rows.len() as u64, dataset.totals().unwrap().rows.kept);
        let mask = Mask::write(&dataset, &config, config.find_duplicates(rows, None).unwrap()).unwrap();
        assert_eq!(Mask::read(dataset.location(), &mask.path).unwrap(), mask);
        // Writing the same mask again changes nothing.
        let again = Mask::write(&dataset, &config, mask.duplicates.clone()).unwrap();
        assert_eq!(again.path, mask.path);
        mask
    });
    let masks: Vec<Mask> = masks.collect();
    assert_eq!(masks[0], masks[1]);
    assert!(masks[0].path.starts_with("masks/") && masks[0].path.ends_with(".parquet"));

    let kept: Vec<u64> = (0..3_u64).flat_map(|unit| sample_ids(unit, UNITS[unit as usize])).collect();
    let kept: Vec<u64> = kept.into_iter().filter(|id| row_outcome(*id).0 == "kept").collect();
    let images = count_items(kept.iter().map(|id| image(*id))).len();
    assert_eq!(masks[0].duplicates.len(), kept.len() - images, "one row of each image stays");
    for duplicate in &masks[0].duplicates {
        assert_eq!(image(duplicate.sample_id), image(duplicate.duplicate_of));
        assert_eq!(duplicate.reason, Reason::Exact);
    }
}

#[test]
fn dedup_without_hashes_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let error = read_rows(&write(folder.path(), &[0, 1, 2], false)).unwrap_err();
    assert!(
        matches!(&error, Error::Config { key: "dedup", problem } if problem.contains("prepare.hashes")),
        "{error}"
    );
    let far = DedupConfig { exact: false, near: Some(NearConfig { phash_distance: 9 }), similar: None };
    assert!(far.validate().unwrap_err().to_string().starts_with("dedup.near.phash_distance: 9"));
}
