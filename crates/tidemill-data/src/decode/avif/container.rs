//! Finds the image in a file, as libavif does: the first frame of a sequence if the file is one, else
//! the primary item.

use std::collections::BTreeSet;

use crate::decode::avif::boxes::{Reader, boxes, find};
use crate::decode::avif::error::AvifError;
use crate::decode::avif::items::{Item, Items};
use crate::decode::avif::layer::{Image, Layer, check_size};
use crate::decode::avif::properties::Properties;
use crate::decode::avif::sequence;

/// True if a file says that it is AVIF.
pub fn is_avif(file: &[u8]) -> bool {
    let first = boxes(file).next().filter(|(kind, _)| kind == b"ftyp");
    first.is_some_and(|(_, brands)| {
        brands.as_chunks::<4>().0.iter().any(|brand| [b"avif", b"avis"].contains(&brand))
    })
}

/// Finds the image in a file.
///
/// # Errors
/// If the file is not AVIF, is damaged, or needs something that is not supported.
pub fn find_image(file: &[u8]) -> Result<Image<'_>, AvifError> {
    let brands = find(file, b"ftyp").ok_or_else(|| AvifError::damaged("no file type"))?;
    let (brands, _) = brands.as_chunks::<4>();
    let has_brand = |brand| brands.contains(brand);
    if !has_brand(b"avif") && !has_brand(b"avis") {
        return Err(AvifError::unsupported("the file is not of an AVIF brand"));
    }
    let major = brands.first();
    let prefers_sequence = major == Some(b"avis") || (has_brand(b"avis") && major != Some(b"avif"));
    match find(file, b"moov").filter(|_| prefers_sequence) {
        Some(movie) => sequence::find_image(file, movie),
        None => find_item(file),
    }
}

fn find_item(file: &[u8]) -> Result<Image<'_>, AvifError> {
    let meta = find(file, b"meta").ok_or_else(|| AvifError::damaged("no items"))?;
    let items = Items::read(file, meta).ok_or_else(|| AvifError::damaged("the items cannot be read"))?;
    let number = items.primary;
    let item = items
        .image(number)
        .ok_or_else(|| AvifError::unsupported("the primary item is not an image that can be decoded"))?;
    let color = read_layer(&items, item, None)?;
    let (alpha, alpha_number) = match items.alpha_of(number) {
        Some(alpha) => {
            let item = items.image(alpha).ok_or_else(|| AvifError::damaged("no alpha plane"))?;
            (Some(read_layer(&items, item, Some(&color))?), alpha)
        }
        None => (read_alpha_of_cells(&items, item, &color)?, 0),
    };
    let is_premultiplied = alpha_number != 0 && item.premultiplied_by == alpha_number;
    let [exif, xmp] = items.metadata_of(number);
    let Properties { cicp, icc, .. } = item.properties;
    let orientation = item.properties.orientation();
    Ok(Image { color, alpha, is_premultiplied, cicp, icc, orientation, exif, xmp })
}

/// Reads a coded image or a grid. An alpha plane may lack a size; it then has that of the `colors`.
fn read_layer<'a>(
    items: &Items<'a>,
    item: &Item<'a>,
    colors: Option<&Layer>,
) -> Result<Layer<'a>, AvifError> {
    let content = items.content(item).ok_or_else(cut_short)?;
    if &item.kind == b"grid" {
        let grid = Grid::read(&content.concat()).ok_or_else(cut_short)?;
        return read_cells(items, &grid, &item.cells);
    }
    check_properties(&item.properties)?;
    let size = item.properties.size.or(colors.map(|colors| (colors.width, colors.height)));
    let size = size.ok_or_else(|| AvifError::damaged("an image without a size"))?;
    Layer::single(size, content, item.properties.operating_point)
}

/// Columns, rows and size of an image that is put together from cells.
struct Grid {
    columns: u32,
    rows: u32,
    size: (u32, u32),
}

impl Grid {
    /// Reads the content of a grid item.
    fn read(content: &[u8]) -> Option<Self> {
        let mut reader = Reader(content);
        let _version = reader.u8()?;
        let is_wide = reader.u8()? & 1 == 1;
        let rows = u32::from(reader.u8()?) + 1;
        let columns = u32::from(reader.u8()?) + 1;
        let size = (reader.narrow_or_wide(is_wide)?, reader.narrow_or_wide(is_wide)?);
        Some(Self { columns, rows, size })
    }
}

