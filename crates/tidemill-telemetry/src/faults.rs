//! Which errors of a GPU end its use. Numbers and meanings are NVIDIA's ("XID Errors", r580).

/// Why a GPU must not be used any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuFault {
    /// What happened.
    pub message: String,
}

/// Xid errors after which a GPU gives wrong results or none, until it is reset or replaced.
const FATAL_XIDS: [(u32, &str); 8] = [
    (48, "a memory error that cannot be corrected"),
    (63, "a memory row that must be replaced: the GPU needs a reset"),
    (64, "a memory row that cannot be replaced"),
    (74, "an error of NVLink"),
    (79, "it has fallen off the bus"),
    (94, "a memory error that ended a process"),
    (95, "a memory error that was not contained"),
    (119, "its system processor does not answer"),
];

/// Uncorrected memory errors in a process's time that are too many.
const MAX_ECC_ERRORS: u64 = 0;

/// The fault in what was read of a GPU, if there is one. `ecc_before` are the uncorrected errors when
/// the process started.
pub fn find_fault(xid: u32, ecc_errors: u64, ecc_before: u64) -> Option<GpuFault> {
    if let Some((_, meaning)) = FATAL_XIDS.iter().find(|(number, _)| *number == xid) {
        return Some(GpuFault { message: format!("Xid {xid}: {meaning}") });
    }
    let errors = ecc_errors.saturating_sub(ecc_before);
    (errors > MAX_ECC_ERRORS)
        .then(|| GpuFault { message: format!("{errors} memory errors (ECC) that could not be corrected") })
}

#[cfg(test)]
mod tests {
    use super::find_fault;

    #[test]
    fn faults_are_told_from_errors_of_programs() {
        // 13 and 31 are errors of programs: an illegal instruction, an illegal address.
        for (xid, ecc, expected) in [
            (0, 5, None),
            (13, 5, None),
            (31, 5, None),
            (79, 5, Some("off the bus")),
            (0, 6, Some("1 memory")),
        ] {
            let message = find_fault(xid, ecc, 5).map(|fault| fault.message);
            match (message, expected) {
                (None, None) => (),
                (Some(message), Some(expected)) => assert!(message.contains(expected), "{message}"),
                other => panic!("{xid}: {other:?}"),
            }
        }
    }
}
