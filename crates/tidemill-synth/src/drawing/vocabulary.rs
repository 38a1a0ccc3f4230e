//! The vocabulary of the scenes: sizes, colours, shapes and places, and the held-out pairs of
//! colour and shape.

use serde::{Deserialize, Serialize};

/// Declares an attribute as an enum. Its values serialise in snake_case.
macro_rules! attribute {
    ($(#[$doc:meta])* $name:ident { $($(#[$value_doc:meta])* $value:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name { $($(#[$value_doc])* $value,)* }

        impl $name {
            /// All values, in a fixed order.
            pub const ALL: &'static [Self] = &[$(Self::$value),*];

            /// The canonical wording of this value in a caption.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$value => $word),* }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.word())
            }
        }
    };
}

attribute! {
    /// The object's size.
    Size {
        /// About a quarter of the image's side.
        Small = "small",
        /// About two fifths of the image's side.
        Large = "large",
    }
}

attribute! {
    /// The object's colour.
    Colour {
        /// Red.
        Red = "red",
        /// Orange.
        Orange = "orange",
        /// Yellow.
        Yellow = "yellow",
        /// Green.
        Green = "green",
        /// Cyan.
        Cyan = "cyan",
        /// Blue.
        Blue = "blue",
        /// Purple.
        Purple = "purple",
        /// Black.
        Black = "black",
    }
}

attribute! {
    /// The object's outline.
    Shape {
        /// A disc.
        Circle = "circle",
        /// A square with horizontal and vertical sides.
        Square = "square",
        /// An equilateral triangle, tip up.
        Triangle = "triangle",
        /// A star of five points, tip up.
        Star = "star",
        /// An upright cross with four equal arms.
        Cross = "cross",
    }
}

attribute! {
    /// The object's place in the centre square of the image.
    Place {
        /// The upper left quarter.
        UpperLeft = "upper left",
        /// The upper right quarter.
        UpperRight = "upper right",
        /// The lower left quarter.
        LowerLeft = "lower left",
        /// The lower right quarter.
        LowerRight = "lower right",
        /// The middle.
        Center = "center",
    }
}

impl Size {
    /// The object's nominal radius, as a fraction of the centre square's side.
    pub(crate) const fn radius(self) -> f32 {
        match self {
            Self::Small => 0.14,
            Self::Large => 0.205,
        }
    }
}

impl Colour {
    /// The nominal colour, in sRGB.
    pub const fn rgb(self) -> [u8; 3] {
        match self {
            Self::Red => [214, 24, 34],
            Self::Orange => [250, 138, 16],
            Self::Yellow => [244, 226, 28],
            Self::Green => [28, 150, 52],
            Self::Cyan => [24, 200, 214],
            Self::Blue => [26, 62, 214],
            Self::Purple => [150, 44, 188],
            Self::Black => [20, 20, 22],
        }
    }
}

impl Place {
    /// The nominal centre (x, y), as a fraction of the centre square's side.
    pub(crate) const fn center(self) -> (f32, f32) {
        const NEAR: f32 = 0.28;
        const FAR: f32 = 1.0 - NEAR;
        match self {
            Self::UpperLeft => (NEAR, NEAR),
            Self::UpperRight => (FAR, NEAR),
            Self::LowerLeft => (NEAR, FAR),
            Self::LowerRight => (FAR, FAR),
            Self::Center => (0.5, 0.5),
        }
    }
}

/// Pairs of colour and shape that training data never contains. A generated image of such a pair
/// therefore shows that the model composes attributes and does not repeat training data. Each
/// colour has at most one held-out shape, and each shape at most two held-out colours.
pub const HELD_OUT: &[(Colour, Shape)] = &[
    (Colour::Red, Shape::Square),
    (Colour::Yellow, Shape::Circle),
    (Colour::Green, Shape::Triangle),
    (Colour::Blue, Shape::Star),
    (Colour::Purple, Shape::Cross),
    (Colour::Black, Shape::Circle),
];

/// Whether a pair of colour and shape is held out of the training data.
pub fn is_held_out(colour: Colour, shape: Shape) -> bool {
    HELD_OUT.contains(&(colour, shape))
}
