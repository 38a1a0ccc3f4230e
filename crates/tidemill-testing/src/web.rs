//! A web server that answers what it is told to, to the byte: the web has odder servers than a library lets one write.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// Gives the answer to a request's head: status line, headers and body. The connection is closed behind it.
type Answer = dyn Fn(&str) -> Vec<u8> + Send + Sync;

/// A web server on loopback, for as long as the process lives.
pub struct WebServer {
    address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
}

impl WebServer {
    /// Starts a server. An answer that takes its time keeps nobody else waiting.
    pub fn start(answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let (address, heads) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<String>>>::default());
        let (answer, log): (Arc<Answer>, _) = (Arc::new(answer), heads.clone());
        thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let (answer, log) = (answer.clone(), log.clone());
                thread::spawn(move || serve(socket, &*answer, &log));
            }
        });
        Self { address, heads }
    }

    /// What its URLs begin with, without the `/` of the path.
    pub fn root(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The heads of the requests since the last call: request lines and headers.
    pub fn take_heads(&self) -> Vec<String> {
        std::mem::take(&mut self.heads.lock().unwrap())
    }
}

/// An answer `200 OK` with its length.
pub fn ok(body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

fn serve(mut socket: TcpStream, answer: &Answer, heads: &Mutex<Vec<String>>) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && socket.read(&mut byte).is_ok_and(|read| read > 0) {
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    heads.lock().unwrap().push(head.clone());
    // Whoever asked may have gone by then.
    socket.write_all(&answer(&head)).ok();
}
