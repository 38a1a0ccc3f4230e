//! The page during a run: made anew for each request.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use crate::engine::stop_signal::StopSignal;
use crate::error::{Error, Result};
use crate::progress::Reporter;

/// How long a browser may take to ask, or to read.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The time between two looks for a signal.
const POLL: Duration = Duration::from_millis(100);
/// The most bytes of a request that are read.
const MOST_REQUEST_BYTES: usize = 16 << 10;

/// Serves `page` at every path until a signal comes.
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
            Ok((socket, _)) => drop(answer(socket, page)),
            Err(_) => std::thread::sleep(POLL),
        }
    }
    Ok(())
}

fn answer(mut socket: TcpStream, page: &dyn Fn() -> Result<String>) -> std::io::Result<()> {
    socket.set_nonblocking(false)?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.set_write_timeout(Some(TIMEOUT))?;
    let (mut request, mut buffer) = (Vec::new(), [0; 1024]);
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < MOST_REQUEST_BYTES {
        match socket.read(&mut buffer)? {
            0 => break,
            n => request.extend_from_slice(&buffer[..n]),
        }
    }
    let (status, kind, body) = match page() {
        Ok(page) => ("200 OK", "text/html; charset=utf-8", page),
        Err(error) => ("500 Internal Server Error", "text/plain; charset=utf-8", error.to_string()),
    };
    // The page needs nothing from elsewhere, so nothing else is allowed.
    write!(
        socket,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n\
         Content-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
         img-src data:\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}
