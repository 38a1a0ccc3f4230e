//! Node types and rates that Tidemill brings. They are data with a date and a source, never fetched.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::config::{NodeType, Rates};
use crate::error::{Error, Result};

/// What Tidemill knows of machines.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Catalog {
    /// Node types by name.
    pub nodes: BTreeMap<String, NodeType>,
    /// Rates by the GPU's name.
    pub rates: BTreeMap<String, Rates>,
}

const TEXT: &str = include_str!("catalog.toml");

impl Catalog {
    /// Reads the catalog.
    ///
    /// # Errors
    /// If it is not valid, which a test excludes.
    pub fn read() -> Result<Self> {
        toml::from_str(TEXT).map_err(|error| Error::new("catalog.toml", error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PlanConfig;

    #[test]
    fn every_entry_is_valid_and_says_where_it_is_from() -> Result<()> {
        let Catalog { nodes, rates } = Catalog::read()?;
        assert!(
            nodes.values().map(|node| &node.source).chain(rates.values().map(|rates| &rates.source)).all(
                |source| source.contains("20"), // a year
            )
        );
        for (name, node) in &nodes {
            assert!(rates.contains_key(&node.gpu), "{name}: no rates of {}", node.gpu);
        }
        PlanConfig { nodes, rates, ..PlanConfig::default() }.validate()
    }
}
