//! Delimiter and header of a CSV file, by its name and its first line.

use std::io::Read;

use super::container::Container;
use crate::error::Result;
use crate::source::compression::{Decompressed, strip_compressed_end};
use crate::source::config::CsvConfig;
use crate::source::object_stream::ObjectStream;

/// Bytes in which the first line is looked for.
const FIRST_BYTES: u64 = 64 << 10;

/// Guesses how the first file is written.
///
/// # Errors
/// If it cannot be read.
pub fn guess(container: &Container) -> Result<CsvConfig> {
    let file = container.first();
    let stream = ObjectStream::open(tidemill_io::runtime()?, &file, 0..0, FIRST_BYTES)?;
    let failure = stream.failure();
    let mut start = Vec::new();
    // An error of the file is in `failure`.
    Decompressed::new(stream).take(FIRST_BYTES).read_to_end(&mut start).ok();
    failure.take().map_or(Ok(()), Err)?;
    let text = String::from_utf8_lossy(&start);
    let name = strip_compressed_end(&file.uri).unwrap_or(&file.uri);
    Ok(guess_dialect(text.lines().next().unwrap_or_default(), name.ends_with(".tsv")))
}

/// The dialect of a file that starts with this line. A line with a URL or path is no header: LAION's
/// and CC12M's lists have URL and caption only.
fn guess_dialect(line: &str, is_tsv: bool) -> CsvConfig {
    let delimiter = if is_tsv || !line.contains(',') && line.contains('\t') { "\t" } else { "," };
    let is_url = |field: &str| field.starts_with('/') || field.contains("://");
    let fields: Vec<&str> = line.split(delimiter).collect();
    if !fields.iter().any(|field| is_url(field)) {
        return CsvConfig { delimiter: delimiter.into(), ..CsvConfig::default() };
    }
    let url = fields.iter().position(|field| is_url(field));
    let others = fields.iter().enumerate().filter(|(index, _)| Some(*index) != url);
    let caption = others.max_by_key(|(_, field)| field.len()).map(|(index, _)| index);
    let name = |index: usize| match index {
        index if Some(index) == url => "url".to_owned(),
        index if Some(index) == caption => "caption".to_owned(),
        index => format!("column{index}"),
    };
    // Captions on the web have quotation marks of their own.
    let quote = if delimiter == "\t" { "" } else { "\"" };
    CsvConfig {
        delimiter: delimiter.into(),
        quote: quote.into(),
        columns: (0..fields.len()).map(name).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dialect_follows_from_the_first_line() {
        for (line, is_tsv, delimiter, columns) in [
            ("image,caption", false, ",", &[][..]),
            ("image\tcaption", false, "\t", &[]),
            ("a, b\tc", true, "\t", &[]),
            ("https://h/1.jpg\ta dog, \"big\"", true, "\t", &["url", "caption"]),
            ("a dog\thttps://h/1.jpg", true, "\t", &["caption", "url"]),
            ("7,\"https://h/1.jpg\",a dog", false, ",", &["column0", "url", "caption"]),
            ("", false, ",", &[]),
        ] {
            let found = guess_dialect(line, is_tsv);
            assert_eq!(
                (found.delimiter.as_str(), &found.columns[..]),
                (delimiter, &columns.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()[..]),
                "{line}"
            );
        }
    }
}
