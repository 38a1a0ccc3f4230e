//! Images that a row only names: fetched concurrently, given in row order, with bounded bytes in flight. An image that
//! cannot be had is that row's error and nobody else's, but for a store or a disk that fails.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;

use crate::error::Result;
use crate::source::fetch::byte_budget::Place;
pub use crate::source::fetch::image::Fetched;
use crate::source::fetch::image::image;

/// Images of one reader that come at the same time, or wait for their turn.
const IN_LINE: usize = 64;

/// Where a row's image is: a URI or absolute path as it stands, anything else beside the file that names it.
pub fn resolve(file: &str, reference: &str) -> String {
    match file.rsplit_once('/') {
        Some((folder, _)) if !reference.contains("://") && !reference.starts_with('/') => {
            if folder.contains("://") { beside(folder, reference) } else { format!("{folder}/{reference}") }
        }
        _ => reference.to_owned(),
    }
}

/// A URI from that of a folder, without `.` and `..`, which stores know nothing of.
fn beside(folder: &str, reference: &str) -> String {
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

/// Fetches the image of each item that names one. Items come out in order, with what became of their image, or an
/// error where a store or a disk failed. Images under way or waiting for their turn have `room` bytes at most, beside
/// the first in line: however long that one takes, the others come meanwhile.
pub fn fetch<T, I: Iterator<Item = (T, Option<String>)>>(
    runtime: &'static Runtime,
    items: I,
    room: u64,
) -> Fetch<I, T> {
    Fetch { runtime, items, room: Arc::new(Semaphore::new(room as usize)), line: VecDeque::new() }
}

/// The iterator of [`fetch`].
pub struct Fetch<I, T> {
    runtime: &'static Runtime,
    items: I,
    /// Bytes that are free.
    room: Arc<Semaphore>,
    /// Items in order. None: nothing to fetch.
    line: VecDeque<(T, Option<Coming>)>,
}

/// An image under way, or here and waiting for its turn.
struct Coming {
    image: JoinHandle<(Result<Fetched>, Place)>,
    first: oneshot::Sender<()>,
}

impl Coming {
    fn ask(runtime: &Runtime, room: &Arc<Semaphore>, uri: String) -> Self {
        let (mut place, first) = Place::new(room.clone());
        let image = runtime.spawn(async move { (image(&uri, &mut place).await, place) });
        Self { image, first }
    }

    /// Waits for the image, which is now the first in line.
    fn wait(self, runtime: &Runtime) -> Result<Fetched> {
        // It may be here already.
        self.first.send(()).ok();
        runtime.block_on(self.image).map_or_else(|e| Ok(Err(format!("fetch: {e}"))), |(image, _)| image)
    }
}

impl<T, I: Iterator<Item = (T, Option<String>)>> Iterator for Fetch<I, T> {
    type Item = Result<(T, Option<Fetched>)>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.line.len() < IN_LINE {
            let Some((item, uri)) = self.items.next() else { break };
            let coming = uri.map(|uri| Coming::ask(self.runtime, &self.room, uri));
            self.line.push_back((item, coming));
        }
        let (item, coming) = self.line.pop_front()?;
        let image = coming.map(|coming| coming.wait(self.runtime)).transpose();
        Some(image.map(|image| (item, image)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidemill_io::{Limits, runtime, store};
    use tidemill_testing::WebServer;
    use tidemill_testing::web::ok;

    use super::{fetch, resolve};

    const ROOM: u64 = 1 << 20;

    #[test]
    fn images_come_in_order() {
        let folder = tempfile::tempdir().unwrap();
        // Some of them are larger than the room; the fourth is not there.
        let sizes: Vec<u64> = (0..200).map(|i| if i % 40 == 5 { ROOM + 1 } else { (i % 7) << 14 }).collect();
        let path = |i: usize| folder.path().join(i.to_string()).display().to_string();
        for (i, size) in sizes.iter().enumerate().filter(|(i, _)| *i != 3) {
            std::fs::File::create(path(i)).unwrap().set_len(*size).unwrap();
        }
        let items = (0..sizes.len()).map(|i| (i, (i % 10 != 9).then(|| path(i))));
        let mut images = fetch(runtime().unwrap(), items, ROOM);
        for (i, size) in sizes.iter().enumerate() {
            let (item, image) = images.next().unwrap().unwrap();
            assert_eq!(item, i);
            match image {
                None => assert_eq!(i % 10, 9),
                Some(Err(problem)) => assert!(i == 3 && problem.contains("no such image"), "{problem}"),
                Some(Ok(bytes)) => assert_eq!(bytes.len() as u64, *size),
            }
        }
        assert!(images.next().is_none() && images.room.available_permits() as u64 == ROOM);
    }

    #[test]
    fn one_that_hangs_costs_its_neighbours_nothing() {
        let server = WebServer::start(|head| {
            if head.starts_with("GET /0.jpg?") {
                std::thread::sleep(Duration::from_secs(10));
            }
            ok(b"image")
        });
        let limits = Limits { retries: 0, request: Duration::from_millis(500), ..Limits::default() };
        store::connect(&server.root(), &[], limits).unwrap();
        let root = server.root().replace("://", "://user:secret@");
        let items = (0..40).map(|i| (i, Some(format!("{root}/{i}.jpg?sig=secret"))));
        let mut images = fetch(runtime().unwrap(), items, ROOM).map(|item| item.unwrap().1.unwrap());
        let problem = images.next().unwrap().unwrap_err();
        assert_eq!(problem, format!("fetch: {}/0.jpg?…: nothing came for 500ms", server.root()));
        assert!(images.all(|image| image.unwrap() == "image"));
    }

    #[test]
    fn images_are_looked_for_beside_the_file_that_names_them() {
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
            assert_eq!(resolve(file, reference), expected);
        }
    }
}
