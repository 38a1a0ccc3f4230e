//! The order of the stream, without reading any data: on random datasets, mixes and worlds, at full
//! scale, and against the statistics of ideal shuffles.

mod batches;
mod random_datasets;
mod rank_shares;
mod scale;
mod shuffle;
