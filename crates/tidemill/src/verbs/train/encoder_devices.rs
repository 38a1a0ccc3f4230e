//! Which devices encode for a rank during online training.

use tch::Device;

/// The devices that encode for a rank. GPUs on which nobody trains are split among the ranks; if
/// there are fewer than ranks, ranks share one. Without such GPUs, a rank encodes on its own
/// device.
///
/// `worker_slots` is the number of training workers that this machine can have. The first devices
/// belong to them, also to those that the supervisor leaves out, because a device that is left out
/// may be faulty.
pub fn choose_encoder_devices(devices: &[Device], local_rank: usize, worker_slots: usize) -> Vec<Device> {
    let spare = devices.get(worker_slots..).unwrap_or_default();
    match spare.len() {
        0 => vec![devices[local_rank % devices.len()]],
        few if few < worker_slots => vec![spare[local_rank % few]],
        _ => spare.iter().skip(local_rank).step_by(worker_slots).copied().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_encode_on_spare_gpus_if_there_are_any() {
        let gpus: Vec<Device> = (0..8).map(Device::Cuda).collect();
        let choose = |count: usize, rank, slots| -> Vec<usize> {
            let number = |device: &Device| if let Device::Cuda(n) = device { *n } else { usize::MAX };
            choose_encoder_devices(&gpus[..count], rank, slots).iter().map(number).collect()
        };
        assert_eq!((choose(8, 0, 1), choose(8, 1, 4)), ((1..8).collect(), vec![5]));
        assert_eq!((choose(8, 0, 3), choose(8, 1, 3), choose(8, 2, 3)), (vec![3, 6], vec![4, 7], vec![5]));
        assert_eq!((choose(1, 0, 1), choose(4, 3, 4), choose(1, 1, 2)), (vec![0], vec![3], vec![0]));
        // Ranks step together, so a rank that encodes on its own training device would slow down
        // all ranks.
        assert_eq!((choose(3, 0, 2), choose(3, 1, 2)), (vec![2], vec![2]));
        assert_eq!([0, 1, 2, 5].map(|rank| choose(8, rank, 6)), [[6], [7], [6], [7]]);
    }
}
