//! Which field is the image, the caption and so on, by names and kinds.

use super::container::Container;
use super::fields::{Field, FieldKind};
use crate::one_or_many::OneOrMany;
use crate::source::config::{Columns, Format};

/// What fields are called, the most telling name first. Names are compared without case.
const IMAGES: [&str; 10] =
    ["image", "jpg", "jpeg", "png", "img", "image_bytes", "image_path", "file_name", "filename", "path"];
const CAPTIONS: [&str; 9] =
    ["caption", "text", "txt", "prompt", "description", "captions", "recaption", "alt_text", "title"];
const KEYS: [&str; 6] = ["key", "id", "__key__", "uid", "sample_id", "image_id"];
const WIDTHS: [&str; 3] = ["width", "original_width", "image_width"];
const HEIGHTS: [&str; 3] = ["height", "original_height", "image_height"];
const URLS: [&str; 2] = ["url", "image_url"];

/// The columns of a source, as far as names and kinds tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roles {
    /// The columns, with defaults for those that were not found.
    pub columns: Columns,
    /// Whether a column for the image was found, or the format needs none.
    pub has_image: bool,
    /// Whether a column for the caption was found.
    pub has_caption: bool,
    /// Other fields that may be captions.
    pub other_captions: Vec<String>,
    /// Fields with numbers that have no role: scores to filter by.
    pub numbers: Vec<String>,
    /// Whether rows say if their image was downloaded, as img2dataset writes it: `status`.
    pub has_status: bool,
}

impl Roles {
    /// Guesses the columns.
    pub fn guess(container: &Container, fields: &[Field]) -> Self {
        let fields = Fields(fields);
        let url = fields.named(&URLS, |kind| kind.is_text() || kind == FieldKind::ImageName);
        // In these formats the image is not a field that the run file names.
        let is_implied = matches!(container.format, Format::WebDataset | Format::Images | Format::Coco);
        let image = if is_implied { None } else { fields.image().or_else(|| url.clone()) };
        let taken = [image.clone(), url.clone()];
        let mut captions = fields.captions(&taken);
        let is_sample = matches!(container.format, Format::WebDataset | Format::Images);
        if is_sample && captions.iter().any(|name| name == "caption") {
            // The same text as `caption`, unless the sample has several.
            captions.retain(|name| name != "txt");
        }
        let columns = Columns {
            image: image.clone().unwrap_or(Columns::default().image),
            caption: captions.first().map_or(Columns::default().caption, |name| OneOrMany::One(name.clone())),
            key: fields.named(&KEYS, |kind| kind.is_text() || kind == FieldKind::Number),
            width: fields.named(&WIDTHS, |kind| kind == FieldKind::Number),
            height: fields.named(&HEIGHTS, |kind| kind == FieldKind::Number),
            url: url.filter(|url| Some(url) != image.as_ref()),
        };
        let roles = [&columns.key, &columns.width, &columns.height];
        let has_role = |name: &String| roles.iter().any(|role| role.as_ref() == Some(name));
        let numbers =
            fields.of_kind(|kind| kind == FieldKind::Number).filter(|name| !has_role(name)).collect();
        Self {
            has_image: is_implied || image.is_some(),
            has_caption: !captions.is_empty(),
            other_captions: captions.into_iter().skip(1).collect(),
            columns,
            numbers,
            has_status: ["status", "error_message"].iter().all(|name| fields.has(name)),
        }
    }
}

struct Fields<'a>(&'a [Field]);

