//! libjpeg-turbo through its TurboJPEG interface. The crate `turbojpeg` wraps it safely, but not the decoding of some
//! columns only, so the few calls needed are made here.
#![allow(unsafe_code, reason = "calls into C")]

use std::ffi::{CStr, c_int, c_ulong, c_void};
use std::ops::Range;
use std::ptr::NonNull;

use turbojpeg::raw;

use crate::decode::buffer_pool::buffer;
use crate::decode::scale::Scale;
use crate::error::RowError;

/// What a JPEG's header says.
#[derive(Debug, Clone, Copy)]
pub struct Header {
    /// As stored.
    pub width: usize,
    /// As stored.
    pub height: usize,
    /// Four inks instead of colours.
    pub cmyk: bool,
    /// Not scalable, nor can columns be left out.
    pub lossless: bool,
    /// Progressive or with arithmetic coding: libjpeg-turbo does not notice if data are missing at the end.
    pub open_ended: bool,
    /// Width of the units (iMCU) in which an image is coded, if its subsampling is a common one.
    pub unit: Option<usize>,
}

/// Which pixels are wanted.
#[derive(Debug, Clone)]
pub struct View {
    /// At which size.
    pub scale: Scale,
    /// Columns of the image at that scale; the first is a multiple of the scaled unit.
    pub columns: Range<usize>,
}

/// The pixels of some columns.
pub struct Pixels {
    /// Number of the columns.
    pub width: usize,
    /// As the scaled image has.
    pub height: usize,
    /// Three bytes a pixel, or four if the header says CMYK.
    pub bytes: Vec<u8>,
    /// What libjpeg-turbo did not like, if anything; parts of the picture may be missing.
    pub warning: Option<RowError>,
}

/// An instance of the decompressor.
pub struct Decoder {
    handle: NonNull<c_void>,
}

impl Decoder {
    /// A decoder that refuses images of more scans than so many.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn new(max_scans: u16) -> Result<Self, RowError> {
        // SAFETY: takes no pointers.
        let handle = unsafe { raw::tj3Init(raw::TJINIT_TJINIT_DECOMPRESS as c_int) };
        let mut decoder = Self { handle: NonNull::new(handle).ok_or_else(no_memory)? };
        let scans = raw::TJPARAM_TJPARAM_SCANLIMIT as c_int;
        // SAFETY: the handle is valid, here and below, for as long as the decoder is.
        let set = unsafe { raw::tj3Set(decoder.raw(), scans, max_scans.into()) };
        decoder.check(set)?;
        Ok(decoder)
    }

    /// Reads the header.
    ///
    /// # Errors
    /// libjpeg-turbo's message.
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
            cmyk: [raw::TJCS_TJCS_CMYK, raw::TJCS_TJCS_YCCK].iter().any(|&kind| kind as c_int == colours),
            lossless: self.get(raw::TJPARAM_TJPARAM_LOSSLESS) != 0,
            open_ended: self.get(raw::TJPARAM_TJPARAM_ARITHMETIC) != 0
                || self.get(raw::TJPARAM_TJPARAM_PROGRESSIVE) != 0,
            // 4:4:4, 4:2:2, 4:2:0, grey, 4:4:0, 4:1:1, 4:4:1.
            unit: subsampling.and_then(|kind| [8, 16, 16, 8, 8, 32, 8].get(kind).copied()),
        })
    }

    /// Decodes what `choose` wants of an image with this header.
    ///
    /// # Errors
    /// What `choose` says; libjpeg-turbo's message if nothing could be decoded.
    pub fn decode(
        &mut self,
        bytes: &[u8],
        choose: impl FnOnce(&Header) -> Result<View, RowError>,
    ) -> Result<Pixels, RowError> {
        let header = self.header(bytes)?;
        let View { scale, columns } = choose(&header)?;
        let (width, height) = (columns.len(), scale.of(header.height));
        self.set_region(raw::tjregion { x: 0, y: 0, w: 0, h: 0 })?;
        // It takes fractions only in lowest terms.
        let factor = raw::tjscalingfactor { num: 1, denom: 8 / c_int::from(scale.0) };
        // SAFETY: no pointers but the handle's.
        let set = unsafe { raw::tj3SetScalingFactor(self.raw(), factor) };
        self.check(set)?;
        if columns != (0..scale.of(header.width)) {
            let (x, w, h) = (columns.start as c_int, width as c_int, height as c_int);
            self.set_region(raw::tjregion { x, y: 0, w, h })?;
        }
        let (channels, format) = if header.cmyk { (4, raw::TJPF_TJPF_CMYK) } else { (3, raw::TJPF_TJPF_RGB) };
        let mut pixels = buffer(width * height * channels);
        // SAFETY: the bytes are those that the header was read from. At this scale the region has `height` rows of
        // `width` pixels, and so many are written.
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

fn no_memory() -> RowError {
    RowError::Other("memory: none for a decoder of libjpeg-turbo".into())
}

impl Drop for Decoder {
    fn drop(&mut self) {
        // SAFETY: nobody has the handle any more.
        unsafe { raw::tj3Destroy(self.raw()) }
    }
}
