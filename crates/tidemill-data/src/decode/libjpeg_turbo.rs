//! libjpeg-turbo through its TurboJPEG interface. The crate `turbojpeg` wraps it safely but cannot
//! decode only some columns, so the few calls needed are made here.
#![allow(unsafe_code, reason = "calls into C")]

use std::ffi::{CStr, c_int, c_ulong, c_void};
use std::ops::Range;
use std::ptr::NonNull;

use turbojpeg::raw;

use crate::decode::buffer_pool::take_buffer;
use crate::decode::scale::Scale;
use crate::error::RowError;

/// What the header of a JPEG says.
#[derive(Debug, Clone, Copy)]
pub struct Header {
    /// Stored width in pixels.
    pub width: usize,
    /// Stored height in pixels.
    pub height: usize,
    /// The image is CMYK or YCCK: four bytes a pixel.
    pub is_cmyk: bool,
    /// The image is lossless: it can be decoded neither at a scale nor in part.
    pub is_lossless: bool,
    /// The image is progressive or uses arithmetic coding, so libjpeg-turbo does not notice if data
    /// are missing at the end.
    pub may_miss_scans: bool,
    /// Width in pixels of an iMCU, the unit in which the image is coded, if its subsampling is a
    /// common one.
    pub mcu_width: Option<usize>,
}

/// The pixels to decode.
#[derive(Debug, Clone)]
pub struct Region {
    /// Scale.
    pub scale: Scale,
    /// Columns of the scaled image. The first one must be a multiple of the scaled iMCU width.
    pub columns: Range<usize>,
}

/// Decoded pixels of some columns.
pub struct Pixels {
    /// Number of columns.
    pub width: usize,
    /// Height of the scaled image.
    pub height: usize,
    /// Three bytes a pixel, or four if the image is CMYK.
    pub bytes: Vec<u8>,
    /// A warning of libjpeg-turbo; parts of the image may be missing.
    pub warning: Option<RowError>,
}

/// A decompressor of libjpeg-turbo.
pub struct Decoder {
    handle: NonNull<c_void>,
}

