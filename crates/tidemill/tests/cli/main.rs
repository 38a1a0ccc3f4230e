//! The application from outside: the binary, and the library as the binary uses it. One test program, for linking
//! libtorch takes longer than the tests.

mod common;
mod preprocess;
mod run_file;
