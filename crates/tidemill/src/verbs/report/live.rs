//! The page during a run: made anew for each request.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::engine::stop_signal::StopSignal;
use crate::error::{Error, Result};
use crate::progress::Reporter;

/// How long a browser may take for its request and to read the answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The time between two looks for a signal.
const POLL: Duration = Duration::from_millis(100);
/// The most bytes of a request that are read.
const MOST_REQUEST_BYTES: usize = 16 << 10;
/// Seconds after which a browser asks again.
const REFRESH_SECONDS: u32 = 15;

/// Serves `page` until a signal comes.
///
/// # Errors
/// If nobody can listen at the address.
pub fn serve(address: SocketAddr, page: &dyn Fn() -> Result<String>, reporter: &Reporter) -> Result<()> {
    let failed =
        |e: std::io::Error| Error::Arguments(format!("cannot listen at {address}: {e}; give another one"));
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    reporter.report(format!("the report is at http://{address}; ctrl-c ends this"));
    let stop = StopSignal::watch();
    while !stop.is_raised() {
        match listener.accept() {
            // A browser that has gone asks again.
            Ok((socket, _)) => drop(answer(socket, address, page)),
            Err(_) => std::thread::sleep(POLL),
        }
    }
    Ok(())
}

fn answer(mut socket: TcpStream, own: SocketAddr, page: &dyn Fn() -> Result<String>) -> std::io::Result<()> {
    let request = read_request(&mut socket)?;
    let (status, kind, body) = match refuse(&request, own) {
        Some((status, message)) => (status, "text/plain", message.to_owned()),
        None => match page() {
            Ok(page) => ("200 OK", "text/html", page),
            Err(error) => ("500 Internal Server Error", "text/plain", error.to_string()),
        },
    };
    socket.set_write_timeout(Some(TIMEOUT))?;
    // The page needs nothing from other places, so nothing else is allowed.
    write!(
        socket,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}; charset=utf-8\r\nContent-Length: {}\r\n\
         Cache-Control: no-store\r\nRefresh: {REFRESH_SECONDS}\r\nContent-Security-Policy: default-src 'none'; \
         script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

/// The head of a request, as far as it comes in time.
fn read_request(socket: &mut TcpStream) -> std::io::Result<String> {
    socket.set_nonblocking(false)?;
    let deadline = Instant::now() + TIMEOUT;
    let (mut request, mut buffer) = (Vec::new(), [0; 1024]);
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < MOST_REQUEST_BYTES {
        let left = deadline.saturating_duration_since(Instant::now());
        socket.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match socket.read(&mut buffer)? {
            0 => break,
            n => request.extend_from_slice(&buffer[..n]),
        }
    }
    Ok(String::from_utf8_lossy(&request).into_owned())
}

/// Why a request gets no page. On loopback only this machine's names are answered, so that no page of
/// another site can read the report through a name of its own.
fn refuse(request: &str, own: SocketAddr) -> Option<(&'static str, &'static str)> {
    if !request.starts_with("GET / ") {
        return Some(("404 Not Found", "there is only the report, at /"));
    }
    let host = request.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("host").then(|| value.trim())
    });
    let name = host.map(|host| host.rsplit_once(':').map_or(host, |(name, _)| name));
    let is_local = name.is_some_and(|name| ["localhost", "127.0.0.1", "[::1]"].contains(&name));
    (own.ip().is_loopback() && !is_local)
        .then_some(("403 Forbidden", "this address is for this machine only"))
}

#[cfg(test)]
mod tests {
    use super::refuse;

    #[test]
    fn other_paths_and_other_names_are_refused() {
        let loopback = "127.0.0.1:8766".parse().unwrap();
        let status = |head: &str| refuse(head, loopback).map(|(status, _)| &status[..3]);
        for (head, expected) in [
            ("GET / HTTP/1.1\r\nHost: 127.0.0.1:8766\r\n\r\n", None),
            ("GET / HTTP/1.1\r\nhost: localhost:8766\r\n\r\n", None),
            ("GET /favicon.ico HTTP/1.1\r\nHost: localhost\r\n\r\n", Some("404")),
            ("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", Some("403")),
            ("GET / HTTP/1.1\r\n\r\n", Some("403")),
            ("", Some("404")),
        ] {
            assert_eq!(status(head), expected, "{head}");
        }
        assert_eq!(refuse("GET / HTTP/1.1\r\nHost: a\r\n\r\n", "0.0.0.0:80".parse().unwrap()), None);
    }
}
