//! The features of many images: threads decode and resize the next batch while the network runs.

use std::sync::mpsc;

use rayon::prelude::*;
use tch::Tensor;
use tidemill_data::decode::{Rgb8, decode};

use super::feature_tower::FeatureTower;
use crate::error::Result;

/// Batches that are prepared ahead of the network.
const PREFETCH: usize = 2;

/// An image, as it was found.
pub enum Picture {
    /// JPEG, PNG, WebP and so on.
    Encoded(Vec<u8>),
    /// Pixels.
    Decoded(Rgb8),
}

impl Picture {
    /// The pixels.
    ///
    /// # Errors
    /// If the image cannot be decoded.
    pub fn decode(self) -> Result<Rgb8> {
        match self {
            Self::Encoded(bytes) => Ok(decode(&bytes)?),
            Self::Decoded(pixels) => Ok(pixels),
        }
    }
}

/// The features of one batch of images.
pub struct Extracted {
    /// Index of each image among all.
    pub indices: Vec<u64>,
    /// Features [N, width], f32.
    pub features: Tensor,
    /// The images that cannot be decoded, and why.
    pub unreadable: Vec<(u64, String)>,
}

/// Computes the features of `images` in their order, and passes them to `consume` batch by batch. Memory holds a few batches, whatever the number of images.
///
/// # Errors
/// The first error of `images`, of the network or of `consume`.
pub fn extract_features<E: From<crate::Error> + Send>(
    tower: &FeatureTower,
    images: impl Iterator<Item = std::result::Result<Picture, E>> + Send,
    batch_size: usize,
    mut consume: impl FnMut(Extracted) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    let input = tower.input();
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::sync_channel(PREFETCH);
        scope.spawn(move || {
            let mut images = images.zip(0u64..);
            loop {
                let batch: std::result::Result<Vec<_>, E> =
                    images.by_ref().take(batch_size).map(|(image, i)| Ok((image?, i))).collect();
                let is_last = batch.as_ref().map_or(true, |batch| batch.len() < batch_size);
                let prepared = batch.map(|batch| {
                    let prepare = |(picture, i): (Picture, u64)| -> (u64, Result<Vec<f32>>) {
                        (i, picture.decode().and_then(|image| input.process(image)))
                    };
                    batch.into_par_iter().map(prepare).collect::<Vec<_>>()
                });
                // The receiver is gone after an error of its own.
                if sender.send(prepared).is_err() || is_last {
                    return;
                }
            }
        });
        for batch in receiver {
            let (mut indices, mut planes, mut unreadable) = (Vec::new(), Vec::new(), Vec::new());
            for (i, image) in batch? {
                match image {
                    Ok(image) => {
                        indices.push(i);
                        planes.extend_from_slice(&image);
                    }
                    Err(error) => unreadable.push((i, error.to_string())),
                }
            }
            if indices.is_empty() && unreadable.is_empty() {
                break;
            }
            consume(Extracted { indices, features: tower.encode(&planes)?, unreadable })?;
        }
        Ok(())
    })
}
