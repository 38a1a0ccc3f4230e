use tidemill_train::{Observer, StepMetrics};

/// Records messages and losses; stops or panics after a step if asked to.
#[derive(Default)]
pub struct TestObserver {
    pub messages: Vec<String>,
    pub losses: Vec<f64>,
    stop_after: Option<u64>,
    panic_after: Option<u64>,
    should_stop: bool,
}

impl TestObserver {
    /// Asks the run to stop after a step. The run saves a checkpoint then.
    pub fn stopping_after(step: u64) -> Self {
        Self { stop_after: Some(step), ..Self::default() }
    }

    /// Panics after a step. As after a kill, there is no checkpoint of the last steps.
    pub fn panicking_after(step: u64) -> Self {
        Self { panic_after: Some(step), ..Self::default() }
    }

    /// The messages that contain `part`.
    pub fn messages_with(&self, part: &str) -> Vec<&String> {
        self.messages.iter().filter(|message| message.contains(part)).collect()
    }
}

impl Observer for TestObserver {
    fn on_step(&mut self, metrics: &StepMetrics, _total_steps: u64) {
        self.losses.push(metrics.loss);
        self.should_stop |= self.stop_after == Some(metrics.step);
        assert_ne!(self.panic_after, Some(metrics.step), "killed, as the test asks");
    }

    fn log(&mut self, message: &str) {
        self.messages.push(message.into());
    }

    fn should_stop(&self) -> bool {
        self.should_stop
    }
}
