//! The communication time of a step, by purpose, as metrics report it.

use serde::Serialize;
use tch::Device;

/// Seconds of communication of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CommunicationTime {
    /// Seconds in which collectives were in flight. Unknown on a GPU, because the host does not
    /// wait for them there. The part that is not exposed overlaps with computation.
    pub busy: Option<f64>,
    /// Seconds in which computation waited for collectives.
    pub exposed: f64,
}

/// Seconds of a step's communication, by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StepCommunication {
    /// Gradients, in reduce-scatters (in all-reduces without sharding).
    pub gradients: CommunicationTime,
    /// New weights, in all-gathers.
    pub weights: CommunicationTime,
    /// Coordination between ranks: whether all have their rows, and the sums of the step. Ranks
    /// that are early wait here.
    pub ranks: CommunicationTime,
}

impl StepCommunication {
    /// The mean over `steps` steps.
    pub fn per_step(self, steps: usize) -> Self {
        let [gradients, weights, ranks] = self.by_kind().map(|(_, time)| time.per_step(steps));
        Self { gradients, weights, ranks }
    }

    /// Each kind with its name.
    pub fn by_kind(self) -> [(&'static str, CommunicationTime); 3] {
        [("gradients", self.gradients), ("weights", self.weights), ("ranks", self.ranks)]
    }
}

impl CommunicationTime {
    /// Communication on `device` that computation waited for all the time.
    pub fn from_wait(device: Device, seconds: f64) -> Self {
        Self { busy: (device == Device::Cpu).then_some(seconds), exposed: seconds }
    }

    /// The mean over `steps` steps.
    fn per_step(self, steps: usize) -> Self {
        let steps = steps.max(1) as f64;
        Self { busy: self.busy.map(|busy| busy / steps), exposed: self.exposed / steps }
    }

    /// The sum of both.
    pub fn plus(self, other: Self) -> Self {
        let busy = self.busy.zip(other.busy).map(|(a, b)| a + b).or(self.busy).or(other.busy);
        Self { busy, exposed: self.exposed + other.exposed }
    }
}
