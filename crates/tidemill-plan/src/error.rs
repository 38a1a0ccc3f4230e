//! The error type of this crate.

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The reason why there is no plan.
#[derive(Debug, thiserror::Error)]
#[error("{key}: {problem}")]
pub struct Error {
    /// The key of `[plan]`, such as `plan.trainers.node`.
    pub key: String,
    /// What is wrong, and what to do.
    pub problem: String,
}

impl Error {
    /// An error about a key.
    pub fn new(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { key: key.into(), problem: problem.into() }
    }
}

/// Refuses numbers that are not finite and above 0.
pub(crate) fn check_positive(number: Option<f64>, key: impl Fn() -> String, what: &str) -> Result<()> {
    match number {
        Some(number) if !(number > 0.0 && number.is_finite()) => {
            Err(Error::new(key(), format!("is {number}; it must be above 0: {what}")))
        }
        _ => Ok(()),
    }
}
