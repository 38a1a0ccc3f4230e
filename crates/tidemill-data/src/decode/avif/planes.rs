//! Planes of samples, put together from the tiles of an image.

use crate::decode::avif::av1::{Av1Decoder, Chroma, Frame};
use crate::decode::avif::error::AvifError;
use crate::decode::avif::layer::Layer;

/// A sample of 8 bits, or one of 10 or 12 bits in 16.
pub trait Sample: Copy + Default + Into<u16> {
    /// Copies the samples at the front of a frame's row.
    fn copy_row(row: &[u8], samples: &mut [Self]);

    /// A number that has no more bits than the sample.
    fn from_u16(number: u16) -> Self;
}

impl Sample for u8 {
    fn copy_row(row: &[u8], samples: &mut [Self]) {
        samples.iter_mut().zip(row).for_each(|(sample, byte)| *sample = *byte);
    }

    fn from_u16(number: u16) -> Self {
        number as u8
    }
}

impl Sample for u16 {
    fn copy_row(row: &[u8], samples: &mut [Self]) {
        let (row, _) = row.as_chunks::<2>();
        samples.iter_mut().zip(row).for_each(|(sample, bytes)| *sample = u16::from_ne_bytes(*bytes));
    }

    fn from_u16(number: u16) -> Self {
        number
    }
}

/// Samples row by row.
#[derive(Debug)]
pub struct Plane<T> {
    pub width: usize,
    pub height: usize,
    pub samples: Vec<T>,
}

impl<T> Plane<T> {
    pub fn row(&self, y: usize) -> &[T] {
        let start = y * self.width;
        self.samples.get(start..start + self.width).unwrap_or_default()
    }
}

/// Luma, chroma and alpha of an image.
#[derive(Debug)]
pub struct Planes<T> {
    pub depth: u32,
    pub chroma_layout: Chroma,
    pub luma: Plane<T>,
    /// Empty planes if there is no chroma.
    pub chroma: [Plane<T>; 2],
    pub alpha: Option<Plane<T>>,
}

impl<T: Sample> Planes<T> {
    /// The upper 8 bits of all samples.
    pub fn narrow(&self) -> Planes<u8> {
        let shift = self.depth - 8;
        let narrow = |plane: &Plane<T>| Plane {
            width: plane.width,
            height: plane.height,
            samples: plane.samples.iter().map(|&sample| (sample.into() >> shift) as u8).collect(),
        };
        Planes {
            depth: 8,
            chroma_layout: self.chroma_layout,
            luma: narrow(&self.luma),
            chroma: self.chroma.each_ref().map(narrow),
            alpha: self.alpha.as_ref().map(narrow),
        }
    }
}

/// The decoder of a layer's tiles, and the first frame, which says what the others are like.
pub struct LayerDecoder<'a> {
    layer: &'a Layer<'a>,
    decoder: Av1Decoder,
    pub first: Frame,
}

impl<'a> LayerDecoder<'a> {
    /// Decodes the first tile.
    pub fn new(layer: &'a Layer<'a>) -> Result<Self, AvifError> {
        let pixels = layer.tile_width * layer.tile_height;
        let mut decoder = Av1Decoder::new(pixels, layer.operating_point)?;
        let tile = layer.tiles.first().ok_or_else(|| AvifError::damaged("an image without tiles"))?;
        let first = decoder.decode(tile.concat())?;
        if (first.width(), first.height()) != (layer.tile_width, layer.tile_height) {
            return Err(AvifError::unsupported("a coded image of another size than the file says"));
        }
        Ok(Self { layer, decoder, first })
    }

    /// Decodes the other tiles, and puts the first `count` planes together.
    pub fn decode<T: Sample>(mut self, count: usize) -> Result<Vec<Plane<T>>, AvifError> {
        let layer = self.layer;
        let chroma = self.first.chroma();
        let depth = self.first.depth();
        if layer.tiles.len() > 1 {
            check_grid(layer, if count > 1 { chroma } else { Chroma::Full })?;
        }
        let (width, height) = (layer.width as usize, layer.height as usize);
        let mut planes: Vec<_> =
            (0..count).map(|index| allocate(width, height, chroma.shifts(index))).collect();
        let mut frame = self.first;
        for (index, next) in (0..).zip(layer.tiles.iter().skip(1).map(Some).chain([None])) {
            for (plane_index, plane) in planes.iter_mut().enumerate() {
                copy_tile(&frame, plane_index, plane, tile_place(layer, index, chroma.shifts(plane_index)));
            }
            let Some(next) = next else { break };
            frame = self.decoder.decode(next.concat())?;
            let size = (frame.width(), frame.height());
            if size != (layer.tile_width, layer.tile_height)
                || frame.depth() != depth
                || frame.chroma() != chroma
            {
                return Err(AvifError::damaged("the cells of a grid differ"));
            }
        }
        self.decoder.keep();
        Ok(planes)
    }
}

/// Cells with subsampled chroma must have even sides, so that no chroma sample belongs to two of them.
fn check_grid(layer: &Layer, chroma: Chroma) -> Result<(), AvifError> {
    let (x, y) = chroma.shifts(1);
    let is_odd = |side: u32, shift: u32| side & shift == 1;
    if is_odd(layer.tile_width | layer.width, x) || is_odd(layer.tile_height | layer.height, y) {
        return Err(AvifError::damaged("cells of a grid with odd sides"));
    }
    Ok(())
}

fn allocate<T: Sample>(width: usize, height: usize, (x, y): (u32, u32)) -> Plane<T> {
    let (width, height) = (shifted(width, x), shifted(height, y));
    Plane { width, height, samples: vec![T::default(); width * height] }
}

/// Half a side, rounded up, if `shift` is 1.
fn shifted(side: usize, shift: u32) -> usize {
    (side + shift as usize) >> shift
}

/// Left column and top row of a tile in a plane.
fn tile_place(layer: &Layer, index: u32, (x, y): (u32, u32)) -> (usize, usize) {
    let (column, row) = (index % layer.columns, index / layer.columns);
    ((column * layer.tile_width) as usize >> x, (row * layer.tile_height) as usize >> y)
}

/// Copies what of a tile lies within the plane.
fn copy_tile<T: Sample>(frame: &Frame, index: usize, plane: &mut Plane<T>, (left, top): (usize, usize)) {
    let (bytes, stride) = frame.plane(index);
    let (x, _) = frame.chroma().shifts(index);
    let width = shifted(frame.width() as usize, x).min(plane.width.saturating_sub(left));
    let rows = plane.samples.chunks_exact_mut(plane.width).skip(top);
    // The frame's plane ends with its last row.
    for (samples, row) in rows.zip(bytes.chunks(stride)) {
        if let Some(samples) = samples.get_mut(left..left + width) {
            T::copy_row(row, samples);
        }
    }
}
