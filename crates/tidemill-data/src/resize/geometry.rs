//! Rectangles in pixels.

/// A rectangle in pixels of the original image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rect {
    /// Left edge.
    pub x: u32,
    /// Upper edge.
    pub y: u32,
    /// Width.
    pub width: u32,
    /// Height.
    pub height: u32,
}

/// A rectangle whose edges may lie between pixels, such as a crop of the original in the pixels of
/// an image that was decoded at a scale.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FractionalRect {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) right: f64,
    pub(super) bottom: f64,
}

impl From<Rect> for FractionalRect {
    fn from(rect: Rect) -> Self {
        let Rect { x, y, width, height } = rect;
        let [left, top, width, height] = [x, y, width, height].map(f64::from);
        Self { left, top, right: left + width, bottom: top + height }
    }
}

impl Rect {
    /// Converts this rectangle of an image of size `from` to the same image decoded at size `to`.
    pub fn scale_to(self, from: (u32, u32), to: (u32, u32)) -> FractionalRect {
        let FractionalRect { left, top, right, bottom } = self.into();
        let scale = |to: u32, from: u32| f64::from(to) / f64::from(from.max(1));
        let (x, y) = (scale(to.0, from.0), scale(to.1, from.1));
        // The product can be rounded past the image's edge, as in 338 * (43 / 338).
        let (right, bottom) = ((right * x).min(f64::from(to.0)), (bottom * y).min(f64::from(to.1)));
        FractionalRect { left: left * x, top: top * y, right, bottom }
    }
}
