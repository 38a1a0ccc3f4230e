//! AV1 frames, through re_rav1d.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use re_rav1d::{Decoder, Error, Picture, PixelLayout, PlanarImageComponent, Settings};

use crate::decode::avif::error::AvifError;
use crate::decode::avif::properties::Cicp;

/// The chroma planes of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chroma {
    /// 4:0:0, none.
    None,
    /// 4:2:0, half the width and half the height of luma.
    Quarter,
    /// 4:2:2, half the width of luma.
    Half,
    /// 4:4:4, as large as luma.
    Full,
}

impl Chroma {
    /// Bits by which the sides of plane `index` are shifted. Planes are luma, then both of chroma.
    pub fn shifts(self, index: usize) -> (u32, u32) {
        match self {
            Self::Quarter if index > 0 => (1, 1),
            Self::Half if index > 0 => (1, 0),
            _ => (0, 0),
        }
    }
}

/// Most pixels of frames for which a thread keeps its decoder.
const KEPT_PIXELS: u32 = 1 << 24;

thread_local! {
    /// The decoder that this thread keeps. With a new one for every image, the C library's allocator takes
    /// ever more memory: freed blocks are aligned, and glibc 2.36 uses few of them again.
    static KEPT: Cell<Option<Decoder>> = const { Cell::new(None) };
}

/// A decoder on the calling thread.
pub struct Av1Decoder {
    decoder: Decoder,
    can_be_kept: bool,
}

impl Av1Decoder {
    /// A decoder for frames of so many pixels.
    pub fn new(pixels: u32, operating_point: u8) -> Result<Self, AvifError> {
        let can_be_kept = pixels <= KEPT_PIXELS && operating_point == 0;
        if can_be_kept && let Some(decoder) = KEPT.take() {
            return Ok(Self { decoder, can_be_kept });
        }
        let mut settings = Settings::new();
        settings.set_n_threads(1);
        settings.set_max_frame_delay(1);
        settings.set_all_layers(false);
        settings.set_operating_point(operating_point.into());
        settings.set_frame_size_limit(if can_be_kept { KEPT_PIXELS } else { pixels });
        let decoder = Decoder::with_settings(&settings).map_err(to_avif_error)?;
        Ok(Self { decoder, can_be_kept })
    }

    /// Keeps the decoder for the thread's next image. One that failed is not kept.
    pub fn keep(self) {
        if self.can_be_kept {
            KEPT.set(Some(self.decoder));
        }
    }

    /// Decodes the first frame of the data.
    pub fn decode(&mut self, data: Vec<u8>) -> Result<Frame, AvifError> {
        if data.is_empty() {
            return Err(AvifError::damaged("a coded image without bytes"));
        }
        let mut is_pending = is_refused(self.decoder.send_data(data, None, None, None))?;
        let picture = loop {
            match self.decoder.get_picture() {
                Ok(picture) => break picture,
                Err(Error::Again) if is_pending => is_pending = is_refused(self.decoder.send_pending_data())?,
                Err(error) => return Err(to_avif_error(error)),
            }
        };
        // More frames would come before the frame of the next data.
        self.decoder.flush();
        Ok(Frame(picture))
    }
}

/// True if the decoder did not take all data, since frames have to be fetched first.
fn is_refused(sent: Result<(), Error>) -> Result<bool, AvifError> {
    match sent {
        Ok(()) => Ok(false),
        Err(Error::Again) => Ok(true),
        Err(error) => Err(to_avif_error(error)),
    }
}

fn to_avif_error(error: Error) -> AvifError {
    match error {
        Error::Again => AvifError::damaged("a coded image without a frame"),
        Error::UnsupportedBitstream => AvifError::unsupported("this AV1 stream"),
        Error::NotEnoughMemory => AvifError::TooLarge("no memory for a frame".into()),
        error => AvifError::Damaged(format!("AV1: {error}")),
    }
}

/// A decoded frame.
pub struct Frame(Picture);

impl Frame {
    pub fn width(&self) -> u32 {
        self.0.width()
    }

    pub fn height(&self) -> u32 {
        self.0.height()
    }

    /// Bits per sample: 8, 10 or 12.
    pub fn depth(&self) -> u32 {
        self.0.bit_depth() as u32
    }

    pub fn chroma(&self) -> Chroma {
        match self.0.pixel_layout() {
            PixelLayout::I400 => Chroma::None,
            PixelLayout::I420 => Chroma::Quarter,
            PixelLayout::I422 => Chroma::Half,
            PixelLayout::I444 => Chroma::Full,
        }
    }

    pub fn is_full_range(&self) -> bool {
        self.0.color_range() == re_rav1d::pixel::YUVRange::Full
    }

    /// What the coded image itself says about its colors.
    pub fn cicp(&self) -> Result<Cicp, AvifError> {
        // These functions panic at code points that are reserved.
        let codes = || (self.0.color_primaries() as u16, self.0.matrix_coefficients() as u16);
        let codes = catch_unwind(AssertUnwindSafe(codes));
        let (primaries, matrix) = codes.map_err(|_| AvifError::unsupported("reserved color codes"))?;
        Ok(Cicp { primaries, matrix, full_range: self.is_full_range() })
    }

    /// Bytes of a plane and bytes per row. Samples of more than 8 bits take two bytes, in the order of
    /// the machine.
    pub fn plane(&self, index: usize) -> (re_rav1d::Plane, usize) {
        let component = match index {
            0 => PlanarImageComponent::Y,
            1 => PlanarImageComponent::U,
            _ => PlanarImageComponent::V,
        };
        (self.0.plane(component), self.0.stride(component) as usize)
    }
}
