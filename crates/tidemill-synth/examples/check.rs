//! Runs the checker on square RGB images that are stored one after the other in a file. Prints a
//! JSON object or null per image: `cargo run --release -p tidemill-synth --example check -- <file>
//! <side in pixels>`.

use tidemill_synth::{RgbView, detect_object};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [file, side] = args.as_slice() else { return Err("usage: check <file> <side in pixels>".into()) };
    let side: usize = side.parse()?;
    for image in std::fs::read(file)?.chunks(3 * side * side) {
        let found = detect_object(&RgbView::new(side, side, image)?);
        println!("{}", serde_json::to_string(&found)?);
    }
    Ok(())
}
