//! The thread that reads, and what it has read.

use std::collections::VecDeque;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::faults::find_fault;
use crate::gpu::GpuReader;
use crate::host::HostReader;
use crate::sample::Sample;

/// The time between two samples.
const INTERVAL: Duration = Duration::from_secs(1);
/// The samples of a summary: ten seconds.
const WINDOW: usize = 10;

/// Reads every second, until it is dropped.
pub struct Sampler {
    state: Arc<Mutex<State>>,
    /// Dropped, it ends the thread. Nobody waits for that: a broken GPU or file system may not answer.
    _stop: Sender<()>,
}

#[derive(Default)]
struct State {
    samples: VecDeque<Sample>,
    /// Uncorrected memory errors when the process started.
    ecc_before: Option<u64>,
    fault: Option<String>,
}

impl Sampler {
    /// Reads this machine, and the GPU that CUDA calls `gpu` in this process. Without a driver, or if
    /// no thread can be started, what is missing is not read.
    pub fn start(gpu: Option<u32>) -> Self {
        Self::start_with(INTERVAL, move || {
            let mut gpu = gpu.and_then(GpuReader::open);
            let mut host = HostReader::new();
            move || Sample { host: host.read(), gpu: gpu.as_mut().map(GpuReader::read) }
        })
    }

    /// Reads in a thread with what `open` makes there.
    fn start_with<R: FnMut() -> Sample>(
        interval: Duration,
        open: impl FnOnce() -> R + Send + 'static,
    ) -> Self {
        let state: Arc<Mutex<State>> = Arc::default();
        let (stop, stopped) = channel::<()>();
        let shared = state.clone();
        let run = move || {
            let mut read = open();
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                let sample = read();
                shared.lock().unwrap_or_else(PoisonError::into_inner).add(sample);
            }
        };
        // Without a thread nothing is read.
        drop(std::thread::Builder::new().name("telemetry".into()).spawn(run));
        Self { state, _stop: stop }
    }

    /// The summary of the last seconds. None before the first sample.
    pub fn summary(&self) -> Option<Sample> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let samples: &[Sample] = state.samples.make_contiguous();
        (!samples.is_empty()).then(|| Sample::summarise(samples))
    }

    /// Why the GPU must not be used any more, if that is so.
    pub fn fault(&self) -> Option<String> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).fault.clone()
    }
}

impl State {
    fn add(&mut self, sample: Sample) {
        if let Some(gpu) = &sample.gpu {
            let (errors, before) = (gpu.ecc_errors, self.ecc_before.or(gpu.ecc_errors));
            self.ecc_before = before;
            let new_errors = errors.unwrap_or(0).saturating_sub(before.unwrap_or(0));
            self.fault = self.fault.take().or_else(|| find_fault(gpu.xid, new_errors));
        }
        self.samples.push_back(sample);
        if self.samples.len() > WINDOW {
            self.samples.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::GpuSample;

    /// Waits until a condition holds, at most ten seconds.
    fn wait_until(mut condition: impl FnMut() -> bool) {
        for _ in 0..1000 {
            if condition() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("nothing has happened for ten seconds");
    }

    #[test]
    fn samples_are_summarised_and_faults_stay() {
        let sampler = Sampler::start_with(Duration::from_millis(1), || {
            let mut number = 0;
            move || {
                number += 1;
                // The first sample does not know, and the third has an error more than the second.
                let ecc_errors = (number > 1).then_some(7 + u64::from(number > 2));
                Sample { gpu: Some(GpuSample { ecc_errors, ..GpuSample::default() }), ..Sample::default() }
            }
        });
        wait_until(|| sampler.fault().is_some());
        let message = sampler.fault().unwrap_or_default();
        assert!(message.starts_with("1 new memory errors"), "{message}");
        assert!(sampler.summary().is_some_and(|summary| summary.gpu.is_some()));
    }

    #[test]
    fn without_a_gpu_the_machine_is_read() {
        let sampler = Sampler::start(Some(99));
        wait_until(|| sampler.summary().is_some());
        let summary = sampler.summary().unwrap_or_default();
        assert!(summary.gpu.is_none() && summary.host.memory_mib > 0.0, "{summary:?}");
        assert_eq!(sampler.fault(), None);
    }
}