impl Fields<'_> {
    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|field| field.name == name)
    }

    fn of_kind(&self, is_kind: fn(FieldKind) -> bool) -> impl Iterator<Item = String> {
        self.0.iter().filter(move |field| is_kind(field.kind)).map(|field| field.name.clone())
    }

    /// The field with the first of these names that there is.
    fn named(&self, names: &[&str], is_kind: fn(FieldKind) -> bool) -> Option<String> {
        names.iter().find_map(|name| self.of_kind(is_kind).find(|field| field.eq_ignore_ascii_case(name)))
    }

    /// A field with bytes, else one that names images, else text that is called like an image.
    fn image(&self) -> Option<String> {
        let by_kind = |is_kind: fn(FieldKind) -> bool| {
            self.named(&IMAGES, is_kind).or_else(|| self.of_kind(is_kind).next())
        };
        let by_bytes = by_kind(|kind| kind == FieldKind::ImageBytes);
        let by_name = || by_kind(|kind| kind == FieldKind::ImageName);
        by_bytes.or_else(by_name).or_else(|| self.named(&IMAGES, FieldKind::is_text))
    }

    /// Fields that are called like a caption. If there are none, the one with the longest text.
    fn captions(&self, taken: &[Option<String>]) -> Vec<String> {
        let is_free = |name: &String| !taken.contains(&Some(name.clone()));
        let by_name = CAPTIONS.iter().filter_map(|name| self.named(&[name], FieldKind::is_text));
        let by_part = self.of_kind(FieldKind::is_text).filter(|name| name.to_lowercase().contains("caption"));
        let mut captions: Vec<String> = Vec::new();
        for name in by_name.chain(by_part).filter(is_free) {
            if !captions.contains(&name) {
                captions.push(name);
            }
        }
        if captions.is_empty() {
            let is_key = |name: &String| KEYS.iter().any(|key| name.eq_ignore_ascii_case(key));
            let texts = self.0.iter().filter(|field| is_free(&field.name) && !is_key(&field.name));
            let lengths = texts.filter_map(|field| Some((field.kind.text_length()?, &field.name)));
            captions.extend(lengths.max_by_key(|(length, _)| *length).map(|(_, name)| name.clone()));
        }
        captions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use FieldKind::{ImageBytes, ImageName, Number, Text};

    fn guess(format: Format, fields: &[(&str, FieldKind)]) -> Roles {
        let fields: Vec<Field> = fields
            .iter()
            .map(|(name, kind)| Field { name: (*name).into(), kind: *kind, type_name: String::new() })
            .collect();
        let container = Container { format, uri: "d".into(), files: vec![("f".into(), 1)] };
        Roles::guess(&container, &fields)
    }

    #[test]
    fn columns_follow_from_names_and_kinds() {
        for (format, fields, image, captions, numbers) in [
            // As Hugging Face's and img2dataset's.
            (
                Format::Parquet,
                &[("image", ImageBytes), ("text", Text(0))][..],
                "image",
                &["text"][..],
                &[][..],
            ),
            (
                Format::WebDataset,
                &[
                    ("caption", Text(40)),
                    ("url", Text(60)),
                    ("key", Text(9)),
                    ("width", Number),
                    ("aesthetic", Number),
                    ("txt", Text(40)),
                ],
                "image",
                &["caption"],
                &["aesthetic"],
            ),
            (Format::Images, &[("file_name", ImageName), ("prompt", Text(20))], "image", &["prompt"], &[]),
            // By kind where names tell nothing.
            (
                Format::Csv,
                &[("id", Number), ("photo", ImageName), ("what", Text(30)), ("lang", Text(2))],
                "photo",
                &["what"],
                &[],
            ),
            (
                Format::Parquet,
                &[("URL", Text(0)), ("TEXT", Text(0)), ("long_caption", Text(0))],
                "URL",
                &["TEXT", "long_caption"],
                &[],
            ),
        ] {
            let roles = guess(format, fields);
            let mut found = vec![roles.columns.caption.as_slice()[0].clone()];
            found.extend(roles.other_captions.clone());
            assert_eq!(
                (roles.columns.image.as_str(), found),
                (image, captions.iter().map(ToString::to_string).collect())
            );
            assert_eq!(roles.numbers, numbers);
            assert!(roles.has_image && roles.has_caption);
        }
        let nothing = guess(Format::Csv, &[("id", Number)]);
        assert!(!nothing.has_image && !nothing.has_caption);
    }
}
