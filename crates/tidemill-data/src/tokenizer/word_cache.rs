//! A cache of the ids of recent words. Each word has one slot in a table of fixed size and replaces
//! what was there: a lookup is one comparison, and memory is bounded.

use twox_hash::XxHash3_64;

/// Number of slots. The frequent words of captions fit many times, and the table takes one
/// megabyte.
const SLOTS: usize = 1 << 14;
/// Longest word in bytes that a slot holds. Longer words are rare and are encoded each time.
const MAX_BYTES: usize = 23;
/// Most ids that a slot holds.
const MAX_IDS: usize = 9;

/// A direct-mapped cache of [`SLOTS`] x 64 bytes, allocated at the first write.
#[derive(Default)]
pub struct WordCache {
    slots: Vec<Slot>,
}

/// A word and its ids; empty if the word has no bytes.
#[derive(Clone, Copy)]
struct Slot {
    word: [u8; MAX_BYTES],
    bytes: u8,
    ids: [u32; MAX_IDS],
    count: u8,
}

impl Default for Slot {
    fn default() -> Self {
        Self { word: [0; MAX_BYTES], bytes: 0, ids: [0; MAX_IDS], count: 0 }
    }
}

impl Slot {
    /// Fills a slot with at most [`MAX_BYTES`] bytes and [`MAX_IDS`] ids.
    #[expect(clippy::cast_possible_truncation, reason = "both lengths are small")]
    fn new(word: &[u8], ids: &[u32]) -> Self {
        let mut slot = Self { bytes: word.len() as u8, count: ids.len() as u8, ..Self::default() };
        slot.word[..word.len()].copy_from_slice(word);
        slot.ids[..ids.len()].copy_from_slice(ids);
        slot
    }

    fn holds(&self, word: &[u8]) -> bool {
        usize::from(self.bytes) == word.len() && self.word[..word.len()] == *word
    }

    fn ids(&self) -> &[u32] {
        &self.ids[..usize::from(self.count)]
    }
}

impl WordCache {
    /// The ids of a word: from the cache, or else what `encode` appends to `scratch`, which is
    /// cleared before.
    pub fn get_or_insert<'a>(
        &'a mut self,
        word: &[u8],
        scratch: &'a mut Vec<u32>,
        encode: impl FnOnce(&mut Vec<u32>),
    ) -> &'a [u32] {
        scratch.clear();
        if word.len() > MAX_BYTES {
            encode(scratch);
            return scratch;
        }
        if self.slots.is_empty() {
            self.slots.resize(SLOTS, Slot::default());
        }
        #[expect(clippy::cast_possible_truncation, reason = "the low bits choose the place")]
        let index = XxHash3_64::oneshot(word) as usize % SLOTS;
        let slot = &mut self.slots[index];
        if slot.holds(word) {
            return slot.ids();
        }
        encode(scratch);
        if scratch.len() <= MAX_IDS {
            *slot = Slot::new(word, scratch);
        }
        scratch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_words_are_encoded_once() {
        let mut cache = WordCache::default();
        let mut calls = 0;
        let mut lookup = |word: &str| {
            let ids = cache
                .get_or_insert(word.as_bytes(), &mut Vec::new(), |ids| {
                    calls += 1;
                    ids.extend(word.bytes().map(u32::from));
                })
                .to_vec();
            assert_eq!(ids, word.bytes().map(u32::from).collect::<Vec<_>>());
            calls
        };
        assert_eq!([lookup("cat"), lookup("cat"), lookup("dog"), lookup("dog")], [1, 1, 2, 2]);
        // Too many ids, then too many bytes.
        assert_eq!([lookup("0123456789"), lookup("0123456789")], [3, 4]);
        assert_eq!([lookup(&"x".repeat(24)), lookup(&"x".repeat(24))], [5, 6]);
    }

    #[test]
    fn slot_is_one_cache_line() {
        assert_eq!(size_of::<Slot>(), 64);
    }
}
