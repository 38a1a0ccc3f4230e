//! Captions per second on one core: this crate, transformers, and the Hugging Face `tokenizers`
//! library (`encode_batch_fast`) in Python. They run in turn, so that other load on the machine
//! affects all of them. `cargo bench --bench tokenizer` prints medians of five rounds after one to
//! warm up the caches, because caches are warm after the first seconds of any run.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a benchmark fails by panicking")]

use std::collections::{BTreeMap, HashMap};
use std::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use tidemill_data::ClipTokenizer;

/// Captions per round.
const CAPTIONS: usize = 20_000;
/// Rounds that count.
const ROUNDS: usize = 5;

/// A seeded generator of numbers (splitmix64), so that the captions are always the same.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Captions of 5 to 20 words. Nine of ten words come from a vocabulary of 20,000 by Zipf's law; one
/// of ten is a rare word of random letters. Some have capitals, commas, numbers or characters
/// outside ASCII.
fn captions(folder: &Path) -> Vec<String> {
    let vocab: HashMap<String, u32> =
        serde_json::from_str(&std::fs::read_to_string(folder.join("vocab.json")).unwrap()).unwrap();
    let mut words: Vec<(u32, String)> = vocab
        .into_iter()
        .filter_map(|(word, id)| Some((id, word.strip_suffix("</w>")?.to_owned())))
        .filter(|(_, word)| word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_lowercase()))
        .collect();
    words.sort();
    words.truncate(20_000);
    let mut numbers = Numbers(7);
    let foreign = ["café", "Straße", "señorita", "東京", "Москва", "–", "“old”", "😀"];
    let word = |numbers: &mut Numbers| match numbers.below(1000) {
        0..100 => {
            let length = 4 + numbers.below(8);
            (0..length).map(|_| char::from(b'a' + numbers.below(26) as u8)).collect()
        }
        100..120 => foreign[numbers.below(foreign.len())].to_owned(),
        120..140 => numbers.below(2025).to_string(),
        _ => {
            // Rank r has a probability in proportion to 1/r.
            let rank = (words.len() as f64).powf(numbers.unit()) as usize;
            words[rank.min(words.len()) - 1].1.clone()
        }
    };
    let caption = |numbers: &mut Numbers| {
        let mut text = String::new();
        for i in 0..5 + numbers.below(16) {
            let mut word = word(numbers);
            if numbers.below(6) == 0 && word.is_ascii() {
                word[..1].make_ascii_uppercase();
            }
            text += if i == 0 { "" } else { [" ", " ", " ", " ", ", "][numbers.below(5)] };
            text += &word;
        }
        text
    };
    (0..CAPTIONS).map(|_| caption(&mut numbers)).collect()
}

/// The vocabulary of the repository's tiny models, which is CLIP's.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/tokenizer")
}

/// The Python libraries, in a process that runs a round per line of input.
struct Python(Child);

impl Python {
    fn new(captions: &[String]) -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        serde_json::to_writer(&file, captions).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/tokenizer.py");
        let mut command = Command::new(std::env::var("TIDEMILL_PYTHON").unwrap());
        command.arg(script).arg(folder()).arg(file.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut python = Self(command.spawn().unwrap());
        // The first answer comes when the captions are read.
        python.run_round();
        python
    }

    /// Runs a round. Returns seconds by name.
    fn run_round(&mut self) -> BTreeMap<String, f64> {
        self.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn measure_seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

fn main() {
    // One thread, as the Python libraries have: a rayon pool of one.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let folder = folder();
    let captions = captions(&folder);
    let tokenizer = ClipTokenizer::open(&folder).unwrap();
    let batch: Vec<&str> = captions.iter().map(String::as_str).collect();
    let mut python = Python::new(&captions);
    let mut seconds: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for round in 0..=ROUNDS {
        let mut times = python.run_round();
        let encode = || black_box(tokenizer.encode_batch(&batch));
        times.insert("tidemill".into(), measure_seconds(|| drop(pool.install(encode))));
        for (name, time) in times.into_iter().filter(|_| round > 0) {
            seconds.entry(name).or_default().push(time);
        }
    }
    for (name, mut seconds) in seconds {
        seconds.sort_by(f64::total_cmp);
        println!("{name:24} {:8.0} captions/s", CAPTIONS as f64 / seconds[ROUNDS / 2]);
    }
}
