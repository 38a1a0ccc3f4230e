//! The pairs of ranks that the health check compares by exchanging data.

/// The two neighbours of `rank`: the ranks before and after it in a ring. On one node the ring has
/// all ranks. On several nodes it has the ranks with the same position on their nodes, so that the
/// network is between neighbours.
///
/// Pairs are in rounds: the i-th entry is this rank's partner in round i, if it has one. A rank has
/// at most one partner per round, and both ranks of a pair have it in the same round. In a ring of
/// two both have only each other.
pub fn find_ring_neighbours(rank: usize, size: usize, ranks_per_node: usize) -> Vec<Option<usize>> {
    let nodes = size / ranks_per_node;
    let (stride, ring) = if nodes > 1 { (ranks_per_node, nodes) } else { (1, size) };
    let (position, within) = (rank / stride, rank % stride);
    // Edge `e` of the ring connects positions `e` and `e + 1`. Edges that share a position are in
    // different rounds.
    let round_of = |edge: usize| match ring {
        2 => edge,
        _ if edge + 1 == ring && !ring.is_multiple_of(2) => 2,
        _ => edge % 2,
    };
    let before = (position + ring - 1) % ring;
    let edges = [(position, (position + 1) % ring), (before, before)];
    let rounds = if ring == 2 { 1 } else { 2 + ring % 2 };
    let partner = |round| edges.into_iter().find(|(edge, _)| round_of(*edge) == round);
    (0..rounds).map(|round| partner(round).map(|(_, other)| other * stride + within)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_meets_both_neighbours_in_the_same_rounds_as_they_do() {
        for (size, ranks_per_node) in [(2, 2), (3, 3), (4, 4), (7, 7), (8, 4), (6, 2), (12, 3), (5, 1)] {
            let neighbours = |rank| find_ring_neighbours(rank, size, ranks_per_node);
            for rank in 0..size {
                let mut found = Vec::new();
                for (round, other) in neighbours(rank).into_iter().enumerate() {
                    let Some(other) = other else { continue };
                    assert_eq!(neighbours(other)[round], Some(rank));
                    assert_eq!(other % ranks_per_node == rank % ranks_per_node, size > ranks_per_node);
                    found.push(other);
                }
                found.dedup();
                let ring = if size > ranks_per_node { size / ranks_per_node } else { size };
                assert_eq!(found.len(), if ring == 2 { 1 } else { 2 }, "{rank} of {size}: {found:?}");
            }
        }
    }
}
