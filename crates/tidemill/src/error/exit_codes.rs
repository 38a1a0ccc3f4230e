//! The exit code of each error: 2 if the user must correct the input, 1 if the work failed.

use std::io::ErrorKind;

use tidemill_train::RankError;

use super::types::Error;

/// The exit code of success.
pub const EXIT_DONE: u8 = 0;
/// The exit code of work that failed.
pub const EXIT_FAILED: u8 = 1;
/// The exit code of refused input: the same command fails again until the user changes something.
pub const EXIT_REFUSED: u8 = 2;

impl Error {
    /// [`EXIT_REFUSED`] if the input was refused, [`EXIT_FAILED`] if the work failed.
    pub fn exit_code(&self) -> u8 {
        use tidemill_data::Error as Data;
        use tidemill_train::Error as Train;
        match self {
            Self::RunFile(_) | Self::Arguments(_) | Self::Refused(_) | Self::Missing { .. } => EXIT_REFUSED,
            Self::Memory { .. } | Self::RowGroup { .. } | Self::Unit(_) => EXIT_REFUSED,
            Self::ReportedByOtherProcess(error) => error.exit_code(),
            Self::Data(Data::Arrow(_) | Data::Storage(_) | Data::Changed { .. }) => EXIT_FAILED,
            Self::Data(_) => EXIT_REFUSED,
            Self::Models(error) => models_exit_code(error),
            Self::Store(error) => refusal_exit_code(error.is_refusal()),
            // The trainer passes errors of its data source through; those of this crate are wrapped
            // in it.
            Self::Train(Train::Data(error)) => {
                error.downcast_ref::<Self>().map_or(EXIT_FAILED, Self::exit_code)
            }
            Self::Train(error) => refusal_exit_code(error.is_refusal()),
            Self::Eval(tidemill_eval::Error::Models(error)) => models_exit_code(error),
            Self::Eval(tidemill_eval::Error::Torch(_) | tidemill_eval::Error::NotFinite) => EXIT_FAILED,
            Self::Eval(_) => EXIT_REFUSED,
            Self::Compare(error) => refusal_exit_code(error.is_refusal()),
            Self::Synth(tidemill_synth::Error::Config { .. }) => EXIT_REFUSED,
            _ => EXIT_FAILED,
        }
    }
}

impl RankError for Error {
    fn is_refusal(&self) -> bool {
        self.exit_code() == EXIT_REFUSED
    }
}

fn refusal_exit_code(is_refusal: bool) -> u8 {
    if is_refusal { EXIT_REFUSED } else { EXIT_FAILED }
}

fn models_exit_code(error: &tidemill_models::Error) -> u8 {
    match error {
        tidemill_models::Error::Torch(_) => EXIT_FAILED,
        // A full disk is a failure. Any other file error is about a file that the user named.
        tidemill_models::Error::Io { source, .. } => refusal_exit_code(!is_disk_full(source)),
        _ => EXIT_REFUSED,
    }
}

fn is_disk_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}
