//! Captions per second on one core, ours and the Hugging Face `tokenizers` crate's (`encode_batch_fast`), the two taking
//! turns within each sample so that whatever else the machine does hits both. `cargo bench --bench tokenizer`
//! prints medians of five turns and their ratio; criterion's own report has each alone. The cache is warm for both, as it
//! is after the first seconds of any run.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a benchmark fails by panicking")]

#[path = "../tests/support/hugging_face.rs"]
mod hugging_face;

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group};
use tidemill_data::ClipTokenizer;
use tokenizers::Tokenizer;

/// Captions in a turn.
const CAPTIONS: usize = 20_000;
const TURNS: usize = 5;

/// A generator of numbers (splitmix64), seeded: the captions are the same each time.
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

/// Captions of 5 to 20 words: nine in ten from a vocabulary of 20,000 by Zipf's law, one in ten a rare word of random
/// letters; with capitals, commas, numbers and now and then a word that is not ASCII.
fn captions(folder: &Path) -> Vec<String> {
    let vocab: std::collections::HashMap<String, u32> =
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
    let mut word = |numbers: &mut Numbers| match numbers.below(1000) {
        0..100 => {
            let length = 4 + numbers.below(8);
            (0..length).map(|_| char::from(b'a' + numbers.below(26) as u8)).collect()
        }
        100..120 => foreign[numbers.below(foreign.len())].to_owned(),
        120..140 => numbers.below(2025).to_string(),
        _ => {
            // Rank r with a probability like 1/r.
            let rank = (words.len() as f64).powf(numbers.unit()) as usize;
            words[rank.min(words.len()) - 1].1.clone()
        }
    };
    let mut caption = |numbers: &mut Numbers| {
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

struct Sides {
    ours: ClipTokenizer,
    theirs: Tokenizer,
    captions: Vec<String>,
}

impl Sides {
    fn new() -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/tokenizer");
        let captions = captions(&folder);
        let ours = ClipTokenizer::open(&folder).unwrap();
        let theirs = hugging_face::tokenizer(&folder, true);
        for caption in &captions {
            assert_eq!(ours.encode(caption).to_vec(), hugging_face::ids(&theirs, caption, 0), "{caption}");
        }
        Self { ours, theirs, captions }
    }

    fn ours(&self) {
        let captions: Vec<&str> = self.captions.iter().map(String::as_str).collect();
        black_box(self.ours.encode_batch(&captions));
    }

    fn theirs(&self) {
        let captions: Vec<&str> = self.captions.iter().map(String::as_str).collect();
        black_box(self.theirs.encode_batch_fast(captions, true).unwrap());
    }
}

fn time(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    CAPTIONS as f64 / times[times.len() / 2].as_secs_f64()
}

fn bench(criterion: &mut Criterion) {
    let sides = Sides::new();
    let (ours, theirs) = (0..TURNS).map(|_| (time(|| sides.ours()), time(|| sides.theirs()))).unzip();
    let (ours, theirs) = (median(ours), median(theirs));
    println!("captions/s on one core: ours {ours:.0}, tokenizers {theirs:.0}, ratio {:.1}", ours / theirs);

    let mut group = criterion.benchmark_group("clip tokenizer");
    group.throughput(Throughput::Elements(CAPTIONS as u64)).sample_size(10);
    group.bench_function("tidemill", |bencher| bencher.iter(|| sides.ours()));
    group.bench_function("tokenizers", |bencher| bencher.iter(|| sides.theirs()));
    group.finish();
}

criterion_group!(benches, bench);

fn main() {
    // One thread for both: ours runs on rayon's pool, and theirs is told to leave it.
    tokenizers::utils::parallelism::set_parallelism(false);
    rayon::ThreadPoolBuilder::new().num_threads(1).build_global().unwrap();
    benches();
    Criterion::default().configure_from_args().final_summary();
}
