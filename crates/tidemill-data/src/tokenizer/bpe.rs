//! Byte-pair encoding of one word: its bytes are symbols, and of all neighbouring pairs in the table of merges the
//! earliest learned is joined first, the leftmost of equals. A heap keeps the time of a long word within n log n.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rustc_hash::FxHashMap;

/// A pair that may be joined: how early it was learned, and the id of what it becomes.
type Merge = (u32, u32);

/// Stands for "no neighbour".
const NONE: usize = usize::MAX;

/// Symbols and merges of a vocabulary.
pub struct Bpe {
    /// Id of each byte inside a word.
    inner: [u32; 256],
    /// Id of each byte at the end of a word.
    last: [u32; 256],
    merges: FxHashMap<(u32, u32), Merge>,
}

/// Buffers that outlive a word.
#[derive(Default)]
pub struct Workspace {
    symbols: Vec<Symbol>,
    candidates: BinaryHeap<Reverse<(u32, usize, u32)>>,
}

/// A link of the list that a word is while it is being merged.
struct Symbol {
    id: u32,
    previous: usize,
    next: usize,
    joined: bool,
}

impl Bpe {
    /// From the ids of bytes inside and at the end of a word, and the merges as (left, right, joined) in the order
    /// in which they were learned.
    pub fn new(inner: [u32; 256], last: [u32; 256], merges: impl Iterator<Item = [u32; 3]>) -> Self {
        let merges = (0..).zip(merges).map(|(rank, [left, right, joined])| ((left, right), (rank, joined)));
        Self { inner, last, merges: merges.collect() }
    }

    /// Appends a word's ids.
    pub fn encode(&self, word: &[u8], workspace: &mut Workspace, ids: &mut Vec<u32>) {
        let Some((&last, inner)) = word.split_last() else { return };
        let Workspace { symbols, candidates } = workspace;
        symbols.clear();
        let letters = inner.iter().map(|&byte| self.inner[usize::from(byte)]);
        for (i, id) in letters.chain([self.last[usize::from(last)]]).enumerate() {
            symbols.push(Symbol { id, previous: i.wrapping_sub(1), next: i + 1, joined: false });
        }
        symbols[inner.len()].next = NONE;

        candidates.clear();
        for left in 0..inner.len() {
            self.propose(symbols, left, candidates);
        }
        while let Some(Reverse((rank, left, id))) = candidates.pop() {
            // A proposal is out of date if either side has become part of something longer.
            let right = symbols[left].next;
            if symbols[left].joined || right == NONE || self.merge(symbols, left, right) != Some((rank, id)) {
                continue;
            }
            let next = symbols[right].next;
            symbols[right].joined = true;
            symbols[left].id = id;
            symbols[left].next = next;
            if next != NONE {
                symbols[next].previous = left;
                self.propose(symbols, left, candidates);
            }
            let previous = symbols[left].previous;
            if previous != NONE {
                self.propose(symbols, previous, candidates);
            }
        }
        ids.extend(symbols.iter().filter(|symbol| !symbol.joined).map(|symbol| symbol.id));
    }

    fn merge(&self, symbols: &[Symbol], left: usize, right: usize) -> Option<Merge> {
        self.merges.get(&(symbols[left].id, symbols[right].id)).copied()
    }

    /// Puts a symbol and its right neighbour, which it must have, among the candidates if they can be joined.
    fn propose(
        &self,
        symbols: &[Symbol],
        left: usize,
        candidates: &mut BinaryHeap<Reverse<(u32, usize, u32)>>,
    ) {
        if let Some((rank, id)) = self.merge(symbols, left, symbols[left].next) {
            candidates.push(Reverse((rank, left, id)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Symbols are the bytes, a byte at the end of a word is 256 more; merges number on from 512.
    fn encode(merges: &[[u32; 2]], word: &[u8]) -> Vec<u32> {
        let bytes: [u32; 256] = std::array::from_fn(|byte| byte as u32);
        let merges = merges.iter().zip(512..).map(|([left, right], id)| [*left, *right, id]);
        let mut ids = Vec::new();
        Bpe::new(bytes, bytes.map(|id| id + 256), merges).encode(word, &mut Workspace::default(), &mut ids);
        ids
    }

    #[test]
    fn the_earliest_merge_goes_first_and_the_leftmost_of_equals() {
        let [a, b, b_end, a_end] = [97, 98, 98 + 256, 97 + 256];
        assert!(encode(&[], b"").is_empty());
        assert_eq!(encode(&[[a, a]], b"aaab"), [512, a, b_end]);
        assert_eq!(encode(&[[a, a]], b"aaaaa"), [512, 512, a_end]);
        assert_eq!(encode(&[[b, a_end], [a, b]], b"aba"), [a, 512]);
        assert_eq!(encode(&[[a, b], [b, a_end], [512, a_end]], b"aba"), [514]);
    }

    #[test]
    fn a_long_word_takes_no_quadratic_time() {
        // Ten million pairs would be looked at ten million times.
        let merges = [[97, 97], [512, 512], [513, 513]];
        assert_eq!(encode(&merges, &[97; 4_000_001]).len(), 500_001);
    }
}
