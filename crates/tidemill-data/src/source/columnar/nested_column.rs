//! Columns within structs and lists, named by a path: `meta.text`, `images[0]`, `sentences[*].raw`.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, GenericListArray, OffsetSizeTrait, RecordBatch, UInt64Array, make_array,
};
use arrow::buffer::NullBuffer;
use arrow::compute::take;
use arrow::datatypes::{DataType, Field, FieldRef, Schema};

use crate::error::Result;
use crate::source::field_path::{FieldPath, Step};

/// The field of a name: a column, or the nested field that a path leads to. It has the whole name.
pub fn find_field(schema: &Schema, name: &str) -> Option<Field> {
    if let Ok(field) = schema.field_with_name(name) {
        return Some(field.clone());
    }
    let (root, steps) = split_path(name)?;
    let data_type = follow_type(schema.field_with_name(&root).ok()?.data_type(), &steps)?;
    Some(Field::new(name, data_type, true))
}

/// The index of the column that has the values of a name.
pub fn find_root(schema: &Schema, name: &str) -> Option<usize> {
    schema.index_of(name).ok().or_else(|| schema.index_of(&split_path(name)?.0).ok())
}

/// The values of a name in a batch; `None` if the batch does not have them.
///
/// # Errors
/// If Arrow cannot take them out of their column.
pub fn find_values(batch: &RecordBatch, name: &str) -> Result<Option<ArrayRef>> {
    if let Some(column) = batch.column_by_name(name) {
        return Ok(Some(column.clone()));
    }
    let Some((root, steps)) = split_path(name) else { return Ok(None) };
    batch.column_by_name(&root).map(|column| follow(column, &steps)).transpose().map(Option::flatten)
}

fn split_path(name: &str) -> Option<(String, Vec<Step>)> {
    let mut steps = FieldPath::parse(name)?.0;
    match steps.remove(0) {
        Step::Field(root) => Some((root, steps)),
        Step::Item(_) | Step::Items => None,
    }
}

fn item_field(data_type: &DataType) -> Option<&FieldRef> {
    use DataType::{FixedSizeList, LargeList, List};
    match data_type {
        List(item) | LargeList(item) | FixedSizeList(item, _) => Some(item),
        _ => None,
    }
}

fn follow_type(data_type: &DataType, steps: &[Step]) -> Option<DataType> {
    let Some((step, rest)) = steps.split_first() else { return Some(data_type.clone()) };
    match (step, data_type) {
        (Step::Field(name), DataType::Struct(fields)) => {
            follow_type(fields.iter().find(|field| field.name() == name)?.data_type(), rest)
        }
        (Step::Item(_), list) => follow_type(item_field(list)?.data_type(), rest),
        (Step::Items, list) => {
            let item = follow_type(item_field(list)?.data_type(), rest)?;
            let item = Arc::new(Field::new_list_field(item, true));
            Some(if matches!(list, DataType::LargeList(_)) {
                DataType::LargeList(item)
            } else {
                DataType::List(item)
            })
        }
        _ => None,
    }
}

fn follow(array: &ArrayRef, steps: &[Step]) -> Result<Option<ArrayRef>> {
    let Some((step, rest)) = steps.split_first() else { return Ok(Some(array.clone())) };
    match (step, array.data_type()) {
        (Step::Field(name), DataType::Struct(_)) => {
            let parent = array.as_struct();
            let Some(child) = parent.column_by_name(name) else { return Ok(None) };
            follow(&with_nulls_of(child, parent.nulls())?, rest)
        }
        (Step::Item(item), DataType::List(_)) => follow(&take_items(array.as_list::<i32>(), *item)?, rest),
        (Step::Item(item), DataType::LargeList(_)) => {
            follow(&take_items(array.as_list::<i64>(), *item)?, rest)
        }
        (Step::Items, DataType::List(_)) => follow_items(array.as_list::<i32>(), rest),
        (Step::Items, DataType::LargeList(_)) => follow_items(array.as_list::<i64>(), rest),
        (Step::Item(_) | Step::Items, DataType::FixedSizeList(item, _)) => {
            follow(&arrow::compute::cast(array, &DataType::List(item.clone()))?, steps)
        }
        _ => Ok(None),
    }
}

