//! Byte-pair encoding of one word. The word's bytes are symbols. Of all neighbouring pairs that are
//! in the table of merges, the one learned first is merged first, the leftmost of equals. A heap
//! bounds the time of a long word by n log n.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rustc_hash::FxHashMap;

/// Rank of a merge (how early it was learned) and the id of its result.
type MergeResult = (u32, u32);

/// Index for "no neighbour".
const NONE: usize = usize::MAX;

/// The byte symbols and merges of a vocabulary.
pub struct Bpe {
    /// Id of each byte inside a word.
    inner_ids: [u32; 256],
    /// Id of each byte at the end of a word.
    last_ids: [u32; 256],
    merges: FxHashMap<(u32, u32), MergeResult>,
}

/// Buffers that are used again for the next word.
#[derive(Default)]
pub struct Workspace {
    symbols: Vec<Symbol>,
    candidates: BinaryHeap<Reverse<(u32, usize, u32)>>,
}

/// An element of the linked list of symbols of a word.
struct Symbol {
    id: u32,
    previous: usize,
    next: usize,
    is_merged: bool,
}

impl Bpe {
    /// Creates the encoding from the ids of bytes inside and at the end of a word, and the merges
    /// as (left, right, result) in the order in which they were learned.
    pub fn new(inner_ids: [u32; 256], last_ids: [u32; 256], merges: impl Iterator<Item = [u32; 3]>) -> Self {
        let merges = (0..).zip(merges).map(|(rank, [left, right, merged])| ((left, right), (rank, merged)));
        Self { inner_ids, last_ids, merges: merges.collect() }
    }

    /// Appends the ids of a word.
    pub fn encode(&self, word: &[u8], workspace: &mut Workspace, ids: &mut Vec<u32>) {
        let Some((&last, inner)) = word.split_last() else { return };
        let Workspace { symbols, candidates } = workspace;
        symbols.clear();
        let letters = inner.iter().map(|&byte| self.inner_ids[usize::from(byte)]);
        for (i, id) in letters.chain([self.last_ids[usize::from(last)]]).enumerate() {
            symbols.push(Symbol { id, previous: i.wrapping_sub(1), next: i + 1, is_merged: false });
        }
        symbols[inner.len()].next = NONE;

        candidates.clear();
        for left in 0..inner.len() {
            self.push_candidate(symbols, left, candidates);
        }
        while let Some(Reverse((rank, left, id))) = candidates.pop() {
            // A candidate is out of date if either side has been merged since.
            let right = symbols[left].next;
            if symbols[left].is_merged
                || right == NONE
                || self.find_merge(symbols, left, right) != Some((rank, id))
            {
                continue;
            }
            let next = symbols[right].next;
            symbols[right].is_merged = true;
            symbols[left].id = id;
            symbols[left].next = next;
            if next != NONE {
                symbols[next].previous = left;
                self.push_candidate(symbols, left, candidates);
            }
            let previous = symbols[left].previous;
            if previous != NONE {
                self.push_candidate(symbols, previous, candidates);
            }
        }
        ids.extend(symbols.iter().filter(|symbol| !symbol.is_merged).map(|symbol| symbol.id));
    }

    fn find_merge(&self, symbols: &[Symbol], left: usize, right: usize) -> Option<MergeResult> {
        self.merges.get(&(symbols[left].id, symbols[right].id)).copied()
    }

    /// Adds a symbol and its right neighbour, which it must have, to the candidates if they can be
    /// merged.
    fn push_candidate(
        &self,
        symbols: &[Symbol],
        left: usize,
        candidates: &mut BinaryHeap<Reverse<(u32, usize, u32)>>,
    ) {
        if let Some((rank, id)) = self.find_merge(symbols, left, symbols[left].next) {
            candidates.push(Reverse((rank, left, id)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Symbols are the bytes. A byte at the end of a word is 256 more, and merges are numbered from
    /// 512.
    fn encode(merges: &[[u32; 2]], word: &[u8]) -> Vec<u32> {
        let bytes: [u32; 256] = std::array::from_fn(|byte| byte as u32);
        let merges = merges.iter().zip(512..).map(|([left, right], id)| [*left, *right, id]);
        let mut ids = Vec::new();
        Bpe::new(bytes, bytes.map(|id| id + 256), merges).encode(word, &mut Workspace::default(), &mut ids);
        ids
    }

    #[test]
    fn earliest_merge_comes_first_then_the_leftmost() {
        let [a, b, b_end, a_end] = [97, 98, 98 + 256, 97 + 256];
        assert!(encode(&[], b"").is_empty());
        assert_eq!(encode(&[[a, a]], b"aaab"), [512, a, b_end]);
        assert_eq!(encode(&[[a, a]], b"aaaaa"), [512, 512, a_end]);
        assert_eq!(encode(&[[b, a_end], [a, b]], b"aba"), [a, 512]);
        assert_eq!(encode(&[[a, b], [b, a_end], [512, a_end]], b"aba"), [514]);
    }

    #[test]
    fn time_of_a_long_word_is_not_quadratic() {
        // A quadratic algorithm would not finish.
        let merges = [[97, 97], [512, 512], [513, 513]];
        assert_eq!(encode(&merges, &[97; 4_000_001]).len(), 500_001);
    }
}
