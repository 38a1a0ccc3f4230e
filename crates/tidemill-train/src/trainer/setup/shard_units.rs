//! Whether and how the weights of a network are sharded (`train.sharding = "full_shard"`).

use crate::Error;
use crate::config::{Sharding, TrainConfig};
use crate::train_spec::TrainSpec;

/// The prefixes of the parameters of each shard unit; empty if weights are whole on each rank.
///
/// # Errors
/// If the settings do not allow it, or the network has no units.
pub(super) fn shard_units(spec: &TrainSpec) -> Result<Vec<Vec<String>>, Error> {
    if spec.train.sharding != Sharding::FullShard || spec.world.size() == 1 {
        return Ok(Vec::new());
    }
    check_micro_batches(&spec.train, spec.world.size())?;
    let units = spec.denoiser.shard_units();
    if units.is_empty() {
        let problem = "\"full_shard\" gathers weights block by block, and the blocks of a PyTorch module are not known; \
                       set train.sharding to \"shard_grad_op\"";
        return Err(Error::config("train.sharding", problem));
    }
    Ok(units)
}

/// Ranks gather weights together in each micro-batch, so all must have as many.
fn check_micro_batches(train: &TrainConfig, ranks: usize) -> Result<(), Error> {
    for phase in 0..train.phase.len() {
        let (global, micro) = (train.phase_global_batch(phase), train.phase_micro_batch(phase));
        let [least, most] = [global / ranks, global.div_ceil(ranks)].map(|rows| rows.div_ceil(micro));
        if least != most {
            return Err(Error::config(
                "train.sharding",
                format!(
                    "\"full_shard\" needs as many micro-batches on each rank, but {global} rows on {ranks} ranks are {least} \
                     micro-batches of {micro} rows on some and {most} on others; set train.global_batch to a multiple of \
                     {ranks}"
                ),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PhaseConfig;

    #[test]
    fn ranks_with_other_numbers_of_micro_batches_are_refused() {
        let check = |global, micro, ranks| {
            let phase = vec![PhaseConfig::new(64)];
            let train =
                TrainConfig { global_batch: global, micro_batch: micro, phase, ..TrainConfig::default() };
            check_micro_batches(&train, ranks).map_err(|error| error.to_string())
        };
        for (global, micro, ranks) in [(8, 2, 2), (7, 3, 3), (7, 2, 2), (8, 8, 1), (3, 4, 3)] {
            assert_eq!(check(global, micro, ranks), Ok(()));
        }
        let error = check(7, 1, 3).unwrap_err();
        assert!(
            error.contains("7 rows on 3 ranks are 2 micro-batches of 1 rows on some and 3 on others"),
            "{error}"
        );
        // A rank without rows.
        assert!(check(2, 4, 3).unwrap_err().contains("are 0 micro-batches"));
    }
}