impl Decoder {
    /// Creates a decoder that rejects images of more than `max_scans` scans.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn new(max_scans: u16) -> Result<Self, RowError> {
        // SAFETY: takes no pointers.
        let handle = unsafe { raw::tj3Init(raw::TJINIT_TJINIT_DECOMPRESS as c_int) };
        let mut decoder = Self { handle: NonNull::new(handle).ok_or_else(out_of_memory_error)? };
        let scans = raw::TJPARAM_TJPARAM_SCANLIMIT as c_int;
        // SAFETY: the handle is valid, here and below, for as long as the decoder is.
        let set = unsafe { raw::tj3Set(decoder.raw(), scans, max_scans.into()) };
        decoder.check(set)?;
        Ok(decoder)
    }

    /// Reads the header.
    ///
    /// # Errors
    /// The message of libjpeg-turbo.
    pub fn header(&mut self, bytes: &[u8]) -> Result<Header, RowError> {
        // SAFETY: the bytes are read during the call only.
        let read = unsafe { raw::tj3DecompressHeader(self.raw(), bytes.as_ptr(), bytes.len() as c_ulong) };
        self.check(read)?;
        let side = |value: c_int| {
            usize::try_from(value).map_err(|_| RowError::Damaged("the header gives no size".into()))
        };
        let colours = self.get(raw::TJPARAM_TJPARAM_COLORSPACE);
        let subsampling = usize::try_from(self.get(raw::TJPARAM_TJPARAM_SUBSAMP)).ok();
        Ok(Header {
            width: side(self.get(raw::TJPARAM_TJPARAM_JPEGWIDTH))?,
            height: side(self.get(raw::TJPARAM_TJPARAM_JPEGHEIGHT))?,
            is_cmyk: [raw::TJCS_TJCS_CMYK, raw::TJCS_TJCS_YCCK].iter().any(|&kind| kind as c_int == colours),
            is_lossless: self.get(raw::TJPARAM_TJPARAM_LOSSLESS) != 0,
            may_miss_scans: self.get(raw::TJPARAM_TJPARAM_ARITHMETIC) != 0
                || self.get(raw::TJPARAM_TJPARAM_PROGRESSIVE) != 0,
            // 4:4:4, 4:2:2, 4:2:0, grey, 4:4:0, 4:1:1, 4:4:1.
            mcu_width: subsampling.and_then(|kind| [8, 16, 16, 8, 8, 32, 8].get(kind).copied()),
        })
    }

    /// Decodes the region that `choose` returns for the header.
    ///
    /// # Errors
    /// The error of `choose`, or the message of libjpeg-turbo if nothing could be decoded.
    pub fn decode(
        &mut self,
        bytes: &[u8],
        choose: impl FnOnce(&Header) -> Result<Region, RowError>,
    ) -> Result<Pixels, RowError> {
        let header = self.header(bytes)?;
        let Region { scale, columns } = choose(&header)?;
        let (width, height) = (columns.len(), scale.scale_side(header.height));
        self.set_region(raw::tjregion { x: 0, y: 0, w: 0, h: 0 })?;
        // libjpeg-turbo accepts fractions in lowest terms only.
        let factor = raw::tjscalingfactor { num: 1, denom: 8 / c_int::from(scale.0) };
        // SAFETY: no pointers but the handle's.
        let set = unsafe { raw::tj3SetScalingFactor(self.raw(), factor) };
        self.check(set)?;
        if columns != (0..scale.scale_side(header.width)) {
            let (x, w, h) = (columns.start as c_int, width as c_int, height as c_int);
            self.set_region(raw::tjregion { x, y: 0, w, h })?;
        }
        let (channels, format) =
            if header.is_cmyk { (4, raw::TJPF_TJPF_CMYK) } else { (3, raw::TJPF_TJPF_RGB) };
        let mut pixels = take_buffer(width * height * channels);
        // SAFETY: the bytes are those that the header was read from. At this scale the region has
        // `height` rows of `width` pixels, and so many are written.
        let decoded = unsafe {
            let (from, length) = (bytes.as_ptr(), bytes.len() as c_ulong);
            raw::tj3Decompress8(self.raw(), from, length, pixels.as_mut_ptr(), 0, format as c_int)
        };
        let message = self.check(decoded).err();
        // SAFETY: no pointers but the handle's.
        let fatal = unsafe { raw::tj3GetErrorCode(self.raw()) } != raw::TJERR_TJERR_WARNING as c_int;
        match message {
            Some(error) if fatal => Err(error),
            warning => Ok(Pixels { width, height, bytes: pixels, warning }),
        }
    }

    fn set_region(&mut self, region: raw::tjregion) -> Result<(), RowError> {
        // SAFETY: no pointers but the handle's.
        let set = unsafe { raw::tj3SetCroppingRegion(self.raw(), region) };
        self.check(set)
    }

    fn get(&mut self, parameter: raw::TJPARAM) -> c_int {
        // SAFETY: no pointers but the handle's.
        unsafe { raw::tj3Get(self.raw(), parameter as c_int) }
    }

    fn check(&mut self, result: c_int) -> Result<(), RowError> {
        if result == 0 {
            return Ok(());
        }
        // SAFETY: the text ends with a 0 and lies in the decoder.
        let text = unsafe { CStr::from_ptr(raw::tj3GetErrorStr(self.raw())) };
        Err(RowError::Damaged(text.to_string_lossy().into_owned()))
    }

    fn raw(&mut self) -> raw::tjhandle {
        self.handle.as_ptr()
    }
}

fn out_of_memory_error() -> RowError {
    RowError::Other("memory: none for a decoder of libjpeg-turbo".into())
}

impl Drop for Decoder {
    fn drop(&mut self) {
        // SAFETY: the handle is not used again.
        unsafe { raw::tj3Destroy(self.raw()) }
    }
}
