//! The bytes of a latent dataset.

use serde::Serialize;

/// What decides over the bytes of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowFormat {
    /// Channels of the VAE's latents.
    pub latent_channels: u64,
    /// Pixels per latent cell, along one side.
    pub downscale_factor: u64,
    /// Hidden states of a caption, for each text encoder.
    pub texts: Vec<TextShape>,
    /// Elements of a caption's pooled text; 0 where there is none.
    pub pooled_width: u64,
}

/// The hidden states that a text encoder gives for a caption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextShape {
    /// Tokens of a caption.
    pub tokens: u64,
    /// Elements of a token's embedding.
    pub width: u64,
}

/// Bytes of the moments in f16.
const LATENT_BYTES: u64 = 2;
/// Bytes of a token id.
const TOKEN_BYTES: u64 = 4;
/// Bytes before a caption's 8-bit embedding: scale and error.
const SCALE_BYTES: u64 = 8;

impl RowFormat {
    /// Bytes of an image's moments (mean and log-variance).
    pub fn latent_bytes(&self, resolution: u32) -> u64 {
        let side = u64::from(resolution) / self.downscale_factor.max(1);
        2 * self.latent_channels * side * side * LATENT_BYTES
    }

    /// Bytes of a caption, as embeddings in 16 or 8 bits, or as token ids.
    pub fn text_bytes(&self) -> [u64; 3] {
        let pooled = 2 * self.pooled_width;
        self.texts.iter().fold([pooled, pooled, 0], |[f16, f8, ids], TextShape { tokens, width }| {
            let elements = tokens * width;
            [f16 + 2 * elements, f8 + elements + SCALE_BYTES, ids + TOKEN_BYTES * tokens]
        })
    }
}

/// How captions are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum TextFormat {
    /// Embeddings in 16 bits.
    #[serde(rename = "f16")]
    F16,
    /// Embeddings in 8 bits.
    #[serde(rename = "f8")]
    F8,
    /// Token ids, which the trainer encodes.
    #[serde(rename = "none")]
    TokenIds,
}

/// A dataset's bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Storage {
    /// How captions are stored.
    pub embeddings: TextFormat,
    /// Bytes of all rows.
    pub bytes: u64,
    /// Dollars a month.
    pub monthly_cost: f64,
}

impl Storage {
    /// The dataset of so many rows of each resolution, for each way to store captions. A row that
    /// reaches several resolutions has its caption once. `price` is for 10^9 bytes and a month.
    pub fn new(format: &RowFormat, rows: &[(u32, f64)], price: f64) -> [Self; 3] {
        let latents: f64 =
            rows.iter().map(|(resolution, rows)| rows * format.latent_bytes(*resolution) as f64).sum();
        let captions = rows.iter().map(|(_, rows)| *rows).fold(0.0, f64::max);
        let [f16, f8, ids] = format.text_bytes();
        [(TextFormat::F16, f16), (TextFormat::F8, f8), (TextFormat::TokenIds, ids)].map(
            |(embeddings, text)| {
                let bytes = latents + captions * text as f64;
                Self { embeddings, bytes: bytes as u64, monthly_cost: bytes / 1e9 * price }
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_sd2_have_the_documented_sizes() {
        let sd2 = RowFormat {
            latent_channels: 4,
            downscale_factor: 8,
            texts: vec![TextShape { tokens: 77, width: 1024 }],
            pooled_width: 0,
        };
        assert_eq!((sd2.latent_bytes(256), sd2.latent_bytes(512)), (16_384, 65_536));
        assert_eq!(sd2.text_bytes()[0], 157_696);
        let [f16, f8, ids] = Storage::new(&sd2, &[(256, 1e6), (512, 1e5)], 0.02);
        assert_eq!(f16.bytes, 1_000_000 * (16_384 + 157_696) + 100_000 * 65_536);
        assert!(ids.bytes < f8.bytes && f8.bytes < f16.bytes);
        assert!((f16.monthly_cost - 0.02 * f16.bytes as f64 / 1e9).abs() < 1e-9);
    }
}
