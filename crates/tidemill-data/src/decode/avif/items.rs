//! Items: the parts of a still image, their properties, and how they refer to one another.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::decode::avif::boxes::{Reader, boxes, find};
use crate::decode::avif::properties::Properties;

/// A coded image, a grid of coded images, or metadata.
#[derive(Debug, Default)]
pub struct Item<'a> {
    pub kind: [u8; 4],
    /// Type of the content if `kind` is `mime`.
    pub mime: &'a [u8],
    pub properties: Properties<'a>,
    /// The item whose auxiliary image this is; 0 if none.
    pub auxiliary_of: u32,
    /// The item that this metadata describes; 0 if none.
    pub describes: u32,
    /// The alpha plane by which the pixels are multiplied; 0 if none.
    pub premultiplied_by: u32,
    /// The images of a grid, row by row.
    pub cells: Vec<u32>,
    is_thumbnail: bool,
    /// Offset and length of each part of the content.
    extents: Vec<(u64, u64)>,
    is_in_item_data: bool,
}

/// Items by number.
#[derive(Debug)]
pub struct Items<'a> {
    pub primary: u32,
    items: BTreeMap<u32, Item<'a>>,
    /// Alpha planes by the number of the image that they belong to.
    alpha: BTreeMap<u32, u32>,
    file: &'a [u8],
    item_data: &'a [u8],
}

/// More than the cells of the largest grid, and their alpha planes.
const MAX_ITEMS: usize = 1 << 18;

impl<'a> Items<'a> {
    /// Reads the content of a `meta` box; `None` if it is damaged.
    pub fn read(file: &'a [u8], meta: &'a [u8]) -> Option<Self> {
        let meta = meta.get(4..)?;
        let item_data = find(meta, b"idat").unwrap_or_default();
        let mut items = Self { primary: 0, items: BTreeMap::new(), alpha: BTreeMap::new(), file, item_data };
        for (kind, content) in boxes(meta) {
            let mut reader = Reader(content);
            match &kind {
                b"pitm" => {
                    let (version, _) = reader.version_and_flags()?;
                    items.primary = reader.narrow_or_wide(version > 0)?;
                }
                b"iinf" => items.read_types(reader)?,
                b"iloc" => items.read_locations(reader)?,
                b"iref" => items.read_references(reader)?,
                b"iprp" => items.read_properties(content)?,
                _ => {}
            }
        }
        let is_alpha = |item: &Item| item.properties.is_alpha == Some(true) && item.is_image();
        let alpha = items.items.iter().filter(|(_, item)| is_alpha(item));
        // Of several alpha planes, the first counts.
        items.alpha = alpha.rev().map(|(&number, item)| (item.auxiliary_of, number)).collect();
        Some(items)
    }

