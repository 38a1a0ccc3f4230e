//! When rows are encoded: before training, beside it, or in turn with it.

use std::fmt;

use clap::ValueEnum;

/// How the encoders feed the trainer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum EncodingMode {
    /// Through a latent dataset that is complete before training starts.
    #[default]
    Offline,
    /// Encoders work while the trainer trains, anew in each epoch; nothing is stored.
    Online,
    /// Encoders take turns with the trainer on its device, batch by batch. Benchmarks compare the
    /// other modes with this one.
    Colocated,
}

impl fmt::Display for EncodingMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Offline => "offline",
            Self::Online => "online",
            Self::Colocated => "colocated",
        })
    }
}
