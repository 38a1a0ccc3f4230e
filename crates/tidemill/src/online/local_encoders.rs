//! The local engine as a maker of windows: one epoch after the other it prepares and encodes the units of a lane.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arrow::array::RecordBatch;
use tidemill_data::InputUnit;
use tidemill_data::source::Source;
use tidemill_store::RowCounts;

use crate::engine::stop_signal::StopSignal;
use crate::engine::{Attempt, Local, Sink, Stage, Utilisation};
use crate::error::{Error, Result};
use crate::online::prefetch::{self, Window};
use crate::online::rank_assignment::{Open, Windows};
use crate::online::row_accounting::{Ledger, name};
use crate::online::row_selection::Selection;
use crate::progress::Reporter;
use crate::run_file::Run;

/// What is needed to make windows.
pub struct Making {
    /// The run, at one resolution.
    pub run: Run,
    pub source: Arc<dyn Source>,
    pub units: Arc<Vec<InputUnit>>,
    pub windows: Windows,
    /// The second stage, once per encoder.
    pub stages: Vec<Box<dyn Stage>>,
    /// Whether it encodes; else the trainer does.
    pub encodes: bool,
    /// Which rows are wanted, and which of their columns.
    pub selection: Selection,
    pub ledger: Arc<Ledger>,
}

