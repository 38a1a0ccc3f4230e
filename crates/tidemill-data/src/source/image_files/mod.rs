//! Folders of images with their captions in files beside them, as kohya's and SimpleTuner's folders
//! and img2dataset's output `files`: `1.jpg`, `1.txt`, `1.json`.
//!
//! * `folders`: the listing, as folders of samples
//! * `image_file_source`: the source

mod folders;
mod image_file_source;

pub use self::image_file_source::ImageFileSource;
