//! Raters who judge at once: how long does each request take? Arguments: a folder for the study, the
//! number of raters, the seconds, and the seconds between two answers of a rater. Prints one JSON
//! object.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a tool for benchmarks may give up")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use image::{Rgb, RgbImage};
use serde_json::{Value, json};
use tidemill_compare::database::{Database, StoredPrompt};
use tidemill_compare::server::{ServeOptions, serve};
use tidemill_compare::study::{SourceConfig, StudyConfig, encode, plan_comparisons};

const PROMPTS: usize = 200;
const SIDE: u32 = 512;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, raters, seconds, pause] = arguments.as_slice() else {
        panic!("give a folder, raters, seconds, and seconds between answers")
    };
    let raters: usize = raters.parse().unwrap();
    let (seconds, pause): (f64, f64) = (seconds.parse().unwrap(), pause.parse().unwrap());
    let study = Path::new(folder).join("study.sqlite");
    let tokens = make_study(&study, raters);
    let (ready, address) = mpsc::channel();
    std::thread::spawn(move || {
        let options = ServeOptions { address: [127, 0, 0, 1].into(), port: 0, admin_token_hash: [0; 32] };
        serve(&study, &options, |address| ready.send(address).unwrap(), std::future::pending()).unwrap();
    });
    let address = address.recv().unwrap();
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let threads: Vec<_> = tokens
        .into_iter()
        .enumerate()
        .map(|(number, token)| {
            // Raters do not start in step.
            let start = Duration::from_secs_f64(pause * number as f64 / raters as f64);
            std::thread::spawn(move || {
                std::thread::sleep(start);
                Rater { token, connection: Connection::open(address), times: Vec::new() }
                    .judge_until(end, pause)
            })
        })
        .collect();
    let mut times: Vec<(&str, f64)> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    times.sort_by(|a, b| a.1.total_cmp(&b.1));
    let of = |kind: &str| {
        times.iter().filter(|time| kind.is_empty() || time.0 == kind).map(|time| time.1).collect()
    };
    println!(
        "{}",
        json!({
            "raters": raters, "seconds": seconds, "pause": pause, "requests": times.len(),
            "all": describe(of("")), "judge": describe(of("judge")), "next": describe(of("next")),
            "picture": describe(of("picture")),
        })
    );
}

/// A study of pictures of noise, which do not compress, and its raters' tokens.
fn make_study(path: &Path, raters: usize) -> Vec<String> {
    let mut config: StudyConfig = serde_json::from_str(r#"{"prompts": "prompts.csv"}"#).unwrap();
    let source =
        |name: &str| SourceConfig { name: name.into(), folder: Some("x".into()), ..Default::default() };
    (config.sources, config.attention_checks) = (vec![source("a"), source("b")], 0.0);
    config.judgements = raters;
    let database = Database::create(path, &config).unwrap().unwrap();
    let prompts: Vec<StoredPrompt> =
        (0..PROMPTS).map(|i| StoredPrompt { text: format!("prompt {i}"), category: None }).collect();
    database.put_prompts(&prompts).unwrap();
    let mut state = 1u32;
    let picture = RgbImage::from_fn(SIDE, SIDE, |_, _| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        Rgb([(state >> 24) as u8 & 63; 3])
    });
    let content = encode(&picture).unwrap();
    let write = |database: &Database| {
        for number in 0..2 * PROMPTS {
            database.put_picture((number / 2, number % 2, 0), false, &content)?;
        }
        Ok(())
    };
    database.transaction(write).unwrap();
    database.put_comparisons(&plan_comparisons(PROMPTS, 1, 2, 0.0, 0)).unwrap();
    (0..raters).map(|_| database.add_rater(None).unwrap().1).collect()
}

/// Milliseconds of requests in ascending order.
fn describe(times: Vec<f64>) -> Value {
    let at = |share: f64| times.get(((times.len() as f64 * share) as usize).min(times.len().max(1) - 1));
    json!({ "requests": times.len(), "p50_ms": at(0.5), "p99_ms": at(0.99), "max_ms": times.last() })
}

struct Rater {
    token: String,
    connection: Connection,
    times: Vec<(&'static str, f64)>,
}

impl Rater {
    fn judge_until(mut self, end: Instant, pause: f64) -> Vec<(&'static str, f64)> {
        let mut loaded = std::collections::HashSet::new();
        while Instant::now() < end {
            let next: Value = serde_json::from_slice(&self.send("next", "POST /api/next", "{}")).unwrap();
            let Some(assignments) = next["assignments"].as_array().filter(|list| !list.is_empty()) else {
                break;
            };
            for key in assignments.iter().flat_map(|one| [&one["left"], &one["right"]]) {
                let key = key.as_str().unwrap().to_owned();
                // A browser keeps pictures.
                if loaded.insert(key.clone()) {
                    self.send("picture", &format!("GET /picture/{key}"), "");
                }
            }
            for question in 0..2 {
                std::thread::sleep(Duration::from_secs_f64(pause));
                let body = json!({
                    "assignment": assignments[0]["key"], "question": question, "answer": "left", "milliseconds": 9
                });
                self.send("judge", "POST /api/judge", &body.to_string());
            }
        }
        self.times
    }

    fn send(&mut self, kind: &'static str, request: &str, body: &str) -> Vec<u8> {
        let start = Instant::now();
        let answer = self.connection.send(request, &self.token, body);
        self.times.push((kind, 1e3 * start.elapsed().as_secs_f64()));
        answer
    }
}

/// A connection that stays open, as a browser's does.
struct Connection {
    address: SocketAddr,
    stream: BufReader<TcpStream>,
}

impl Connection {
    fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { address, stream: BufReader::new(stream) }
    }

    fn send(&mut self, request: &str, token: &str, body: &str) -> Vec<u8> {
        let head = format!(
            "{request} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        self.stream.get_mut().write_all(head.as_bytes()).unwrap();
        let (mut length, mut line) = (0, String::new());
        loop {
            line.clear();
            self.stream.read_line(&mut line).unwrap();
            assert!(!line.starts_with("HTTP/1.1 ") || line.contains(" 200 "), "{line}");
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line == "\r\n" {
                let mut answer = vec![0; length];
                self.stream.read_exact(&mut answer).unwrap();
                return answer;
            }
        }
    }
}
