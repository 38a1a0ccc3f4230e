//! The `tidemill` command. All code is in the library, which the Python module shares.

use std::process::ExitCode;

fn main() -> ExitCode {
    tidemill::open_files::raise_open_file_limit();
    ExitCode::from(tidemill::cli::main(std::env::args_os()))
}
