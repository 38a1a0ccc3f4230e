//! Fetches images concurrently and returns them in row order, with bounded bytes in flight. An
//! image that cannot be fetched is an error of its row only; a store or a disk that fails is an
//! error of the unit.

use std::collections::VecDeque;
use std::sync::Arc;

use tidemill_io::uri;
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;

use crate::error::Result;
use crate::source::fetch::byte_budget::ByteGrant;
pub use crate::source::fetch::image::FetchResult;
use crate::source::fetch::image::fetch_image;

/// Most images of one reader that are being fetched or wait to be returned.
const MAX_PENDING: usize = 64;

/// The path or URI of an image: an absolute path or URI as it is, anything else relative to the
/// file that names it.
pub fn resolve_reference(file: &str, reference: &str) -> String {
    match file.rsplit_once('/') {
        Some((folder, _)) if !reference.contains("://") && !reference.starts_with('/') => {
            if folder.contains("://") { join_uri(folder, reference) } else { format!("{folder}/{reference}") }
        }
        _ => reference.to_owned(),
    }
}

/// The file relative to which the references of a file count: itself, or any file in `image_root`.
///
/// # Errors
/// If `image_root` is malformed.
pub fn reference_base(file: &str, image_root: Option<&str>) -> Result<String> {
    match image_root {
        Some(root) => Ok(format!("{}/", uri::parse(root)?.uri().trim_end_matches('/'))),
        None => Ok(file.to_owned()),
    }
}

/// Joins a relative path to the URI of a folder. Stores do not know `.` and `..`, so they are
/// resolved here.
fn join_uri(folder: &str, reference: &str) -> String {
    let mut folded = folder.trim_end_matches('/').to_owned();
    let host = folded.find("://").map_or(0, |scheme| scheme + 3);
    let root = folded[host..].find('/').map_or(folded.len(), |length| host + length);
    for part in reference.split('/') {
        match part {
            "." => (),
            ".." => folded.truncate(folded.rfind('/').unwrap_or(0).max(root)),
            part => {
                folded.push('/');
                folded.push_str(part);
            }
        }
    }
    folded
}

/// Fetches the image of each item that names one. Items are returned in order with the result of
/// their fetch, or an error if a store or a disk failed. Images in flight or waiting to be returned
/// hold `budget` bytes at most, besides the first in the queue: however long that one takes, the
/// others are fetched meanwhile.
pub fn fetch_images<T, I: Iterator<Item = (T, Option<String>)>>(
    runtime: &'static Runtime,
    items: I,
    budget: u64,
) -> FetchImages<I, T> {
    FetchImages { runtime, items, budget: Arc::new(Semaphore::new(budget as usize)), queue: VecDeque::new() }
}

/// The iterator of [`fetch_images`].
pub struct FetchImages<I, T> {
    runtime: &'static Runtime,
    items: I,
    /// Free bytes.
    budget: Arc<Semaphore>,
    /// Items in order; `None` if there is nothing to fetch.
    queue: VecDeque<(T, Option<PendingImage>)>,
}

/// An image that is being fetched, or has been fetched and waits to be returned.
struct PendingImage {
    image: JoinHandle<(Result<FetchResult>, ByteGrant)>,
    head_signal: oneshot::Sender<()>,
}

impl PendingImage {
    fn start(runtime: &Runtime, budget: &Arc<Semaphore>, uri: String) -> Self {
        let (mut grant, head_signal) = ByteGrant::new(budget.clone());
        let image = runtime.spawn(async move { (fetch_image(&uri, &mut grant).await, grant) });
        Self { image, head_signal }
    }

    /// Waits for the image, which is now the first in the queue.
    fn wait(self, runtime: &Runtime) -> Result<FetchResult> {
        // The fetch may have ended already.
        self.head_signal.send(()).ok();
        runtime.block_on(self.image).map_or_else(|e| Ok(Err(format!("fetch: {e}"))), |(image, _)| image)
    }
}

