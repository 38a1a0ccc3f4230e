//! The sink of the local engine in online training: assembles the rows of units into windows, and
//! sends the windows in their order.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arrow::array::RecordBatch;
use tidemill_data::InputUnit;

use crate::engine::sink::{Attempt, Sink};
use crate::engine::stage_utilization::StageUtilization;
use crate::engine::stop_signal::StopSignal;
use crate::error::{Error, Result};
use crate::online::row_accounting::{RowAccounting, unit_id};
use crate::online::row_selection::RowSelection;
use crate::online::window_prefetch::{Window, WindowSender};

/// The sink for windows of one epoch.
pub(crate) struct WindowSink {
    slots: HashMap<(String, u64), UnitSlot>,
    shared: Arc<SharedSink>,
}

/// Where the rows of a unit go.
#[derive(Debug, Clone, Copy)]
struct UnitSlot {
    /// Index of the window in the sink's list of windows.
    window_index: usize,
    /// Index of the unit in its window.
    unit_index: usize,
}

/// What the windows of a [`WindowSink`] are made for, and how.
pub(crate) struct WindowSinkConfig {
    pub epoch: u64,
    /// The windows by number, in their order.
    pub windows: Vec<u64>,
    pub selection: RowSelection,
    pub accounting: Arc<RowAccounting>,
    /// Windows after the next one whose units may be started. Encoders share a window, and some of
    /// them are already at a later one.
    pub windows_ahead: usize,
    /// Whether the engine encodes; otherwise the trainer does.
    pub is_encoding: bool,
    pub to: WindowSender,
    pub stop: Arc<StopSignal>,
}

struct SharedSink {
    config: WindowSinkConfig,
    assembly: Mutex<WindowAssembly>,
    /// Notified when a window is sent.
    window_sent: Condvar,
}

/// Windows that are not complete yet.
struct WindowAssembly {
    /// Index of the window that is sent next.
    next_index: usize,
    /// By index of the window: the rows of each of its units, once they are there.
    units: BTreeMap<usize, Vec<Option<Vec<RecordBatch>>>>,
}

impl WindowSink {
    /// A sink for windows that consist of these units, in the order of `config.windows`.
    pub fn new<'a>(
        config: WindowSinkConfig,
        window_units: impl IntoIterator<Item = Vec<&'a InputUnit>>,
    ) -> Self {
        let mut slots = HashMap::new();
        let mut units = BTreeMap::new();
        for (window_index, members) in window_units.into_iter().enumerate() {
            for (unit_index, unit) in members.iter().enumerate() {
                slots.insert(unit_id(unit), UnitSlot { window_index, unit_index });
            }
            units.insert(window_index, members.iter().map(|_| None).collect());
        }
        let assembly = Mutex::new(WindowAssembly { next_index: 0, units });
        Self { slots, shared: Arc::new(SharedSink { config, assembly, window_sent: Condvar::new() }) }
    }
}

