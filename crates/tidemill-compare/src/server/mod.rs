//! The page for raters, and what it asks of the server. One process, one SQLite file, no other
//! service.
//!
//! - `router`: which address does what.
//! - `rater_api`, `admin_api`: the requests. `pages`: the files of the page.
//! - `database_thread`: all writes, many to a transaction.
//! - `picture_reader`: pictures, beside the writes.
//! - `access`: tokens and rates of requests. `refusal`: requests that are refused.
//! - `headers`: what a browser may do.
//! - `connections`: accepts connections, and ends those that send nothing.

mod access;
mod admin_api;
mod connections;
mod database_thread;
mod headers;
mod pages;
mod picture_reader;
mod rater_api;
mod refusal;
mod router;
mod state;

pub use self::connections::{ServeOptions, serve};
pub(crate) use self::pages::{RATER_PAGES, STATIC_SOURCE};
