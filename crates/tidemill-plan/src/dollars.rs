//! Dollars for people.

/// Dollars with separators between thousands; cents only of small amounts.
pub fn dollars(amount: f64) -> String {
    if amount < 100.0 {
        return format!("${amount:.2}");
    }
    let digits = format!("{amount:.0}");
    let mut text = String::from("$");
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
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