impl SharedSink {
    fn lock(&self) -> MutexGuard<'_, WindowAssembly> {
        self.assembly.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sink for WindowSink {
    /// There is no room for windows far behind one that a slow unit holds up, because the rows of
    /// all of them would stay in memory.
    fn has_room(&self, unit: &InputUnit, timeout: Duration) -> bool {
        let SharedSink { config, window_sent, .. } = &*self.shared;
        let Some(slot) = self.slots.get(&unit_id(unit)) else { return true };
        let is_too_far =
            |assembly: &mut WindowAssembly| slot.window_index > assembly.next_index + config.windows_ahead;
        let waited = window_sent.wait_timeout_while(self.shared.lock(), timeout, is_too_far);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    fn begin_unit(&self, unit: &InputUnit) -> Result<Box<dyn Attempt>> {
        let slot = *self.slots.get(&unit_id(unit)).ok_or(Error::Thread("online"))?;
        Ok(Box::new(UnitRows { shared: self.shared.clone(), unit: unit.clone(), slot, rows: Vec::new() }))
    }

    /// Leaves out writing, because it is mostly waiting for the trainer to take a window.
    fn on_run_end(&self, stages: &[StageUtilization]) {
        let WindowSinkConfig { is_encoding, accounting, .. } = &self.shared.config;
        let counted: &[&str] =
            if *is_encoding { &["read", "prepare", "encode"] } else { &["read", "prepare"] };
        for stage in stages.iter().filter(|stage| counted.contains(&stage.stage)) {
            accounting.add_work(stage.stage, stage.rows, stage.busy_seconds);
        }
    }
}

/// The rows of a unit that is in work.
struct UnitRows {
    shared: Arc<SharedSink>,
    unit: InputUnit,
    slot: UnitSlot,
    rows: Vec<RecordBatch>,
}

impl Attempt for UnitRows {
    /// Fails once the trainer takes no more windows. Otherwise the engine would finish all units in
    /// work, and the last checkpoint would wait for it.
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let WindowSinkConfig { stop, accounting, selection, epoch, .. } = &self.shared.config;
        if stop.is_raised() {
            return Err(Error::Thread("trainer"));
        }
        accounting.add_rows(batch, &self.unit, *epoch)?;
        let rows = selection.select(batch)?;
        if rows.num_rows() > 0 {
            self.rows.push(rows);
        }
        Ok(())
    }

    /// Waits while the trainer has enough windows. This cannot deadlock: the trainer waits for no
    /// thread that waits here.
    fn commit(self: Box<Self>) -> Result<()> {
        let SharedSink { config, window_sent, .. } = &*self.shared;
        config.accounting.finish_unit(&self.unit)?;
        let mut assembly = self.shared.lock();
        if let Some(units) = assembly.units.get_mut(&self.slot.window_index) {
            units[self.slot.unit_index] = Some(self.rows);
        }
        while let Some(batches) = assembly.take_complete() {
            let (number, epoch) = (config.windows[assembly.next_index], config.epoch as u32);
            assembly.next_index += 1;
            window_sent.notify_all();
            let sent = config.to.send(Ok(Window { number, epoch, batches }));
            sent.map_err(|_| Error::Thread("trainer"))?;
        }
        Ok(())
    }
}

impl WindowAssembly {
    /// The rows of the next window, if all its units are there.
    fn take_complete(&mut self) -> Option<Vec<RecordBatch>> {
        let is_complete = self.units.get(&self.next_index)?.iter().all(Option::is_some);
        let units = is_complete.then(|| self.units.remove(&self.next_index)).flatten()?;
        Some(units.into_iter().flatten().flatten().collect())
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
        InputUnit { file, span: Span::Rows(0..1), resident_bytes: 0 }
    }

    /// A sink for windows of two units each.
    fn sink(windows: usize, output: &str) -> (WindowSink, Receiver<Result<Window>>) {
        let (to, from) = bounded(windows);
        let config = WindowSinkConfig {
            epoch: 0,
            windows: (0..windows as u64).collect(),
            selection: RowSelection { resolution: 64, validation_share: 0.0 },
            accounting: Arc::new(RowAccounting::open(output, 1.0, 2 * windows).unwrap()),
            windows_ahead: 1,
            is_encoding: true,
            to,
            stop: Arc::default(),
        };
        let units: Vec<InputUnit> = (0..2 * windows).map(unit).collect();
        (WindowSink::new(config, units.chunks(2).map(|units| units.iter().collect())), from)
    }

    fn kept_row() -> RecordBatch {
        let columns: [(&str, ArrayRef, bool); 4] = [
            ("sample_id", Arc::new(UInt64Array::from(vec![7])), false),
            ("status", Arc::new(StringArray::from(vec!["kept"])), false),
            ("reason", Arc::new(StringArray::from(vec![None::<&str>])), true),
            ("latents_64", Arc::new(LargeBinaryArray::from(vec![Some(&b"latents"[..])])), true),
        ];
        RecordBatch::try_from_iter_with_nullable(columns).unwrap()
    }

    #[test]
    fn unit_in_work_ends_when_the_stop_signal_is_raised() {
        let folder = tempfile::tempdir().unwrap();
        let (sink, _windows) = sink(1, folder.path().to_str().unwrap());
        let mut attempt = sink.begin_unit(&unit(0)).unwrap();
        attempt.write(&kept_row()).unwrap();
        sink.shared.config.stop.raise();
        assert!(attempt.write(&kept_row()).is_err());
    }

    #[test]
    fn slow_unit_lets_others_run_only_one_window_ahead() {
        let folder = tempfile::tempdir().unwrap();
        let (sink, windows) = sink(4, folder.path().to_str().unwrap());
        let with_room = || (0..8).filter(|n| sink.has_room(&unit(*n), Duration::ZERO)).collect::<Vec<_>>();
        let slow = sink.begin_unit(&unit(0)).unwrap();
        for number in 1..4 {
            assert_eq!(with_room(), [0, 1, 2, 3]);
            sink.begin_unit(&unit(number)).unwrap().commit().unwrap();
        }
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| sink.has_room(&unit(7), Duration::from_secs(60)));
            slow.commit().unwrap();
            assert!(waiting.join().unwrap());
        });
        assert_eq!((windows.len(), with_room().len()), (2, 8));
    }
}
