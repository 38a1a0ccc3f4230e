//! Metrics for Prometheus: a page in its text format (version 0.0.4), which a thread serves over
//! HTTP. The page has the numbers of the last step only.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tidemill_telemetry::NUMBERS;

use crate::Error;
use crate::metrics::step_metrics::{RunCounters, StepMetrics};

/// How long a scraper may take to send its request or to read the answer.
const SOCKET_TIMEOUT: Duration = Duration::from_secs(2);

/// An HTTP endpoint that serves the metrics of the last step until it is dropped.
#[derive(Debug)]
pub struct PrometheusEndpoint {
    page: Arc<Mutex<String>>,
    address: SocketAddr,
    /// Tells the thread to end.
    should_end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl PrometheusEndpoint {
    /// Listens at `address`, for instance "0.0.0.0:9100".
    ///
    /// # Errors
    /// If the process cannot listen there.
    pub fn open(address: &str) -> Result<Self, Error> {
        let failed = |e: std::io::Error| {
            let hint = "give another address and port, for instance \"0.0.0.0:9100\"";
            Error::config("train.prometheus", format!("cannot listen at {address}: {e}; {hint}"))
        };
        let listener = TcpListener::bind(address).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let (page, should_end) = (Arc::new(Mutex::new(String::new())), Arc::new(AtomicBool::new(false)));
        let (served_page, is_ending) = (page.clone(), should_end.clone());
        let serve = move || {
            for socket in listener.incoming().flatten() {
                if is_ending.load(Ordering::Relaxed) {
                    return;
                }
                let page = served_page.lock().unwrap_or_else(PoisonError::into_inner).clone();
                // A scraper that has disconnected asks again later.
                let _ = send_page(socket, &page);
            }
        };
        let thread = std::thread::Builder::new().name("prometheus".into()).spawn(serve).map_err(failed)?;
        Ok(Self { page, address, should_end, thread: Some(thread) })
    }

    /// Replaces the page with the metrics of another step.
    pub(crate) fn update(&self, metrics: &StepMetrics, counters: RunCounters) {
        self.show(render_page(metrics, counters));
    }

    /// Replaces the page, which is in Prometheus's text format.
    pub fn show(&self, page: String) {
        *self.page.lock().unwrap_or_else(PoisonError::into_inner) = page;
    }
}

impl Drop for PrometheusEndpoint {
    /// Ends the thread, because another run of this process may listen at the same address.
    fn drop(&mut self) {
        self.should_end.store(true, Ordering::Relaxed);
        // The thread blocks until somebody connects. If that fails, the thread keeps blocking and
        // is not joined.
        let woken = TcpStream::connect_timeout(&self.address, SOCKET_TIMEOUT);
        if let (Ok(_), Some(thread)) = (woken, self.thread.take()) {
            let _ = thread.join();
        }
    }
}

/// Answers any request with the page.
fn send_page(mut socket: TcpStream, page: &str) -> std::io::Result<()> {
    socket.set_read_timeout(Some(SOCKET_TIMEOUT))?;
    socket.set_write_timeout(Some(SOCKET_TIMEOUT))?;
    let (mut request, mut buffer) = (Vec::<u8>::new(), [0; 1024]);
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < 16 << 10 {
        match socket.read(&mut buffer)? {
            0 => break,
            n => request.extend(&buffer[..n]),
        }
    }
    let length = page.len();
    write!(
        socket,
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{page}"
    )
}

/// Renders the page. Names follow Prometheus' conventions: base units, and `_total` for counters,
/// which only grow.
fn render_page(metrics: &StepMetrics, counters: RunCounters) -> String {
    let mut page = String::new();
    let mut add = |name: &str, kind: &str, help: &str, values: &[(String, f64)]| {
        // Writing to a string cannot fail.
        let _ = writeln!(page, "# HELP tidemill_{name} {help}\n# TYPE tidemill_{name} {kind}");
        for (label, value) in values {
            let _ = writeln!(page, "tidemill_{name}{label} {value}");
        }
    };
    let single = |value: f64| vec![(String::new(), value)];
    let m = metrics;
    add("step", "gauge", "Optimizer steps done.", &single(m.step as f64));
    // A gauge, because a run that rolls back has fewer samples than before.
    add("samples", "gauge", "Samples trained on.", &single(m.samples as f64));
    add("loss", "gauge", "Mean loss of the last global batch.", &single(m.loss));
    add("gradient_norm", "gauge", "Global norm of the gradients before clipping.", &single(m.grad_norm));
    add("learning_rate", "gauge", "Learning rate.", &single(m.learning_rate));
    add("images_per_second", "gauge", "Images per second, over all ranks.", &single(m.images_per_second));
    add("model_flops_per_second", "gauge", "FLOP/s of each rank's passes.", &single(m.tflops * 1e12));
    let if_any = |value: Option<f64>| value.map(single).unwrap_or_default();
    add(
        "model_flops_utilization_ratio",
        "gauge",
        "Share of train.peak_tflops that the passes reach.",
        &if_any(m.mfu),
    );
    add("data_wait_ratio", "gauge", "Share of the time spent waiting for data.", &single(m.data_wait));
    let labelled = |kind: &str, value: f64| (format!("{{of=\"{kind}\"}}"), value);
    let busy = m.communication.by_kind().into_iter();
    let busy: Vec<_> = busy.filter_map(|(kind, time)| Some(labelled(kind, time.busy?))).collect();
    add("communication_seconds", "gauge", "Seconds of a step in which collectives were in flight.", &busy);
    let exposed = m.communication.by_kind().map(|(kind, time)| labelled(kind, time.exposed));
    let help = "Seconds of a step in which computation waited for collectives.";
    add("communication_exposed_seconds", "gauge", help, &exposed);
    let by_rank = |memory: &[u64]| -> Vec<_> {
        let entry = |(rank, mib): (usize, &u64)| (format!("{{rank=\"{rank}\"}}"), (mib << 20) as f64);
        memory.iter().enumerate().map(entry).collect()
    };
    let (resident, gpu) = (by_rank(&m.memory_mib), m.gpu_memory_mib.as_deref().map(by_rank));
    add("resident_memory_bytes", "gauge", "Resident memory of each rank's process.", &resident);
    let help = "Peak memory of tensors on each rank's GPU.";
    add("gpu_peak_memory_bytes", "gauge", help, &gpu.unwrap_or_default());
    for number in NUMBERS {
        let samples = m.telemetry.as_deref().unwrap_or_default().iter().enumerate();
        let by_rank: Vec<_> = samples
            .filter_map(|(rank, sample)| Some((format!("{{rank=\"{rank}\"}}"), number.value(sample)?)))
            .collect();
        if !by_rank.is_empty() {
            add(number.name, "gauge", number.help, &by_rank);
        }
    }
    let tenths = m.loss_by_timestep.iter().enumerate();
    let tenths: Vec<_> =
        tenths.filter_map(|(tenth, loss)| Some((format!("{{tenth=\"{tenth}\"}}"), (*loss)?))).collect();
    let help = "Mean loss of the last global batch in each tenth of the timesteps.";
    add("timestep_loss", "gauge", help, &tenths);
    let c = counters;
    let help = "The last validation loss.";
    add("validation_loss", "gauge", help, &if_any(c.validation_loss));
    add(
        "validation_ema_loss",
        "gauge",
        "The last validation loss with averaged weights.",
        &if_any(c.validation_ema_loss),
    );
    add("checkpoint_step", "gauge", "The last step with a checkpoint.", &single(m.checkpoint as f64));
    for (name, help, value) in [
        ("checkpoint_failures_total", "Failed attempts to write a checkpoint.", c.failed_checkpoints as f64),
        (
            "checkpoint_stall_seconds_total",
            "Seconds that steps waited for checkpoints.",
            c.checkpoint_seconds,
        ),
        ("unreadable_rows_total", "Rows that could not be read.", c.skipped_rows as f64),
        ("skipped_steps_total", "Steps that left the weights unchanged.", c.skipped_steps as f64),
        ("rollbacks_total", "Times that the run rolled back to a checkpoint.", c.rollbacks as f64),
    ] {
        add(name, "counter", help, &single(value));
    }
    page
}

#[cfg(test)]
mod tests {
    use tidemill_telemetry::{GpuSample, HostSample, Sample};