    /// An item that is an image that can be decoded.
    pub fn image(&self, number: u32) -> Option<&Item<'a>> {
        self.items.get(&number).filter(|item| item.is_image())
    }

    /// The number of an image's alpha plane.
    pub fn alpha_of(&self, number: u32) -> Option<u32> {
        self.alpha.get(&number).copied()
    }

    /// The EXIF and the XMP that describe an item or, for 0, any item.
    pub fn metadata_of(&self, number: u32) -> [Option<Cow<'a, [u8]>>; 2] {
        let describing = |kind: [u8; 4], mime: &'static [u8]| {
            let mut items = self.items.values().filter(move |item| item.kind == kind && item.mime == mime);
            let item = items.find(|item| number == 0 || item.describes == number)?;
            Some(join(&self.content(item)?))
        };
        let exif = describing(*b"Exif", b"");
        // The offset of the TIFF header comes first.
        let exif = exif.and_then(|exif| match exif {
            Cow::Borrowed(exif) => exif.get(4..).map(Cow::Borrowed),
            Cow::Owned(mut exif) => (exif.len() >= 4).then(|| Cow::Owned(exif.split_off(4))),
        });
        [exif, describing(*b"mime", b"application/rdf+xml")]
    }

    /// Bytes of the file.
    pub fn file_len(&self) -> usize {
        self.file.len()
    }

    /// The parts of an item's content. Their length is never more than the file's, although parts may
    /// overlap.
    pub fn content(&self, item: &Item) -> Option<Vec<&'a [u8]>> {
        let stored = if item.is_in_item_data { self.item_data } else { self.file };
        let mut left = self.file.len();
        let part = |&(offset, length): &(u64, u64)| {
            let (offset, length) = (usize::try_from(offset).ok()?, usize::try_from(length).ok()?);
            left = left.checked_sub(length)?;
            stored.get(offset..offset.checked_add(length)?)
        };
        item.extents.iter().map(part).collect()
    }

    /// The item of a number, made if there is none. `None` if there are too many: a few bytes would each
    /// take some hundred of memory.
    fn item(&mut self, number: u32) -> Option<&mut Item<'a>> {
        let has_room = self.items.len() < MAX_ITEMS || self.items.contains_key(&number);
        has_room.then(|| self.items.entry(number).or_default())
    }

    fn read_types(&mut self, mut reader: Reader<'a>) -> Option<()> {
        let (version, _) = reader.version_and_flags()?;
        reader.narrow_or_wide(version > 0)?;
        for (_, content) in boxes(reader.0).filter(|(kind, _)| kind == b"infe") {
            let mut reader = Reader(content);
            let (version, _) = reader.version_and_flags()?;
            let number = reader.narrow_or_wide(version > 2)?;
            let _protection = reader.u16()?;
            let kind = reader.bytes(4)?.try_into().ok()?;
            let _name = reader.text();
            let item = self.item(number)?;
            item.kind = kind;
            item.mime = if &kind == b"mime" { reader.text() } else { b"" };
        }
        Some(())
    }

    fn read_locations(&mut self, mut reader: Reader<'a>) -> Option<()> {
        let (version, _) = reader.version_and_flags()?;
        let sizes = reader.u16()?;
        let [offset_size, length_size, base_size, index_size] =
            [12, 8, 4, 0].map(|shift| usize::from(sizes >> shift & 15));
        // Every part has a length, so that each one costs bytes of the file.
        let is_valid = [0, 4, 8].contains(&offset_size) && [4, 8].contains(&length_size);
        if !is_valid || ![0, 4, 8].contains(&base_size) {
            return None;
        }
        for _ in 0..reader.narrow_or_wide(version > 1)? {
            let number = reader.narrow_or_wide(version > 1)?;
            let method = if version > 0 { reader.u16()? & 15 } else { 0 };
            let _data_reference = reader.u16()?;
            let base = reader.number(base_size)?;
            let item = self.item(number)?;
            item.is_in_item_data = method == 1;
            for _ in 0..reader.u16()? {
                if version > 0 {
                    reader.bytes(index_size)?;
                }
                let offset = base.checked_add(reader.number(offset_size)?)?;
                let length = reader.number(length_size)?;
                // Method 2, places in other items, is not used by AVIF.
                if length > 0 && method < 2 {
                    item.extents.push((offset, length));
                }
            }
        }
        Some(())
    }

    fn read_references(&mut self, mut reader: Reader<'a>) -> Option<()> {
        let (version, _) = reader.version_and_flags()?;
        let wide = version > 0;
        for (kind, content) in boxes(reader.0) {
            let mut reader = Reader(content);
            let item = self.item(reader.narrow_or_wide(wide)?)?;
            for _ in 0..reader.u16()? {
                let target = reader.narrow_or_wide(wide)?;
                match &kind {
                    b"auxl" => item.auxiliary_of = target,
                    b"cdsc" => item.describes = target,
                    b"prem" => item.premultiplied_by = target,
                    b"thmb" => item.is_thumbnail = true,
                    b"dimg" => item.cells.push(target),
                    _ => {}
                }
            }
        }
        Some(())
    }

    fn read_properties(&mut self, content: &'a [u8]) -> Option<()> {
        let properties: Vec<_> = boxes(find(content, b"ipco")?).collect();
        for (_, content) in boxes(content).filter(|(kind, _)| kind == b"ipma") {
            let mut reader = Reader(content);
            let (version, flags) = reader.version_and_flags()?;
            for _ in 0..reader.u32()? {
                let item = self.item(reader.narrow_or_wide(version > 0)?)?;
                for _ in 0..reader.u8()? {
                    // The uppermost bit says whether the property is essential.
                    let (index, essential) = if flags & 1 == 1 {
                        let both = reader.u16()?;
                        (both & 0x7fff, both & 0x8000 != 0)
                    } else {
                        let both = reader.u8()?;
                        (u16::from(both & 0x7f), both & 0x80 != 0)
                    };
                    // Index 0 stands for no property.
                    if let Some(index) = usize::from(index).checked_sub(1) {
                        let &(kind, content) = properties.get(index)?;
                        item.properties.add(kind, content, essential)?;
                    }
                }
            }
        }
        Some(())
    }
}

impl Item<'_> {
    fn is_image(&self) -> bool {
        matches!(&self.kind, b"av01" | b"grid")
            && !self.extents.is_empty()
            && !self.is_thumbnail
            && !self.properties.has_unknown_essential
    }
}

/// The bytes of all parts, copied only if there are several.
pub fn join<'a>(parts: &[&'a [u8]]) -> Cow<'a, [u8]> {
    match parts {
        [part] => Cow::Borrowed(part),
        _ => Cow::Owned(parts.concat()),
    }
}
