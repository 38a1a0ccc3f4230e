//! The files of the page. They are part of the program, so no request reaches the file system.

use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

/// A file of the page: its name, its type and its content.
pub type Page = (&'static str, &'static str, &'static str);

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The files that raters need, with the source of comparisons that is named `source.js` to them.
pub const RATER_PAGES: [Page; 5] = [
    ("index.html", HTML, include_str!("../../page/index.html")),
    ("style.css", STYLE, include_str!("../../page/style.css")),
    ("app.js", SCRIPT, include_str!("../../page/app.js")),
    ("icon.svg", "image/svg+xml", include_str!("../../page/icon.svg")),
    ("view.js", SCRIPT, include_str!("../../page/view.js")),
];

/// Comparisons from a server.
pub const SERVER_SOURCE: Page = ("source.js", SCRIPT, include_str!("../../page/server_source.js"));

/// Comparisons from files.
pub const STATIC_SOURCE: Page = ("source.js", SCRIPT, include_str!("../../page/static_source.js"));

/// The files that the administrator needs.
pub const ADMIN_PAGES: [Page; 2] = [
    ("admin.html", HTML, include_str!("../../page/admin.html")),
    ("admin.js", SCRIPT, include_str!("../../page/admin.js")),
];

/// The answer with a file.
pub fn respond((_, content_type, content): Page) -> Response {
    ([(CONTENT_TYPE, content_type)], content).into_response()
}
