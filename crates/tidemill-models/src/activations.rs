//! How much memory a backward pass takes, moment by moment: it frees what the forward pass kept, and makes gradients.

/// What there is at a moment of a backward pass, which frees what the forward pass kept, and makes the weights'
/// gradients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activations {
    /// Elements of one sample's activations. Each takes the bytes of the network's arithmetic, 2 in bf16.
    pub elements: u64,
    /// Parameters that have their gradients.
    pub gradients: u64,
}

/// A layer whose backward pass needs memory, as [`list_moments`] takes it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LayerMemory {
    /// Elements of its input.
    pub input: i64,
    /// Elements that it keeps for the backward pass; with gradient checkpointing beside its input.
    pub kept: i64,
    /// Its parameters.
    pub parameters: i64,
}

/// The moments of the backward pass through `layers`, which are in the order of the forward pass: before each layer,
/// and the end. With gradient checkpointing a layer has only its input until its turn comes. `outside` is kept by
/// what comes after the last layer, and `transient` what a layer's backward pass takes for a while.
pub(crate) fn list_moments(
    layers: &[LayerMemory],
    outside: i64,
    transient: i64,
    parameters: i64,
    use_gradient_checkpointing: bool,
) -> Vec<Activations> {
    let (mut before, mut without_gradients) = (0, 0);
    let mut moments = Vec::with_capacity(layers.len() + 1);
    let moment = |elements: i64, gradients: i64| Activations {
        elements: (elements + transient).unsigned_abs(),
        gradients: gradients.unsigned_abs(),
    };
    let first = layers.first().copied().unwrap_or_default();
    moments.push(moment(first.kept, parameters));
    for (index, layer) in layers.iter().enumerate() {
        without_gradients += layer.parameters;
        // Nothing outside has a gradient when the last layer's turn comes.
        let is_last = index + 1 == layers.len();
        let (outside, gradients) = if is_last { (outside, 0) } else { (0, parameters - without_gradients) };
        let input = if use_gradient_checkpointing { layer.input } else { 0 };
        moments.push(moment(before + input + layer.kept + outside, gradients));
        before += if use_gradient_checkpointing { layer.input } else { layer.kept };
    }
    moments
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three layers, of which the middle one has most of the memory and of the parameters.
    const LAYERS: [LayerMemory; 3] = [
        LayerMemory { input: 1, kept: 10, parameters: 5 },
        LayerMemory { input: 2, kept: 100, parameters: 80 },
        LayerMemory { input: 3, kept: 20, parameters: 10 },
    ];

    fn list(use_gradient_checkpointing: bool) -> Vec<(u64, u64)> {
        let mut moments = list_moments(&LAYERS, 7, 1000, 100, use_gradient_checkpointing);
        moments.sort_by_key(|moment| moment.gradients);
        moments.iter().map(|moment| (moment.elements - 1000, moment.gradients)).collect()
    }

    #[test]
    fn layers_free_what_they_kept_and_make_gradients() {
        // Before the last, the middle and the first layer, and at the end.
        assert_eq!(list(false), [(10 + 100 + 20 + 7, 0), (10 + 100, 15), (10, 95), (10, 100)]);
    }

    #[test]
    fn with_checkpointing_one_layer_at_a_time_has_more_than_its_input() {
        assert_eq!(list(true), [(1 + 2 + 3 + 20 + 7, 0), (1 + 2 + 100, 15), (1 + 10, 95), (10, 100)]);
    }
}