impl<T, I: Iterator<Item = (T, Option<String>)>> Iterator for FetchImages<I, T> {
    type Item = Result<(T, Option<FetchResult>)>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.queue.len() < MAX_PENDING {
            let Some((item, uri)) = self.items.next() else { break };
            let pending = uri.map(|uri| PendingImage::start(self.runtime, &self.budget, uri));
            self.queue.push_back((item, pending));
        }
        let (item, pending) = self.queue.pop_front()?;
        let image = pending.map(|pending| pending.wait(self.runtime)).transpose();
        Some(image.map(|image| (item, image)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidemill_io::{Limits, runtime, store};
    use tidemill_testing::WebServer;
    use tidemill_testing::web::ok;

    use super::{fetch_images, resolve_reference};

    const BUDGET: u64 = 1 << 20;

    #[test]
    fn images_are_returned_in_order() {
        let folder = tempfile::tempdir().unwrap();
        // Some images are larger than the budget. The fourth does not exist.
        let sizes: Vec<u64> =
            (0..200).map(|i| if i % 40 == 5 { BUDGET + 1 } else { (i % 7) << 14 }).collect();
        let path = |i: usize| folder.path().join(i.to_string()).display().to_string();
        for (i, size) in sizes.iter().enumerate().filter(|(i, _)| *i != 3) {
            std::fs::File::create(path(i)).unwrap().set_len(*size).unwrap();
        }
        let items = (0..sizes.len()).map(|i| (i, (i % 10 != 9).then(|| path(i))));
        let mut images = fetch_images(runtime().unwrap(), items, BUDGET);
        for (i, size) in sizes.iter().enumerate() {
            let (item, image) = images.next().unwrap().unwrap();
            assert_eq!(item, i);
            match image {
                None => assert_eq!(i % 10, 9),
                Some(Err(problem)) => assert!(i == 3 && problem.contains("no such image"), "{problem}"),
                Some(Ok(bytes)) => assert_eq!(bytes.len() as u64, *size),
            }
        }
        assert!(images.next().is_none() && images.budget.available_permits() as u64 == BUDGET);
    }

    #[test]
    fn hanging_image_does_not_delay_its_neighbours() {
        let server = WebServer::start(|head| {
            if head.starts_with("GET /0.jpg?") {
                std::thread::sleep(Duration::from_secs(10));
            }
            ok(b"image")
        });
        let limits =
            Limits { max_retries: 0, request_timeout: Duration::from_millis(500), ..Limits::default() };
        store::connect(&server.root(), &[], limits).unwrap();
        let root = server.root().replace("://", "://user:secret@");
        let items = (0..40).map(|i| (i, Some(format!("{root}/{i}.jpg?sig=secret"))));
        let mut images = fetch_images(runtime().unwrap(), items, BUDGET).map(|item| item.unwrap().1.unwrap());
        let problem = images.next().unwrap().unwrap_err();
        assert_eq!(problem, format!("fetch: {}/0.jpg?…: nothing came for 500ms", server.root()));
        assert!(images.all(|image| image.unwrap() == "image"));
    }

    #[test]
    fn relative_references_are_resolved_against_the_naming_file() {
        let cases = [
            ("/data/a.jsonl", "x/1.jpg", "/data/x/1.jpg"),
            ("/data/a.jsonl", "../1.jpg", "/data/../1.jpg"),
            ("/data/a.jsonl", "/img/1.jpg", "/img/1.jpg"),
            ("s3://b/a.jsonl", "1.jpg", "s3://b/1.jpg"),
            ("s3://b/d/a.jsonl", "./1.jpg", "s3://b/d/1.jpg"),
            ("s3://b/d/a.jsonl", "../i/./1.jpg", "s3://b/i/1.jpg"),
            ("s3://b/a.jsonl", "../../1.jpg", "s3://b/1.jpg"),
            ("s3://b/a.jsonl", "s3://c/1.jpg", "s3://c/1.jpg"),
            ("/data/a.jsonl", "https://h/1.jpg", "https://h/1.jpg"),
        ];
        for (file, reference, expected) in cases {
            assert_eq!(resolve_reference(file, reference), expected);
        }
    }
}