/// The child of a struct, null where the struct is.
fn with_nulls_of(child: &ArrayRef, nulls: Option<&NullBuffer>) -> Result<ArrayRef> {
    let nulls = NullBuffer::union(child.nulls(), nulls);
    Ok(make_array(child.to_data().into_builder().nulls(nulls).build()?))
}

/// The item at an index of each list; null where a list is shorter.
fn take_items<O: OffsetSizeTrait>(lists: &GenericListArray<O>, item: usize) -> Result<ArrayRef> {
    let index = |row: usize| {
        let (start, end) = (lists.value_offsets()[row].as_usize(), lists.value_offsets()[row + 1].as_usize());
        (lists.is_valid(row) && start + item < end).then_some((start + item) as u64)
    };
    let indices: UInt64Array = (0..lists.len()).map(index).collect();
    Ok(take(lists.values(), &indices, None)?)
}

/// Follows the steps within the items of each list.
fn follow_items<O: OffsetSizeTrait>(lists: &GenericListArray<O>, steps: &[Step]) -> Result<Option<ArrayRef>> {
    let Some(items) = follow(lists.values(), steps)? else { return Ok(None) };
    let item = Arc::new(Field::new_list_field(items.data_type().clone(), true));
    let lists = GenericListArray::try_new(item, lists.offsets().clone(), items, lists.nulls().cloned())?;
    Ok(Some(Arc::new(lists)))
}

#[cfg(test)]
mod tests {
    use arrow_json::ReaderBuilder;

    use super::*;

    #[test]
    fn nested_values_equal_those_of_json() {
        let text = |name: &str| Field::new(name, DataType::Utf8, true);
        let list = |name: &str, item| Field::new_list(name, Field::new_list_field(item, true), true);
        let person = DataType::Struct(vec![text("name"), list("tags", DataType::Utf8)].into());
        let fixed = DataType::FixedSizeList(Arc::new(Field::new_list_field(DataType::Utf8, true)), 2);
        let schema = Arc::new(Schema::new(vec![
            Field::new("one", person.clone(), true),
            list("many", person),
            Field::new("two", fixed, true),
            text("a.b"),
        ]));
        let rows = r#"
            {"one": {"name": "x", "tags": ["t", null, "u"]}, "many": [{"name": "p"}, {"name": "q", "tags": ["v"]}], "two": ["k", "l"], "a.b": "z"}
            {"one": null, "many": [], "two": ["m", null]}
            {"one": {"name": null}, "many": null, "two": null}
        "#;
        let mut reader = ReaderBuilder::new(schema.clone()).build(rows.as_bytes()).unwrap();
        let batch = reader.next().unwrap().unwrap();
        for (name, expected) in [
            ("one.name", r#"["x",null,null]"#),
            ("one.tags[2]", r#"["u",null,null]"#),
            ("one.tags", r#"[["t",null,"u"],null,null]"#),
            ("many[1].name", r#"["q",null,null]"#),
            ("many[*].name", r#"[["p","q"],[],null]"#),
            ("many[*].tags[0]", r#"[[null,"v"],[],null]"#),
            ("two[1]", r#"["l",null,null]"#),
            ("two[*]", r#"[["k","l"],["m",null],null]"#),
            ("a.b", r#"["z",null,null]"#),
        ] {
            for rows in [0..3, 1..3] {
                let batch = batch.slice(rows.start, rows.len());
                let values = find_values(&batch, name).unwrap().unwrap();
                assert_eq!(values.data_type(), find_field(&schema, name).unwrap().data_type(), "{name}");
                let column = RecordBatch::try_from_iter_with_nullable([("v", values, true)]).unwrap();
                let mut json = arrow_json::ArrayWriter::new(Vec::new());
                json.write(&column).unwrap();
                json.finish().unwrap();
                let found: serde_json::Value = serde_json::from_slice(&json.into_inner()).unwrap();
                let found: Vec<_> = found.as_array().unwrap().iter().map(|row| row["v"].clone()).collect();
                let expected: Vec<serde_json::Value> = serde_json::from_str(expected).unwrap();
                assert_eq!(found, expected[rows.clone()], "{name} of {rows:?}");
            }
        }
        for name in ["one.none", "many.name", "none", "one[0]", "a.c"] {
            assert!(
                find_field(&schema, name).is_none() && find_values(&batch, name).unwrap().is_none(),
                "{name}"
            );
        }
    }
}