fn read_cells<'a>(items: &Items<'a>, grid: &Grid, cells: &[u32]) -> Result<Layer<'a>, AvifError> {
    let (width, height) = check_size(grid.size)?;
    let (columns, rows) = (grid.columns, grid.rows);
    if cells.len() as u64 != u64::from(columns) * u64::from(rows) {
        return Err(AvifError::damaged("a grid with too few or too many cells"));
    }
    // A cell that is repeated many times would let a small file take much memory.
    let mut seen = BTreeSet::new();
    if !cells.iter().all(|cell| seen.insert(cell)) {
        return Err(AvifError::damaged("a cell occurs twice in a grid"));
    }
    let cell = |number: &u32| {
        let cell = items.image(*number).filter(|cell| &cell.kind == b"av01");
        cell.ok_or_else(|| AvifError::damaged("a cell of a grid is not an image"))
    };
    let Properties { size, operating_point, .. } =
        cell(cells.first().ok_or_else(|| AvifError::damaged("a grid without cells"))?)?.properties;
    let size = size.ok_or_else(|| AvifError::damaged("a cell of a grid without a size"))?;
    let (tile_width, tile_height) = check_size(size)?;
    // Cells beyond the image would be decoded for nothing.
    let covers = |tile: u32, count: u32, side: u32| {
        let (tile, count, side) = (u64::from(tile), u64::from(count), u64::from(side));
        tile * count >= side && tile * (count - 1) < side
    };
    if !covers(tile_width, columns, width) || !covers(tile_height, rows, height) {
        return Err(AvifError::damaged("the cells of a grid do not fit its size"));
    }
    let mut tiles = Vec::with_capacity(cells.len());
    for number in cells {
        let cell = cell(number)?;
        check_properties(&cell.properties)?;
        if cell.properties.size != Some(size) || cell.properties.operating_point != operating_point {
            return Err(AvifError::damaged("the cells of a grid differ"));
        }
        tiles.push(items.content(cell).ok_or_else(cut_short)?);
    }
    // Contents may overlap, and each is copied.
    let bytes: usize = tiles.iter().flatten().map(|part: &&[u8]| part.len()).sum();
    if bytes > items.file_len() {
        return Err(AvifError::damaged("the cells of a grid are larger than the file"));
    }
    Ok(Layer { width, height, tile_width, tile_height, columns, tiles, operating_point })
}

/// The alpha plane of a grid of which every cell has its own.
fn read_alpha_of_cells<'a>(
    items: &Items<'a>,
    grid: &Item,
    colors: &Layer,
) -> Result<Option<Layer<'a>>, AvifError> {
    let cells: Option<Vec<u32>> = grid.cells.iter().map(|cell| items.alpha_of(*cell)).collect();
    let Some(cells) = cells.filter(|cells| !cells.is_empty()) else { return Ok(None) };
    let Layer { width, height, columns, .. } = *colors;
    let grid = Grid { columns, rows: colors.tiles.len() as u32 / columns, size: (width, height) };
    read_cells(items, &grid, &cells).map(Some)
}

fn check_properties(properties: &Properties) -> Result<(), AvifError> {
    if properties.selects_layer {
        return Err(AvifError::unsupported("a selection of layers"));
    }
    if properties.has_unknown_essential {
        return Err(AvifError::unsupported("an essential property that is not known"));
    }
    Ok(())
}

