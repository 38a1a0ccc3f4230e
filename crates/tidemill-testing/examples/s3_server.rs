//! Serves the files of a folder as the bucket `public`, and delays each answer: `s3_server <folder>
//! <milliseconds>`. Prints the environment variables for its endpoint and credentials as JSON.
//! Stops when its standard input ends.

#![allow(clippy::unwrap_used, reason = "a tool for benchmarks may give up")]

use std::path::Path;
use std::time::Duration;

use tidemill_testing::S3Server;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, folder, milliseconds] = &arguments[..] else {
        eprintln!("usage: s3_server <folder> <milliseconds>");
        std::process::exit(2);
    };
    let server = S3Server::start(&["public"]);
    put_all(&server, Path::new(folder), "");
    server.delay_all(Duration::from_millis(milliseconds.parse().unwrap()));
    let settings = server.settings().map(|(name, value)| format!("{name:?}: {value:?}"));
    println!("{{{}}}", settings.join(", "));
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
}

fn put_all(server: &S3Server, folder: &Path, prefix: &str) {
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let key = format!("{prefix}{}", entry.file_name().into_string().unwrap());
        match entry.file_type().unwrap().is_dir() {
            true => put_all(server, &entry.path(), &format!("{key}/")),
            false => server.put("public", &key, std::fs::read(entry.path()).unwrap()),
        }
    }
}
