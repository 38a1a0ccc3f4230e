//! The bytes that images may have while they come or wait for their turn, shared by those of one reader.

use std::pin::pin;
use std::sync::Arc;

use futures::future::{Either, select};
use tidemill_io::http::Room;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// An image's part of the room, given back when dropped.
pub struct Place {
    room: Arc<Semaphore>,
    held: Option<OwnedSemaphorePermit>,
    turn: oneshot::Receiver<()>,
    is_first: bool,
}

impl Place {
    /// A place without any bytes yet. Whoever knows the line says when the image is the first in it.
    pub fn new(room: Arc<Semaphore>) -> (Self, oneshot::Sender<()>) {
        let (first, turn) = oneshot::channel();
        (Self { room, held: None, turn, is_first: false }, first)
    }
}

impl Room for Place {
    /// The first in line never waits: those behind it, which may have taken all the room, wait for it.
    async fn wait_for(&mut self, bytes: u64) {
        let held = self.held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits) as u64;
        let missing = u32::try_from(bytes.saturating_sub(held)).unwrap_or(u32::MAX);
        if missing == 0 || self.is_first {
            return;
        }
        let more = pin!(self.room.clone().acquire_many_owned(missing));
        match select(more, &mut self.turn).await {
            Either::Left((Ok(more), _)) => match &mut self.held {
                Some(held) => held.merge(more),
                None => self.held = Some(more),
            },
            _ => self.is_first = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn only_the_first_in_line_has_more_than_the_room() {
        let room = Arc::new(Semaphore::new(10));
        let [(mut a, first), (mut b, _b), (mut c, _c)] = [(); 3].map(|()| Place::new(room.clone()));
        let is_let = |place: &mut Place, bytes| place.wait_for(bytes).now_or_never().is_some();
        assert!(is_let(&mut b, 6) && is_let(&mut c, 1) && is_let(&mut c, 4) && is_let(&mut c, 3));
        assert!(!is_let(&mut a, 5));
        first.send(()).unwrap();
        assert!(is_let(&mut a, 5) && is_let(&mut a, 20));
        assert!(!is_let(&mut c, 5));
        drop(b);
        assert!(is_let(&mut c, 10) && !is_let(&mut c, 11));
    }
}