fn cut_short() -> AvifError {
    AvifError::damaged("the file is cut short")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boxed(kind: &[u8; 4], content: &[u8]) -> Vec<u8> {
        [&(content.len() as u32 + 8).to_be_bytes(), &kind[..], content].concat()
    }

    /// A file whose items have consecutive numbers from 1, types, properties and contents. The contents
    /// come first, so that their places are known.
    fn file(size: (u32, u32), items: &[([u8; 4], &[u8])], references: &[u8]) -> Vec<u8> {
        let mut file = [boxed(b"ftyp", b"avif\0\0\0\0avif"), vec![0, 0, 0, 0], b"mdat".to_vec()].concat();
        let data = file.len() - 8;
        let count = [0, items.len() as u8];
        let (mut types, mut places) = (count.to_vec(), [&[0x44, 0][..], &count].concat());
        let mut associations = vec![0, 0, 0, items.len() as u8];
        for (number, (kind, content)) in (1..).zip(items) {
            types.extend(boxed(b"infe", &[&[2, 0, 0, 0, 0, number, 0, 0], &kind[..], b"\0"].concat()));
            places.extend([0, number, 0, 0, 0, 1]);
            places.extend((file.len() as u32).to_be_bytes());
            places.extend((content.len() as u32).to_be_bytes());
            associations.extend([0, number, 1, 1]);
            file.extend_from_slice(content);
        }
        let length = (file.len() - data) as u32;
        file[data..data + 4].copy_from_slice(&length.to_be_bytes());
        let full = |kind, content: &[u8]| boxed(kind, &[&[0; 4], content].concat());
        let sides = [size.0, size.1].map(u32::to_be_bytes);
        let properties = boxed(b"ipco", &full(b"ispe", sides.as_flattened()));
        let properties = boxed(b"iprp", &[properties, full(b"ipma", &associations)].concat());
        let meta = [full(b"pitm", &[0, 1]), full(b"iinf", &types), full(b"iloc", &places), properties];
        file.extend(full(b"meta", &[meta.concat(), full(b"iref", references)].concat()));
        file
    }

    #[test]
    fn the_primary_item_is_found() {
        let file = file((30, 20), &[(*b"av01", b"abc")], b"");
        let image = find_image(&file).unwrap();
        assert_eq!((image.color.width, image.color.height, image.orientation), (30, 20, 1));
        assert_eq!(image.color.tiles, [[b"abc"]]);
        assert!(image.alpha.is_none() && image.icc.is_none() && image.cicp.is_none());
    }

    #[test]
    fn the_cells_of_a_grid_are_found() {
        let cells = |references: &[u8]| {
            let grid = [0, 0, 0, 1, 0, 50, 0, 20];
            let items: [(_, &[u8]); 3] = [(*b"grid", &grid), (*b"av01", b"abc"), (*b"av01", b"de")];
            file((30, 20), &items, &boxed(b"dimg", references))
        };
        let file = cells(&[0, 1, 0, 2, 0, 3, 0, 2]);
        let color = find_image(&file).unwrap().color;
        assert_eq!((color.width, color.height, color.tile_width, color.columns), (50, 20, 30, 2));
        assert_eq!(color.tiles, [[&b"de"[..]], [b"abc"]]);
        // Too few cells, a repeated cell, and a cell that is a grid.
        for references in [&[0, 1, 0, 1, 0, 2][..], &[0, 1, 0, 2, 0, 2, 0, 2], &[0, 1, 0, 2, 0, 1, 0, 2]] {
            assert!(matches!(find_image(&cells(references)), Err(AvifError::Damaged(_))), "{references:?}");
        }
    }

    #[test]
    fn files_that_cannot_be_decoded_are_refused() {
        let bytes = b"abc";
        let item = |kind: &[u8; 4], size| file(size, &[(*kind, bytes)], b"");
        let cut = item(b"av01", (3, 2));
        let cut = [&cut[..20], &cut[20 + 8 + 3..]].concat();
        let cases = [
            (Vec::new(), "damaged: no file type"),
            (boxed(b"ftyp", b"heic\0\0\0\0heic"), "not supported: the file is not of an AVIF brand"),
            (boxed(b"ftyp", b"avif\0\0\0\0"), "damaged: no items"),
            (item(b"hvc1", (3, 2)), "not supported: the primary item is not an image"),
            (item(b"av01", (3, 0)), "damaged: an image without pixels"),
            (item(b"av01", (1 << 15, 1 << 14)), "too large: 32768x16384"),
            (cut[..cut.len() - 1].to_vec(), "damaged: no items"),
        ];
        for (file, message) in cases {
            let error = find_image(&file).unwrap_err().to_string();
            assert!(error.starts_with(message), "{error}");
        }
    }
}
