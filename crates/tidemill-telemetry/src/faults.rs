//! Which errors of a GPU end its use. Numbers and meanings are NVIDIA's ("XID Errors", r580).

/// Xid errors after which a GPU gives wrong results or none, until it is reset or replaced. Errors that
/// the driver contains or repairs by itself (63, 94) are not among them.
const FATAL_XIDS: [(u32, &str); 5] = [
    (48, "a memory error that cannot be corrected"),
    (64, "a memory row that cannot be replaced"),
    (79, "it has fallen off the bus"),
    (95, "a memory error that was not contained"),
    (119, "its system processor does not answer"),
];

/// Whether a GPU must not be used after this Xid error.
pub fn is_fatal(xid: u32) -> bool {
    FATAL_XIDS.iter().any(|(number, _)| *number == xid)
}

/// Why a GPU must not be used any more, if that is so. `ecc_errors` are the uncorrected memory errors
/// since the process started.
pub fn find_fault(xid: u32, ecc_errors: u64) -> Option<String> {
    if let Some((_, meaning)) = FATAL_XIDS.iter().find(|(number, _)| *number == xid) {
        return Some(format!("Xid {xid}: {meaning}"));
    }
    (ecc_errors > 0).then(|| format!("{ecc_errors} new memory errors (ECC) that could not be corrected"))
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
            let fault = find_fault(xid, ecc);
            let is_expected = match expected {
                Some(text) => fault.as_ref().is_some_and(|fault| fault.contains(text)),
                None => fault.is_none(),
            };
            assert!(is_expected, "{xid} {ecc}: {fault:?}");
        }
    }
}
