//! Which errors of a GPU end its use. Numbers and meanings are NVIDIA's ("XID Errors", r580).

/// Why a GPU must not be used any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuFault {
    /// What happened.
    pub message: String,
}

/// Xid errors after which a GPU gives wrong results or none, until it is reset or replaced. Errors that
/// the driver contains or repairs by itself (63, 94) are not among them.
const FATAL_XIDS: [(u32, &str); 5] = [
    (48, "a memory error that cannot be corrected"),
    (64, "a memory row that cannot be replaced"),
    (79, "it has fallen off the bus"),
    (95, "a memory error that was not contained"),
    (119, "its system processor does not answer"),
];

/// The fault in what was read of a GPU, if there is one. `ecc_errors` are the uncorrected memory
/// errors since the process started.
pub fn find_fault(xid: u32, ecc_errors: u64) -> Option<GpuFault> {
    if let Some((_, meaning)) = FATAL_XIDS.iter().find(|(number, _)| *number == xid) {
        return Some(GpuFault { message: format!("Xid {xid}: {meaning}") });
    }
    let message = || format!("{ecc_errors} new memory errors (ECC) that could not be corrected");
    (ecc_errors > 0).then(|| GpuFault { message: message() })
}

#[cfg(test)]
mod tests {
    use super::find_fault;

    #[test]
    fn faults_are_told_from_errors_of_programs() {
        // 13 and 31 are errors of programs: an illegal instruction, an illegal address.
        for (xid, ecc, expected) in [
            (0, 0, None),
            (13, 0, None),
            (31, 0, None),
            (94, 0, None),
            (79, 0, Some("off the bus")),
            (0, 1, Some("1 new")),
        ] {
            let message = find_fault(xid, ecc).map(|fault| fault.message);
            match (message, expected) {
                (None, None) => (),
                (Some(message), Some(expected)) => assert!(message.contains(expected), "{message}"),
                other => panic!("{xid}: {other:?}"),
            }
        }
    }
}
