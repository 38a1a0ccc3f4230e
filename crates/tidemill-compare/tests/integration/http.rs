//! A client that sends what it is told, byte by byte, and a server in a thread.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use tidemill_compare::database::Database;
use tidemill_compare::server::{ServeOptions, serve};
use tokio::sync::oneshot;

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }
}

/// A server, until it is dropped.
pub struct Server {
    pub address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub fn start(study: &Path) -> Self {
        let database = Database::open(study).unwrap();
        // Zeros are no token's hash.
        let admin_token_hash = database.read_admin_token_hash().unwrap().unwrap_or_default();
        let (stop, stopped) = oneshot::channel();
        let (ready, address) = mpsc::channel();
        let study = study.to_owned();
        let options = ServeOptions { address: [127, 0, 0, 1].into(), port: 0, admin_token_hash };
        let thread = std::thread::spawn(move || {
            let stop = async {
                let _ = stopped.await;
            };
            serve(&study, &options, |address| ready.send(address).unwrap(), stop).unwrap();
        });
        let address = address.recv_timeout(Duration::from_secs(20)).unwrap();
        Self { address, stop: Some(stop), thread: Some(thread) }
    }

    /// Sends a request. `token` becomes the `Authorization` header.
    pub fn send(&self, method: &str, path: &str, token: Option<&str>, body: &str) -> Answer {
        let authorization =
            token.map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"));
        self.send_raw(&format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{authorization}\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        ))
    }

    pub fn send_raw(&self, request: &str) -> Answer {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        // A server that refuses a body may reset the connection after its answer.
        let _ = stream.read_to_end(&mut answer);
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
        let headers = String::from_utf8(answer[..end].to_vec()).unwrap();
        let status = headers.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, headers: headers.to_lowercase(), body: answer[end + 4..].to_vec() }
    }

    pub fn get(&self, path: &str) -> Answer {
        self.send("GET", path, None, "")
    }

    pub fn next(&self, token: &str) -> Value {
        let answer = self.send_with_retry("/api/next", token, "{}");
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    }

    pub fn judge(&self, token: &str, assignment: &str, question: usize, answer: &str) -> u16 {
        let body = serde_json::json!({
            "assignment": assignment, "question": question, "answer": answer, "milliseconds": 900
        });
        self.send_with_retry("/api/judge", token, &body.to_string()).status
    }

    /// Sends a rater's request again while there are too many.
    fn send_with_retry(&self, path: &str, token: &str, body: &str) -> Answer {
        loop {
            match self.send("POST", path, Some(token), body) {
                answer if answer.status == 429 => std::thread::sleep(Duration::from_millis(50)),
                answer => return answer,
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}
