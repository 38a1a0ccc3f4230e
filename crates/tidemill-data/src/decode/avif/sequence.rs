//! Image sequences: the first frame of the color track and of its alpha track.

use crate::decode::avif::boxes::{Reader, boxes, find};
use crate::decode::avif::error::AvifError;
use crate::decode::avif::items::Items;
use crate::decode::avif::layer::{Image, Layer};
use crate::decode::avif::properties::Properties;

struct Track<'a> {
    number: u32,
    size: (u32, u32),
    /// The track whose alpha track this is; 0 if none.
    auxiliary_of: u32,
    /// The alpha track by which the pixels are multiplied; 0 if none.
    premultiplied_by: u32,
    first_frame: &'a [u8],
    properties: Properties<'a>,
    items: Option<Items<'a>>,
}

/// Finds the first frame, from the content of the `moov` box.
///
/// # Errors
/// If there is no track of AV1 images.
pub fn find_image<'a>(file: &'a [u8], movie: &'a [u8]) -> Result<Image<'a>, AvifError> {
    let traks = boxes(movie).filter(|(kind, _)| kind == b"trak");
    let tracks: Vec<_> = traks.filter_map(|(_, trak)| read_track(file, trak)).collect();
    let color = tracks.iter().find(|track| track.auxiliary_of == 0);
    let color = color.ok_or_else(|| AvifError::damaged("no track of AV1 images"))?;
    // Old files do not say that the track is alpha.
    let is_alpha =
        |track: &&Track| track.auxiliary_of == color.number && track.properties.is_alpha != Some(false);
    let alpha = tracks.iter().find(is_alpha);
    let layer = |track: &Track<'a>| Layer::single(track.size, vec![track.first_frame], 0);
    let [exif, xmp] = color.items.as_ref().map(|items| items.metadata_of(0)).unwrap_or_default();
    Ok(Image {
        color: layer(color)?,
        alpha: alpha.map(layer).transpose()?,
        is_premultiplied: alpha.is_some_and(|alpha| color.premultiplied_by == alpha.number),
        cicp: color.properties.cicp,
        icc: color.properties.icc,
        orientation: color.properties.orientation(),
        exif,
        xmp,
    })
}

/// Reads the content of a `trak` box; `None` if it has no AV1 images.
fn read_track<'a>(file: &'a [u8], trak: &'a [u8]) -> Option<Track<'a>> {
    let (number, size) = read_header(find(trak, b"tkhd")?)?;
    let references = find(trak, b"tref").unwrap_or_default();
    // Of several references, the first counts.
    let reference = |kind| find(references, kind).and_then(|content| Reader(content).u32()).unwrap_or(0);
    let media = find(find(trak, b"mdia")?, b"minf")?;
    let samples = find(media, b"stbl")?;
    Some(Track {
        number,
        size,
        auxiliary_of: reference(b"auxl"),
        premultiplied_by: reference(b"prem"),
        first_frame: find_first_frame(file, samples)?,
        properties: read_sample_entry(find(samples, b"stsd")?)?,
        items: find(trak, b"meta").and_then(|meta| Items::read(file, meta)),
    })
}

/// Number, width and height of a track.
fn read_header(tkhd: &[u8]) -> Option<(u32, (u32, u32))> {
    let mut reader = Reader(tkhd);
    let (version, _) = reader.version_and_flags()?;
    let is_wide = version == 1;
    let _times = reader.bytes(if is_wide { 16 } else { 8 })?;
    let number = reader.u32().filter(|number| *number > 0)?;
    // A reserved number, the duration, the layout, and a matrix.
    reader.bytes(if is_wide { 12 } else { 8 } + 52)?;
    // In 16.16 fixed point.
    Some((number, (reader.u32()? >> 16, reader.u32()? >> 16)))
}

fn read_sample_entry(stsd: &[u8]) -> Option<Properties<'_>> {
    /// Bytes before the boxes of a visual sample entry.
    const VISUAL: usize = 78;
    let mut reader = Reader(stsd);
    reader.version_and_flags()?;
    let _count = reader.u32()?;
    let entry = find(reader.0, b"av01")?;
    Some(Properties::of_boxes(entry.get(VISUAL..)?))
}

fn find_first_frame<'a>(file: &'a [u8], samples: &[u8]) -> Option<&'a [u8]> {
    let (chunks, bytes) = match find(samples, b"stco") {
        Some(chunks) => (chunks, 4),
        None => (find(samples, b"co64")?, 8),
    };
    let mut chunks = Reader(chunks);
    chunks.version_and_flags()?;
    let _count = chunks.u32()?;
    let offset = usize::try_from(chunks.number(bytes)?).ok()?;
    let mut sizes = Reader(find(samples, b"stsz")?);
    sizes.version_and_flags()?;
    let same_for_all = sizes.u32()?;
    let _count = sizes.u32()?;
    let size = if same_for_all == 0 { sizes.u32()? } else { same_for_all };
    file.get(offset..offset.checked_add(usize::try_from(size).ok()?)?)
}
