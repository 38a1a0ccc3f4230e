//! Writes captioned scenes:
//! `cargo run --release -p tidemill-synth --example synth -- <folder> [rows] [seed] [held_out]`.

use std::path::Path;

use tidemill_synth::{Combinations, SynthConfig, write_scenes};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let out_dir = args.next().ok_or("usage: synth <folder> [rows] [seed] [held_out]")?;
    let mut config = SynthConfig::default();
    if let Some(rows) = args.next() {
        config.rows = rows.parse()?;
    }
    if let Some(seed) = args.next() {
        config.seed = seed.parse()?;
    }
    if args.next().as_deref() == Some("held_out") {
        config.combinations = Combinations::HeldOut;
    }
    let report = write_scenes(&config, Path::new(&out_dir))?;
    println!("{}", serde_json::to_string_pretty(&report)?);
    Ok(())
}
