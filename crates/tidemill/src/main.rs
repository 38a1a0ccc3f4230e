//! The `tidemill` command. All of it is in the library, which the Python module shares.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(tidemill::cli::main(std::env::args_os()))
}