/// Makes windows, epoch by epoch: what is drawn at random differs between epochs.
///
/// # Errors
/// Those of the engine.
pub fn make(
    mut making: Making,
    windows: impl Iterator<Item = Open>,
    to: &prefetch::Windows,
    stop: &Arc<StopSignal>,
) -> Result<()> {
    let quiet = Reporter { json: false, quiet: true };
    let mut windows = windows.map(|open| open.window).peekable();
    while let Some(epoch) = windows.peek().map(|window| making.windows.epoch(*window)) {
        let same = |window: &u64| making.windows.epoch(*window) == epoch;
        let numbers: Vec<u64> = std::iter::from_fn(|| windows.next_if(same)).collect();
        let sink = WindowSink::new(&making, numbers, epoch, to, stop);
        let units = sink.units(&making);
        let prepare = making.run.in_epoch(epoch).prepare()?;
        let (config, encoders) = (&making.run.file.engine, making.stages.len());
        let engine = Local {
            source: &*making.source,
            prepare: &prepare,
            encode: making
                .stages
                .iter_mut()
                .map(|stage| Box::new(&mut **stage) as Box<dyn Stage + '_>)
                .collect(),
            sink: &sink,
            batch_size: making.run.file.encode.batch_size,
            readers: config.readers(encoders),
            workers: config.prepare.workers.range(),
            memory: config.memory(),
            // The ledger judges all epochs together.
            max_bad_fraction: 1.0,
            before: RowCounts::default(),
            stop,
        };
        engine.run(&units, &quiet.start_progress("online", "rows", None))?;
    }
    Ok(())
}

/// Puts the rows of an epoch's units together to windows, and hands these over in their order.
struct WindowSink {
    /// Of each unit, by file and start: its window's place in the epoch, and its own place there.
    places: HashMap<(String, u64), (usize, usize)>,
    shared: Arc<Shared>,
}

struct Shared {
    epoch: u64,
    /// The windows, in their order.
    numbers: Vec<u64>,
    selection: Selection,
    ledger: Arc<Ledger>,
    assembly: Mutex<Assembly>,
    /// Notified when a window is handed over.
    handed: Condvar,
    /// Windows after the next one whose units may be begun: encoders share a window, and some are at the one after it.
    ahead: usize,
    /// As in [`Making`].
    encodes: bool,
    to: prefetch::Windows,
    stop: Arc<StopSignal>,
}

/// Windows that are not complete, by their places in the epoch, with the rows of their units.
struct Assembly {
    next: usize,
    parts: BTreeMap<usize, Vec<Option<Vec<RecordBatch>>>>,
}

impl WindowSink {
    fn new(
        making: &Making,
        numbers: Vec<u64>,
        epoch: u64,
        to: &prefetch::Windows,
        stop: &Arc<StopSignal>,
    ) -> Self {
        let mut places = HashMap::new();
        let mut parts = BTreeMap::new();
        for (place, number) in numbers.iter().enumerate() {
            let units: Vec<usize> = making.windows.units(*number).collect();
            for (slot, unit) in units.iter().enumerate() {
                places.insert(name(&making.units[*unit]), (place, slot));
            }
            parts.insert(place, (0..units.len()).map(|_| None).collect());
        }
        let shared = Shared {
            epoch,
            numbers,
            selection: making.selection.clone(),
            ledger: making.ledger.clone(),
            assembly: Mutex::new(Assembly { next: 0, parts }),
            handed: Condvar::new(),
            ahead: making.stages.len().div_ceil(making.run.file.online.window.max(1)),
            encodes: making.encodes,
            to: to.clone(),
            stop: stop.clone(),
        };
        Self { places, shared: Arc::new(shared) }
    }

    fn units(&self, making: &Making) -> Vec<InputUnit> {
        let units = self.shared.numbers.iter().flat_map(|number| making.windows.units(*number));
        units.map(|unit| making.units[unit].clone()).collect()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Assembly> {
        self.assembly.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sink for WindowSink {
    /// Not for windows far behind one that a slow unit holds up: the rows of all of them would lie in memory.
    fn has_room(&self, unit: &InputUnit, patience: Duration) -> bool {
        let Shared { handed, ahead, .. } = &*self.shared;
        let Some((window, _)) = self.places.get(&name(unit)) else { return true };
        let far = |assembly: &mut Assembly| *window > assembly.next + ahead;
        let waited = handed.wait_timeout_while(self.shared.lock(), patience, far);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    fn begin(&self, unit: &InputUnit) -> Result<Box<dyn Attempt>> {
        let (window, slot) = *self.places.get(&name(unit)).ok_or(Error::Thread("online"))?;
        Ok(Box::new(Part { shared: self.shared.clone(), unit: unit.clone(), window, slot, rows: Vec::new() }))
    }

    /// Writing is left out, which is mostly waiting for the trainer to take a window.
    fn ended(&self, stages: &[Utilisation]) {
        let told: &[&str] =
            if self.shared.encodes { &["read", "prepare", "encode"] } else { &["read", "prepare"] };
        for stage in stages.iter().filter(|stage| told.contains(&stage.stage)) {
            self.shared.ledger.worked(stage.stage, stage.rows, stage.busy_seconds);
        }
    }
}

/// A unit's rows in the making.
struct Part {
    shared: Arc<Shared>,
    unit: InputUnit,
    window: usize,
    slot: usize,
    rows: Vec<RecordBatch>,
}

impl Attempt for Part {
    /// Fails once nobody takes windows any more: otherwise the engine would see the units begun through, for which the
    /// last checkpoint would wait.
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        if self.shared.stop.raised() {
            return Err(Error::Thread("trainer"));
        }
        self.shared.ledger.add(batch, &self.unit, self.shared.epoch)?;
        let rows = self.shared.selection.of(batch)?;
        if rows.num_rows() > 0 {
            self.rows.push(rows);
        }
        Ok(())
    }

    /// Waits while the trainer has enough: it needs nobody who waits here.
    fn commit(self: Box<Self>) -> Result<()> {
        self.shared.ledger.end_unit(&self.unit)?;
        let mut assembly = self.shared.lock();
        if let Some(parts) = assembly.parts.get_mut(&self.window) {
            parts[self.slot] = Some(self.rows);
        }
        while let Some(rows) = assembly.next_complete() {
            let (number, epoch) = (self.shared.numbers[assembly.next], self.shared.epoch as u32);
            assembly.next += 1;
            self.shared.handed.notify_all();
            let handed = self.shared.to.send(Ok(Window { number, epoch, rows }));
            handed.map_err(|_| Error::Thread("trainer"))?;
        }
        Ok(())
    }
}

impl Assembly {
    /// The rows of the next window, if all its units are there.
    fn next_complete(&mut self) -> Option<Vec<RecordBatch>> {
        let complete = self.parts.get(&self.next)?.iter().all(Option::is_some);
        let parts = complete.then(|| self.parts.remove(&self.next)).flatten()?;
        Some(parts.into_iter().flatten().flatten().collect())
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, LargeBinaryArray, StringArray, UInt64Array};
    use crossbeam_channel::{Receiver, bounded};
    use tidemill_data::source::{InputFile, Span};

    use super::*;

    fn unit(number: usize) -> InputUnit {
        let file = InputFile { uri: number.to_string(), size: 0, identity: String::new(), e_tag: None };
        InputUnit { file, span: Span::Rows(0..1), held: 0 }
    }

    /// Takes the windows of an epoch, each of two units.
    fn sink(windows: usize, output: &str) -> (WindowSink, Receiver<Result<Window>>) {
        let (to, from) = bounded(windows);
        let parts = (0..windows).map(|window| (window, vec![None, None]));
        let shared = Shared {
            epoch: 0,
            numbers: (0..windows as u64).collect(),
            selection: Selection { resolution: 64, held_out: 0.0 },
            ledger: Arc::new(Ledger::open(output, 1.0, 2 * windows).unwrap()),
            assembly: Mutex::new(Assembly { next: 0, parts: parts.collect() }),
            handed: Condvar::new(),
            ahead: 1,
            encodes: true,
            to,
            stop: Arc::default(),
        };
        let places = (0..2 * windows).map(|n| (name(&unit(n)), (n / 2, n % 2))).collect();
        (WindowSink { places, shared: Arc::new(shared) }, from)
    }

    fn kept() -> RecordBatch {
        let columns: [(&str, ArrayRef, bool); 4] = [
            ("sample_id", Arc::new(UInt64Array::from(vec![7])), false),
            ("status", Arc::new(StringArray::from(vec!["kept"])), false),
            ("reason", Arc::new(StringArray::from(vec![None::<&str>])), true),
            ("latents_64", Arc::new(LargeBinaryArray::from(vec![Some(&b"latents"[..])])), true),
        ];
        RecordBatch::try_from_iter_with_nullable(columns).unwrap()
    }

    #[test]
    fn a_unit_begun_ends_with_the_wish_to_stop() {
        let folder = tempfile::tempdir().unwrap();
        let (sink, _windows) = sink(1, folder.path().to_str().unwrap());
        let mut part = sink.begin(&unit(0)).unwrap();
        part.write(&kept()).unwrap();
        sink.shared.stop.raise();
        assert!(part.write(&kept()).is_err());
    }

    #[test]
    fn a_slow_unit_lets_others_get_only_a_window_ahead() {
        let folder = tempfile::tempdir().unwrap();
        let (sink, windows) = sink(4, folder.path().to_str().unwrap());
        let with_room = || (0..8).filter(|n| sink.has_room(&unit(*n), Duration::ZERO)).collect::<Vec<_>>();
        let slow = sink.begin(&unit(0)).unwrap();
        for number in 1..4 {
            assert_eq!(with_room(), [0, 1, 2, 3]);
            sink.begin(&unit(number)).unwrap().commit().unwrap();
        }
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| sink.has_room(&unit(7), Duration::from_secs(60)));
            slow.commit().unwrap();
            assert!(waiting.join().unwrap());
        });
        assert_eq!((windows.len(), with_room().len()), (2, 8));
    }
}
