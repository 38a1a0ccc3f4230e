//! Random names and tokens.

use rand::TryRngCore;
use rand::rngs::OsRng;
use sha2::{Digest, Sha256};

/// 128 random bits of the operating system, as 32 hexadecimal digits.
pub fn random_key() -> String {
    hex::encode(random_bytes::<16>())
}

/// True or false, at random.
pub fn random_bool() -> bool {
    let [byte] = random_bytes();
    byte % 2 == 0
}

fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // Without random numbers a token could be guessed. The operating system has none only at its
    // start.
    while OsRng.try_fill_bytes(&mut bytes).is_err() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    bytes
}

/// The SHA-256 of a token: what the database keeps in its place.
pub fn hash_token(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}
