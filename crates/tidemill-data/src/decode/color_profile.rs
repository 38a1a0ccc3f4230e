//! Conversion of pixels to sRGB by an ICC profile, through Little CMS with the perceptual intent, as
//! Pillow's `ImageCms.profileToProfile` does.

use std::cell::RefCell;

use lcms2::{ColorSpaceSignature, Intent, PixelFormat, Profile, ThreadContext, Transform};
use twox_hash::XxHash3_64;

/// Transforms that a thread keeps. Most images of a data set have one of few profiles.
const KEPT_TRANSFORMS: usize = 8;

/// The components of stored pixels, 8 bits each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColorModel {
    /// One component.
    Grey,
    /// Three.
    Rgb,
    /// Four; 255 is full ink.
    Cmyk,
}

type ToRgb<const N: usize> = Transform<[u8; N], [u8; 3], ThreadContext>;

enum AnyTransform {
    Grey(ToRgb<1>),
    Rgb(ToRgb<3>),
    Cmyk(ToRgb<4>),
}

/// A thread's transforms by profile and model; `None` for profiles that cannot be used.
type Transforms = Vec<((u64, ColorModel), Option<AnyTransform>)>;

/// The pixels as sRGB; `None` if the profile is damaged or for other components than these.
pub fn convert_to_srgb(profile: &[u8], model: ColorModel, pixels: &[u8]) -> Option<Vec<u8>> {
    thread_local! {
        static TRANSFORMS: RefCell<Transforms> = const { RefCell::new(Vec::new()) };
    }
    let key = (XxHash3_64::oneshot(profile), model);
    TRANSFORMS.with_borrow_mut(|transforms| {
        let known = transforms.iter().position(|(known, _)| *known == key);
        // The last used comes last.
        let entry =
            known.map_or_else(|| (key, open_transform(profile, model)), |known| transforms.remove(known));
        if transforms.len() == KEPT_TRANSFORMS {
            transforms.remove(0);
        }
        transforms.push(entry);
        let (_, transform) = transforms.last()?;
        Some(match transform.as_ref()? {
            AnyTransform::Grey(transform) => run(transform, pixels),
            AnyTransform::Rgb(transform) => run(transform, pixels),
            AnyTransform::Cmyk(transform) => run(transform, pixels),
        })
    })
}

fn open_transform(profile: &[u8], model: ColorModel) -> Option<AnyTransform> {
    let input = Profile::new_icc_context(ThreadContext::new(), profile).ok()?;
    Some(match (model, input.color_space()) {
        (ColorModel::Grey, ColorSpaceSignature::GrayData) => {
            AnyTransform::Grey(to_srgb(&input, PixelFormat::GRAY_8)?)
        }
        (ColorModel::Rgb, ColorSpaceSignature::RgbData) => {
            AnyTransform::Rgb(to_srgb(&input, PixelFormat::RGB_8)?)
        }
        (ColorModel::Cmyk, ColorSpaceSignature::CmykData) => {
            AnyTransform::Cmyk(to_srgb(&input, PixelFormat::CMYK_8)?)
        }
        _ => return None,
    })
}

fn to_srgb<const N: usize>(input: &Profile<ThreadContext>, format: PixelFormat) -> Option<ToRgb<N>>
where
    [u8; N]: bytemuck::Pod,
{
    let context = ThreadContext::new();
    let srgb = Profile::new_srgb_context(&context);
    Transform::new_context(&context, input, format, &srgb, PixelFormat::RGB_8, Intent::Perceptual).ok()
}

fn run<const N: usize>(transform: &ToRgb<N>, pixels: &[u8]) -> Vec<u8>
where
    [u8; N]: bytemuck::Pod,
{
    let (stored, _) = pixels.as_chunks::<N>();
    let mut converted = vec![[0; 3]; stored.len()];
    transform.transform_pixels(stored, &mut converted);
    converted.into_flattened()
}
