//! Reads the steps of `metrics.jsonl`, cut and mixed lines included.

use std::io::BufRead;

use rayon::prelude::*;

use super::line::StepLine;

/// What comes next in the file.
pub enum Event {
    /// What came before was another run.
    NewRun,
    /// A step, later than the one before.
    Step(Box<StepLine>),
}

/// Calls `on_event` with all steps, in order, and returns remarks on lines that are no steps. Where
/// steps begin again at the first, another run's lines follow. Steps that come again later are those of
/// a rollback whose lines could not be removed; only the first ones are given.
pub fn read_steps(lines: impl BufRead, mut on_event: impl FnMut(Event)) -> Vec<String> {
    let (mut last_step, mut runs) = (0, 1);
    let (mut unreadable, mut repeated) = (0, 0);
    for step in parse_lines(lines) {
        let Some(step) = step else {
            unreadable += 1;
            continue;
        };
        if step.step <= last_step {
            if step.step > 1 {
                repeated += 1;
                continue;
            }
            runs += 1;
            on_event(Event::NewRun);
        }
        last_step = step.step;
        on_event(Event::Step(Box::new(step)));
    }
    let mut remarks = Vec::new();
    if unreadable > 0 {
        remarks.push(format!("lines of metrics.jsonl that are cut or are no metrics: {unreadable}"));
    }
    if runs > 1 {
        remarks.push(format!("metrics.jsonl has the lines of {runs} runs; the last one counts"));
    }
    if repeated > 0 {
        remarks.push(format!("steps that come again in metrics.jsonl, after a rollback: {repeated}"));
    }
    remarks
}

/// Lines that are parsed at a time, on all cores.
const BLOCK: usize = 4096;

/// The steps of the lines. None for a line that is cut or is no step.
fn parse_lines(lines: impl BufRead) -> impl Iterator<Item = Option<StepLine>> {
    let mut lines = lines.split(b'\n').map_while(Result::ok);
    let blocks = std::iter::from_fn(move || {
        let block: Vec<Vec<u8>> = lines.by_ref().take(BLOCK).collect();
        (!block.is_empty()).then_some(block)
    });
    blocks.flat_map(|block| parse_block(&block))
}

/// Not generic, so that it is compiled here, optimised, and not in the crate that calls.
fn parse_block(lines: &[Vec<u8>]) -> Vec<Option<StepLine>> {
    // serde_json takes three times as long for so many floating-point numbers.
    let parse = |line: &Vec<u8>| sonic_rs::from_slice(line).ok().filter(|step: &StepLine| step.step > 0);
    lines.par_iter().map(parse).collect()
}
