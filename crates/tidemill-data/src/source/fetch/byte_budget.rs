//! The byte budget of one reader: images hold their bytes in it while they are fetched or wait to
//! be returned.

use std::pin::pin;
use std::sync::Arc;

use futures::future::{Either, select};
use tidemill_io::http::MemoryGate;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// An image's share of the budget. Dropping it frees the bytes.
pub struct ByteGrant {
    budget: Arc<Semaphore>,
    held: Option<OwnedSemaphorePermit>,
    head_signal: oneshot::Receiver<()>,
    is_head: bool,
}

impl ByteGrant {
    /// A grant of no bytes, and the sender that tells it that its image is the first in the queue.
    pub fn new(budget: Arc<Semaphore>) -> (Self, oneshot::Sender<()>) {
        let (sender, head_signal) = oneshot::channel();
        (Self { budget, held: None, head_signal, is_head: false }, sender)
    }
}

impl MemoryGate for ByteGrant {
    /// The first in the queue never waits: the images behind it, which may hold the whole budget,
    /// wait for it.
    async fn wait_for(&mut self, bytes: u64) {
        let held = self.held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits) as u64;
        let missing = u32::try_from(bytes.saturating_sub(held)).unwrap_or(u32::MAX);
        if missing == 0 || self.is_head {
            return;
        }
        let more = pin!(self.budget.clone().acquire_many_owned(missing));
        match select(more, &mut self.head_signal).await {
            Either::Left((Ok(more), _)) => match &mut self.held {
                Some(held) => held.merge(more),
                None => self.held = Some(more),
            },
            _ => self.is_head = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn only_the_first_in_the_queue_exceeds_the_budget() {
        let budget = Arc::new(Semaphore::new(10));
        let [(mut a, sender), (mut b, _b), (mut c, _c)] = [(); 3].map(|()| ByteGrant::new(budget.clone()));
        let is_granted = |grant: &mut ByteGrant, bytes| grant.wait_for(bytes).now_or_never().is_some();
        assert!(
            is_granted(&mut b, 6) && is_granted(&mut c, 1) && is_granted(&mut c, 4) && is_granted(&mut c, 3)
        );
        assert!(!is_granted(&mut a, 5));
        sender.send(()).unwrap();
        assert!(is_granted(&mut a, 5) && is_granted(&mut a, 20));
        assert!(!is_granted(&mut c, 5));
        drop(b);
        assert!(is_granted(&mut c, 10) && !is_granted(&mut c, 11));
    }
}
