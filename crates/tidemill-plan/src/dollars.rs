//! Numbers and dollars for people.

/// A number with separators between thousands.
pub fn with_commas(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| std::str::from_utf8(group).ok()).collect();
    groups.join(",")
}

/// Dollars with separators between thousands; cents only of small amounts.
pub fn dollars(amount: f64) -> String {
    if amount < 100.0 {
        return format!("${amount:.2}");
    }
    format!("${}", with_commas(amount.round() as u64))
}

#[cfg(test)]
mod tests {
    use super::dollars;

    #[test]
    fn dollars_have_separators() {
        for (amount, text) in
            [(0.126, "$0.13"), (99.5, "$99.50"), (163.84, "$164"), (18_192.4, "$18,192"), (1e6, "$1,000,000")]
        {
            assert_eq!(dollars(amount), text);
        }
    }
}