    use super::*;
    use crate::metrics::step_metrics::tests::metrics_of_step;
    use crate::parallel::communication_time::{CommunicationTime, StepCommunication};

    #[test]
    fn endpoint_serves_the_metrics_of_the_last_step() {
        let probe = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = probe.local_addr().unwrap().to_string();
        let refused = PrometheusEndpoint::open(&address).unwrap_err().to_string();
        assert!(refused.contains("train.prometheus") && refused.contains(&address), "{refused}");
        drop(probe);
        // Runs of one process may listen at the same address, one after the other.
        drop(PrometheusEndpoint::open(&address).unwrap());
        let endpoint = PrometheusEndpoint::open(&address).unwrap();
        let scrape = || {
            let mut socket = TcpStream::connect(&address).unwrap();
            socket.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            let mut answer = String::new();
            socket.read_to_string(&mut answer).unwrap();
            answer
        };
        assert!(scrape().ends_with("\r\n\r\n"), "the page is empty before the first step");
        let metrics = StepMetrics {
            samples: 96,
            loss: f64::NAN,
            grad_norm: 1.5,
            mfu: Some(0.25),
            data_wait: 0.25,
            communication: StepCommunication {
                gradients: CommunicationTime { busy: Some(0.5), exposed: 0.125 },
                ..StepCommunication::default()
            },
            memory_mib: vec![1, 2],
            gpu_memory_mib: Some(vec![3, 4]),
            telemetry: Some(vec![
                Sample { host: HostSample { cpu: 0.5, ..HostSample::default() }, gpu: None },
                Sample {
                    gpu: Some(GpuSample { memory_mib: 2.0, ..GpuSample::default() }),
                    ..Sample::default()
                },
            ]),
            loss_by_timestep: vec![None, Some(0.5)],
            checkpoint: 10,
            ..metrics_of_step(12)
        };
        let counters = RunCounters {
            failed_checkpoints: 1,
            checkpoint_seconds: 2.5,
            skipped_rows: 3,
            skipped_steps: 4,
            rollbacks: 5,
            validation_loss: Some(0.125),
            validation_ema_loss: Some(0.25),
        };
        endpoint.update(&metrics, counters);
        let answer = scrape();
        for line in [
            "# TYPE tidemill_step gauge\ntidemill_step 12\n",
            "tidemill_loss NaN\n",
            "tidemill_model_flops_per_second 500000000000\n",
            "tidemill_model_flops_utilization_ratio 0.25\n",
            "tidemill_timestep_loss{tenth=\"1\"} 0.5\n",
            "tidemill_learning_rate 0.0001\n",
            "tidemill_resident_memory_bytes{rank=\"1\"} 2097152\n",
            "tidemill_gpu_peak_memory_bytes{rank=\"1\"} 4194304\n",
            "tidemill_host_cpu_ratio{rank=\"0\"} 0.5\n",
            "# TYPE tidemill_gpu_memory_bytes gauge\ntidemill_gpu_memory_bytes{rank=\"1\"} 2097152\n",
            "tidemill_communication_seconds{of=\"gradients\"} 0.5\n",
            "tidemill_communication_exposed_seconds{of=\"gradients\"} 0.125\n",
            "tidemill_checkpoint_step 10\n",
            "tidemill_validation_loss 0.125\n",
            "tidemill_validation_ema_loss 0.25\n",
            // Samples can fall. Prometheus would take a falling counter for a restart.
            "# TYPE tidemill_samples gauge\ntidemill_samples 96\n",
            "tidemill_checkpoint_failures_total 1\n",
            "tidemill_checkpoint_stall_seconds_total 2.5\n",
            "tidemill_unreadable_rows_total 3\n",
            "tidemill_skipped_steps_total 4\n",
            "# TYPE tidemill_rollbacks_total counter\ntidemill_rollbacks_total 5\n",
        ] {
            assert!(answer.contains(line), "{line} is not in {answer}");
        }
        for name in list_metrics_of_dashboard() {
            assert!(answer.contains(&format!("# TYPE {name} ")), "the dashboard shows {name}");
        }
    }

    fn list_metrics_of_dashboard() -> Vec<String> {
        let dashboard = include_str!("../../../../deploy/monitoring/dashboard.json");
        let dashboard: serde_json::Value = serde_json::from_str(dashboard).unwrap();
        let panels = dashboard["panels"].as_array().unwrap().iter();
        let queries = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
        let queries = queries.map(|target| target["expr"].as_str().unwrap().to_owned());
        let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
        let names =
            queries.flat_map(|query| query.split(|c| !is_name(c)).map(str::to_owned).collect::<Vec<_>>());
        let names: Vec<String> = names.filter(|name| name.starts_with("tidemill_")).collect();
        assert!(names.len() > 20);
        names
    }
}
