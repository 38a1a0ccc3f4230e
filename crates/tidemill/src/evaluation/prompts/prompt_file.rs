//! Reads a file of prompts.

use tidemill_io::Location;

use super::column_names::ColumnNames;
use super::prompt_list::PromptList;
use super::table::{Rows, csv_rows, parquet_rows};
use crate::evaluation::keys::split_uri;

/// Reads a file of prompts and leaves out those that are empty or repeated.
///
/// # Errors
/// As [`read_prompt_rows`].
pub fn read_prompt_file(
    path: &str,
    prompt_column: Option<&str>,
    category_column: Option<&str>,
) -> Result<PromptList, String> {
    let rows = read_prompt_rows(path, prompt_column, category_column)?;
    Ok(PromptList::from_rows(rows.into_iter()))
}

/// Reads all prompts of a file with their categories. The file is local or in a bucket: `.csv`,
/// `.tsv`, `.parquet`, or text with one prompt per line.
///
/// # Errors
/// If it cannot be read, or has no such column; the message lists the columns there are.
pub fn read_prompt_rows(
    path: &str,
    prompt_column: Option<&str>,
    category_column: Option<&str>,
) -> Result<Rows, String> {
    let (folder, name) = split_uri(path);
    let bytes = Location::open(folder).and_then(|folder| folder.get(name)).map_err(|e| e.to_string())?;
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension).to_ascii_lowercase();
    let columns = ColumnNames { prompt: prompt_column, category: category_column };
    match extension.as_str() {
        "csv" => csv_rows(&bytes, b',', columns),
        "tsv" => csv_rows(&bytes, b'\t', columns),
        "parquet" => parquet_rows(bytes, columns),
        _ => {
            let text = std::str::from_utf8(&bytes).map_err(|e| format!("not UTF-8: {e}"))?;
            Ok(text.trim_start_matches('\u{feff}').lines().map(|line| (line.to_owned(), None)).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(list: &PromptList) -> Vec<(&str, Option<&str>)> {
        list.prompts.iter().map(|p| (p.text.as_str(), p.category.as_deref())).collect()
    }

    fn read(name: &str, content: &str, prompt: Option<&str>) -> Result<PromptList, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        read_prompt_file(path.to_str().unwrap(), prompt, None)
    }

    #[test]
    fn text_has_a_prompt_per_line_and_what_is_left_out_is_counted() {
        let list = read("p.txt", "\u{feff}a cat\r\n\n  a dog \na cat\n", None).unwrap();
        assert_eq!(texts(&list), [("a cat", None), ("a dog", None)]);
        assert_eq!(list.omissions().unwrap(), "left out 1 empty and 1 repeated prompts");
    }

    /// As DrawBench is published, and as PartiPrompts is.
    #[test]
    fn tables_have_categories() {
        let drawbench = "Prompts,Category\n\"A red car, and a white sheep.\",Colors\nA fish.,Counting\n";
        let expected = [("A red car, and a white sheep.", Some("Colors")), ("A fish.", Some("Counting"))];
        assert_eq!(texts(&read("d.csv", drawbench, None).unwrap()), expected);
        let parti = "Prompt\tCategory\tChallenge\tNote\nbond\tAbstract\tBasic\t\n";
        assert_eq!(texts(&read("p.tsv", parti, None).unwrap()), [("bond", Some("Abstract"))]);
        assert_eq!(texts(&read("p.tsv", parti, Some("Challenge")).unwrap()), [("Basic", Some("Abstract"))]);
    }

    /// Dictionaries and large strings are text, too; a null is an empty prompt.
    #[test]
    fn parquet_has_the_same_columns() {
        use std::sync::Arc;

        use arrow::array::{ArrayRef, DictionaryArray, LargeStringArray, RecordBatch};
        use arrow::datatypes::Int32Type;
        use parquet::arrow::ArrowWriter;

        let prompts: ArrayRef = Arc::new(LargeStringArray::from(vec![Some("a cat"), None, Some("a dog")]));
        let categories: DictionaryArray<Int32Type> = vec!["Animals"; 3].into_iter().collect();
        let columns = [("CAPTION", prompts), ("category", Arc::new(categories) as ArrayRef)];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.parquet");
        let mut writer =
            ArrowWriter::try_new(std::fs::File::create(&path).unwrap(), batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        let list = read_prompt_file(path.to_str().unwrap(), None, None).unwrap();
        assert_eq!(texts(&list), [("a cat", Some("Animals")), ("a dog", Some("Animals"))]);
        assert_eq!((list.empty, list.duplicates), (1, 0));
    }

    #[test]
    fn missing_columns_are_refused_with_those_there_are() {
        let message = read("d.csv", "a,b\n1,2\n", None).unwrap_err();
        assert!(message.contains("eval.prompt_column") && message.contains("a, b"), "{message}");
        let message = read("d.csv", "a,b\n1,2\n", Some("Prompt")).unwrap_err();
        assert_eq!(message, "it has no column `Prompt`, only a, b");
        assert!(read("d.csv", "Prompts,Category\n\"unclosed\n", None).is_ok());
        assert!(read("d.parquet", "not parquet", None).is_err());
    }
}
