//! The network's parameters, as a checkpoint lists them. The elements of all parameters are
//! numbered consecutively, in the order of this list and within each parameter in its element
//! order. State shards have ranges of these numbers.

use std::collections::HashMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::parallel::element_order::ElementOrder;

/// A parameter of the network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameter {
    /// The name.
    pub name: String,
    /// The shape.
    pub shape: Vec<i64>,
    /// The order in which its elements are numbered.
    #[serde(default, skip_serializing_if = "ElementOrder::is_row_major")]
    pub order: ElementOrder,
    /// Whether it is frozen, and has no moments.
    #[serde(default, rename = "frozen", skip_serializing_if = "std::ops::Not::not")]
    pub is_frozen: bool,
    /// The step after which its moments started. 0 unless it was frozen before.
    #[serde(default, rename = "moments_since", skip_serializing_if = "is_zero")]
    pub moment_start: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The numbers of each parameter's elements, by its name, and the number of all elements.
pub fn number_elements(parameters: &[Parameter]) -> (HashMap<&str, Range<usize>>, usize) {
    let mut end = 0;
    let numbered = parameters.iter().map(|parameter| {
        let numel: i64 = parameter.shape.iter().product();
        let start = end;
        end += usize::try_from(numel).unwrap_or(0);
        (parameter.name.as_str(), start..end)
    });
    (numbered.collect(), end)
}
