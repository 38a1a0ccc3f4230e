//! A web server that sends exact bytes. Real servers send answers that an HTTP library would not
//! produce.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// Maps a request's head to the bytes of the answer: status line, headers and body. The server
/// closes the connection afterwards.
type Answer = dyn Fn(&str) -> Vec<u8> + Send + Sync;

/// A web server on loopback. It runs until the process ends.
pub struct WebServer {
    address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
}

impl WebServer {
    /// Starts a server. A slow answer does not delay other requests.
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

    /// The root of the server's URLs, without the `/` of the path.
    pub fn root(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The heads of the requests since the last call: request lines and headers.
    pub fn take_heads(&self) -> Vec<String> {
        std::mem::take(&mut self.heads.lock().unwrap())
    }
}

/// An answer `200 OK` with a `Content-Length`.
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
    // The client may have closed the connection.
    socket.write_all(&answer(&head)).ok();
}
