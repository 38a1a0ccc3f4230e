//! Images that a row only names: fetched concurrently, given in row order, with bounded bytes in flight. An image that
//! cannot be had is that row's error and nobody else's.

use std::collections::VecDeque;

use bytes::Bytes;
use object_store::{GetResult, ObjectStoreExt};
use tidemill_io::uri;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::decode::MAX_BYTES;

/// Images asked for at the same time by one reader, and images waiting to be handed on.
const CONCURRENT: usize = 32;

/// An image's bytes, or why there are none, as `kind: detail`.
pub type Fetched = Result<Bytes, String>;

/// A request under way, on the source's thread.
type Task<V> = JoinHandle<Result<V, String>>;

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

/// Fetches the image of each item that names one. Items come out in order, with what became of their image. Images
/// under way or waiting for their turn have `room` bytes at most, but for one that is larger by itself; an image counts
/// from its response's header on, before its body is read.
pub fn fetch<T, I: Iterator<Item = (T, Option<String>)>>(
    runtime: &'static Runtime,
    items: I,
    room: u64,
) -> Fetch<I, T> {
    let (opening, bodies) = (VecDeque::new(), VecDeque::new());
    Fetch { runtime, items, room, opening, held: None, bodies, in_flight: 0 }
}

/// The iterator of [`fetch`].
pub struct Fetch<I, T> {
    runtime: &'static Runtime,
    items: I,
    room: u64,
    /// Waiting for the response's header, which tells the size. None: nothing to fetch.
    opening: VecDeque<(T, Option<Task<GetResult>>)>,
    /// The first one whose header is there but for whose body there is no room yet.
    held: Option<(T, GetResult)>,
    /// Under way, or here and waiting for their turn; with their sizes.
    bodies: VecDeque<(T, u64, Body)>,
    in_flight: u64,
}

enum Body {
    Coming(Task<Bytes>),
    Here(Option<Fetched>),
}

impl<T, I: Iterator<Item = (T, Option<String>)>> Fetch<I, T> {
    fn ask(&mut self) {
        while self.opening.len() < CONCURRENT {
            let Some((item, uri)) = self.items.next() else { break };
            self.opening.push_back((item, uri.map(|uri| self.runtime.spawn(open(uri)))));
        }
    }

    /// The next item in order whose body may be asked for: at once, or after a wait if nothing else is left to wait
    /// for.
    fn opened(&mut self) -> Option<(T, Option<Result<GetResult, String>>)> {
        if let Some((item, response)) = self.held.take() {
            return Some((item, Some(Ok(response))));
        }
        let (_, first) = self.opening.front()?;
        let waits = first.as_ref().is_some_and(|task| !task.is_finished());
        if !self.bodies.is_empty() && (waits || self.bodies.len() >= CONCURRENT) {
            return None;
        }
        let (item, task) = self.opening.pop_front()?;
        Some((item, task.map(|task| join(self.runtime, task))))
    }

    /// Asks for bodies in order for as long as there is room for them.
    fn start(&mut self) {
        while let Some((item, opened)) = self.opened() {
            let body = match opened {
                None => (item, 0, Body::Here(None)),
                Some(Err(problem)) => (item, 0, Body::Here(Some(Err(problem)))),
                Some(Ok(response)) => {
                    let size = response.meta.size;
                    if !self.bodies.is_empty() && self.in_flight + size > self.room {
                        self.held = Some((item, response));
                        break;
                    }
                    self.in_flight += size;
                    (item, size, Body::Coming(self.runtime.spawn(body(response))))
                }
            };
            self.bodies.push_back(body);
        }
    }
}

impl<T, I: Iterator<Item = (T, Option<String>)>> Iterator for Fetch<I, T> {
    type Item = (T, Option<Fetched>);

    fn next(&mut self) -> Option<Self::Item> {
        self.ask();
        self.start();
        let (item, size, body) = self.bodies.pop_front()?;
        let image = match body {
            Body::Coming(task) => Some(join(self.runtime, task)),
            Body::Here(image) => image,
        };
        self.in_flight -= size;
        Some((item, image))
    }
}

async fn open(uri: String) -> Result<GetResult, String> {
    let (location, path) = uri::parse(&uri)
        .and_then(|location| location.key().map(|path| (location, path)))
        .map_err(|e| format!("fetch: {e}"))?;
    let response = location.store.get(&path).await.map_err(|e| match e {
        object_store::Error::NotFound { .. } => format!("fetch: {uri}: there is no such image"),
        other => format!("fetch: {uri}: {other}"),
    })?;
    match response.meta.size {
        size if size > MAX_BYTES as u64 => {
            Err(format!("size: {uri} has {size} bytes, more than {MAX_BYTES}"))
        }
        _ => Ok(response),
    }
}

async fn body(response: GetResult) -> Fetched {
    let path = response.meta.location.clone();
    response.bytes().await.map_err(|e| format!("fetch: {path}: {e}"))
}

fn join<V>(runtime: &Runtime, task: Task<V>) -> Result<V, String> {
    runtime.block_on(task).unwrap_or_else(|e| Err(format!("fetch: {e}")))
}

#[cfg(test)]
mod tests {
    use super::{fetch, resolve};

    const ROOM: u64 = 64 << 20;

    #[test]
    fn images_come_in_order_and_within_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        // Two of them are larger than the limit; the fourth is not there.
        let sizes: Vec<u64> = (0..60).map(|i| if i % 40 == 5 { ROOM + 1 } else { (i % 7) << 20 }).collect();
        let path = |i: usize| folder.path().join(i.to_string()).display().to_string();
        for (i, size) in sizes.iter().enumerate().filter(|(i, _)| *i != 3) {
            std::fs::File::create(path(i)).unwrap().set_len(*size).unwrap();
        }
        let items = (0..sizes.len()).map(|i| (i, (i % 10 != 9).then(|| path(i))));
        let mut images = fetch(tidemill_io::runtime().unwrap(), items, ROOM);
        for (i, size) in sizes.iter().enumerate() {
            images.ask();
            images.start();
            assert!(images.in_flight <= ROOM || images.bodies.len() == 1);
            let (item, image) = images.next().unwrap();
            assert_eq!(item, i);
            match image {
                None => assert_eq!(i % 10, 9),
                Some(Err(problem)) => assert!(i == 3 && problem.contains("no such image"), "{problem}"),
                Some(Ok(bytes)) => assert_eq!(bytes.len() as u64, *size),
            }
        }
        assert!(images.next().is_none() && images.in_flight == 0);
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
