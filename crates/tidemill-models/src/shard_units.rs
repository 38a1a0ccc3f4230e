//! Shard units: the parts of a network whose weights may be whole on a rank only while they run.

/// The shard units of a network, in the order in which a forward pass uses them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardUnits {
    /// The prefixes of the names of each unit's parameters.
    prefixes: Vec<Vec<String>>,
}

impl ShardUnits {
    /// Units by the prefixes of their parameters' names.
    pub(crate) fn new(prefixes: impl IntoIterator<Item = Vec<String>>) -> Self {
        Self { prefixes: prefixes.into_iter().collect() }
    }

    /// The number of units.
    pub fn len(&self) -> usize {
        self.prefixes.len()
    }

    /// Whether the network has none.
    pub fn is_empty(&self) -> bool {
        self.prefixes.is_empty()
    }

    /// The unit of a parameter; `None` if it is in none.
    pub fn unit_of(&self, parameter: &str) -> Option<usize> {
        self.prefixes.iter().position(|unit| unit.iter().any(|prefix| parameter.starts_with(prefix)))
    }
}

/// What happens around the passes of a shard unit.
pub trait ShardHooks: Send + Sync {
    /// The forward pass of a unit comes next.
    ///
    /// # Errors
    /// If its weights cannot be had. The forward pass fails.
    fn pre_forward(&self, unit: usize) -> Result<(), tidemill_torch::Error>;

    /// The backward pass of a unit comes next.
    ///
    /// # Errors
    /// If its weights cannot be had. The backward pass fails.
    fn pre_backward(&self, unit: usize) -> Result<(), tidemill_torch::Error>;
}
