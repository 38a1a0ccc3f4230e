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
    /// Elements that the forward pass keeps.
    pub kept: i64,
    /// Elements that the backward pass computes again when the layer's turn comes (gradient checkpointing).
    pub recomputed: i64,
    /// Its parameters.
    pub parameters: i64,
}

/// The moments of the backward pass through `layers`, which are in the order of the forward pass: before each layer,
/// and the end. `outside` is kept by what comes after the last layer, and `transient` what a layer's backward pass
/// takes for a while.
pub(crate) fn list_moments(
    layers: &[LayerMemory],
    outside: i64,
    transient: i64,
    parameters: i64,
) -> Vec<Activations> {
    let (mut before, mut without_gradients) = (0, 0);
    let mut moments = Vec::with_capacity(layers.len() + 1);
    let moment = |elements: i64, gradients: i64| Activations {
        elements: (elements + transient).unsigned_abs(),
        gradients: gradients.unsigned_abs(),
    };
    let first = layers.first().copied().unwrap_or_default();
    // The first layer has freed a part when the last of its gradients is made.
    moments.push(moment(first.kept.max(first.recomputed), parameters));
    for (index, layer) in layers.iter().enumerate() {
        without_gradients += layer.parameters;
        // Nothing outside has a gradient when the last layer's turn comes.
        let is_last = index + 1 == layers.len();
        let (outside, gradients) = if is_last { (outside, 0) } else { (0, parameters - without_gradients) };
        before += layer.kept;
        moments.push(moment(before + layer.recomputed + outside, gradients));
    }
    moments
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The moments of three layers, of which the middle one has most of the parameters.
    fn list(kept: [i64; 3], recomputed: [i64; 3]) -> Vec<(u64, u64)> {
        let parameters = [5, 80, 10];
        let layer =
            |i: usize| LayerMemory { kept: kept[i], recomputed: recomputed[i], parameters: parameters[i] };
        let mut moments = list_moments(&[layer(0), layer(1), layer(2)], 7, 1000, 100);
        moments.sort_by_key(|moment| moment.gradients);
        moments.iter().map(|moment| (moment.elements - 1000, moment.gradients)).collect()
    }

    #[test]
    fn layers_free_what_they_kept_and_make_gradients() {
        // Before the last, the middle and the first layer, and at the end.
        assert_eq!(
            list([10, 100, 20], [0; 3]),
            [(10 + 100 + 20 + 7, 0), (10 + 100, 15), (10, 95), (10, 100)]
        );
    }

    #[test]
    fn with_checkpointing_one_layer_at_a_time_has_more_than_its_input() {
        assert_eq!(
            list([1, 2, 3], [10, 100, 20]),
            [(1 + 2 + 3 + 20 + 7, 0), (1 + 2 + 100, 15), (1 + 10, 95), (10, 100)]
        );
    }
}
