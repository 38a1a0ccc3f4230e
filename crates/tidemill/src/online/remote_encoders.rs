//! Remote encoders: nodes of a cluster make the windows.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use tidemill_data::InputUnit;
use tidemill_store::ModelDigests;

use crate::engine::ray::model_provenance::check_provenance;
use crate::engine::stop_signal::StopSignal;
use crate::error::{Error, Result};
use crate::online::rank_assignment::WindowPosition;
use crate::online::row_accounting::RowAccounting;
use crate::online::row_selection::RowSelection;
use crate::online::window_plan::WindowPlan;
use crate::online::window_prefetch::{Window, WindowSender};

/// Prepares and encodes units on other machines.
pub trait RemoteEncoders: fmt::Debug + Send + Sync {
    /// Requests the rows of a unit in an epoch at a resolution. Returns the number of the request.
    ///
    /// # Errors
    /// If the request cannot be sent.
    fn request(&self, unit: &InputUnit, epoch: u64, resolution: u32) -> Result<u64>;

    /// The rows of a request, encoded in the same batches as by the local engine; `None` if they
    /// are not ready within about a second. The rows can be received once.
    ///
    /// # Errors
    /// If the rows cannot be made.
    fn try_receive(&self, request: u64) -> Result<Option<Vec<RecordBatch>>>;
}

/// Requests the windows of a rank from remote encoders.
pub(crate) struct RemoteWindows {
    pub encoders: Arc<dyn RemoteEncoders>,
    pub units: Arc<Vec<InputUnit>>,
    pub plan: WindowPlan,
    /// Windows requested at a time.
    pub windows_ahead: usize,
    /// The models that the encoders must use.
    pub models: ModelDigests,
    /// Digests of the computed scores, by name.
    pub scores: BTreeMap<String, String>,
    pub selection: RowSelection,
    pub accounting: Arc<RowAccounting>,
}

/// A window whose units have been requested.
struct RequestedWindow {
    number: u64,
    epoch: u64,
    /// Index of each unit, and the number of its request.
    units: Vec<(usize, u64)>,
}

impl RemoteWindows {
    /// Requests windows, several at a time, and sends them in their order.
    ///
    /// # Errors
    /// The errors of the encoders.
    pub fn make_windows(
        &self,
        mut windows: impl Iterator<Item = WindowPosition>,
        to: &WindowSender,
        stop: &StopSignal,
    ) -> Result<()> {
        let mut requested = VecDeque::new();
        loop {
            while requested.len() < self.windows_ahead.max(1) {
                let Some(position) = windows.next() else { return Ok(()) };
                requested.push_back(self.request_window(position.window)?);
            }
            let Some(next) = requested.pop_front() else { return Ok(()) };
            let Some(window) = self.receive_window(next, stop)? else { return Ok(()) };
            to.send(Ok(window)).map_err(|_| Error::Thread("trainer"))?;
        }
    }

    fn request_window(&self, number: u64) -> Result<RequestedWindow> {
        let (epoch, resolution) = (self.plan.epoch(number), self.selection.resolution);
        let request = |unit| Ok((unit, self.encoders.request(&self.units[unit], epoch, resolution)?));
        let units = self.plan.unit_indices(number).map(request).collect::<Result<_>>()?;
        Ok(RequestedWindow { number, epoch, units })
    }

    /// Waits for the units of a window; `None` if the signal is raised meanwhile.
    fn receive_window(&self, requested: RequestedWindow, stop: &StopSignal) -> Result<Option<Window>> {
        let RequestedWindow { number, epoch, units } = requested;
        let mut selected = Vec::new();
        for (unit, request) in units {
            let Some(batches) = self.receive_unit(request, stop)? else { return Ok(None) };
            for batch in batches {
                check_provenance(&batch, &self.models, &self.scores)?;
                self.accounting.add_rows(&batch, &self.units[unit], epoch)?;
                selected.push(self.selection.select(&batch)?);
            }
            self.accounting.finish_unit(&self.units[unit])?;
        }
        selected.retain(|batch| batch.num_rows() > 0);
        Ok(Some(Window { number, epoch: epoch as u32, batches: selected }))
    }

    fn receive_unit(&self, request: u64, stop: &StopSignal) -> Result<Option<Vec<RecordBatch>>> {
        loop {
            if stop.is_raised() {
                return Ok(None);
            }
            if let Some(batches) = self.encoders.try_receive(request)? {
                return Ok(Some(batches));
            }
        }
    }
}
