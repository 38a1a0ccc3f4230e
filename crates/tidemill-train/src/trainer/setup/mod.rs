//! Set-up of a run before its first step: each rank checks that configuration, data and models fit
//! together, all ranks check that they agree, and the run resumes from its last checkpoint.

pub(super) mod collective_setup;
mod compatibility_checks;
mod local_setup;
mod resume;
