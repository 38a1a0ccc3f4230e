//! Images that a row only names: fetched concurrently, given in row order, with bounded bytes in
//! flight.
//!
//! * `ordered`: the iterator that fetches ahead and keeps the order
//! * `image`: one image from disk, a store or the web, and whose fault a failure is
//! * `byte_budget`: the bytes that images in flight may hold

pub(crate) mod ordered;

mod byte_budget;
mod image;
