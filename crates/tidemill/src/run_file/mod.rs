//! The run file: one TOML document that describes a run. Each section's struct is defined in the
//! crate or module that uses it. This module combines the sections and checks what no single
//! section can see.
//!
//! - `document`: the TOML text with its `--set` overrides, and errors that point at a key.
//! - `set_overrides`: parses an override and merges it into the tree.
//! - `key_positions`: finds a dotted key in the text, and the key at a position in the text.
//! - `key_suggestions`: "did you mean" for unknown keys and values.
//! - `sections`: all sections of the run file. `section_checks`: checks that need no other file.
//! - `run`: a run file that was read and checked. `verb_checks`: what single verbs require of it.
//! - `encode_stages`: what `[score]` and `caption.stage` make of it.
//! - `reference`: what docs/run-file.md says of each key.
//! - `portable`: a run file with absolute paths, for processes with another working directory or on
//!   another machine.

mod document;
mod encode_stages;
pub mod error;
mod key_positions;
mod key_suggestions;
mod portable;
pub mod reference;
mod run;
mod section_checks;
mod sections;
mod set_overrides;
mod verb_checks;

pub use self::document::Document;
pub use self::error::{RunFileError, TextPosition};
pub use self::run::Run;
pub use self::sections::{ModelsConfig, RunFile, ValidationConfig};
