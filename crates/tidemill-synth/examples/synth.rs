//! Draws captioned scenes: `cargo run --release -p tidemill-synth --example synth -- <folder> [rows] [seed]`.

use std::path::Path;

use tidemill_synth::{SynthConfig, synth};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let out_dir = args.next().ok_or("usage: synth <folder> [rows] [seed]")?;
    let mut config = SynthConfig::default();
    if let Some(rows) = args.next() {
        config.rows = rows.parse()?;
    }
    if let Some(seed) = args.next() {
        config.seed = seed.parse()?;
    }
    let report = synth(&config, Path::new(&out_dir))?;
    println!("{} rows in {} files, {} bytes, broken: {:?}", report.rows, report.files.len(), report.bytes, report.broken);
    Ok(())
}
