//! Gets whole objects, however large. object_store gives a request and all that goes on with its body one time in which
//! it may be tried again, which a large object on a slow link outlasts: that is fetched by several requests.

use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{Error, GetOptions, GetResultPayload, ObjectStore, ObjectStoreExt, Result};

/// Requests for one object at a time.
const RANGES_IN_FLIGHT: usize = 4;

/// All bytes of an object. One request is enough up to `range` bytes; of a larger one it gives the first so many,
/// while others ask for as many each.
pub(crate) async fn get(store: &dyn ObjectStore, path: &Path, range: usize) -> Result<Bytes> {
    let first = store.get(path).await?;
    let is_file = matches!(first.payload, GetResultPayload::File(..));
    let size = first.meta.size as usize;
    // Without an entity tag, the ranges could be those of different objects.
    let Some(tag) = first.meta.e_tag.clone().filter(|_| !is_file && size > range) else {
        return first.bytes().await;
    };
    let mut bytes = vec![0; size];
    let (head, rest) = bytes.split_at_mut(range);
    let fetch = async |(start, room): (usize, &mut [u8])| {
        let wanted = start as u64..(start + room.len()) as u64;
        let options =
            GetOptions { range: Some(wanted.into()), if_match: Some(tag.clone()), ..GetOptions::default() };
        fill(room, store.get_opts(path, options).await?.into_stream()).await
    };
    let fetches = stream::iter((range..).step_by(range).zip(rest.chunks_mut(range))).map(fetch);
    let others = fetches.buffer_unordered(RANGES_IN_FLIGHT).try_collect::<()>();
    futures::future::try_join(fill(head, first.into_stream()), others).await?;
    Ok(bytes.into())
}

/// Fills `room` with the first bytes of a body.
async fn fill(mut room: &mut [u8], mut body: BoxStream<'static, Result<Bytes>>) -> Result<()> {
    while !room.is_empty() {
        let Some(piece) = body.try_next().await? else {
            let problem = format!("the last {} bytes of a range did not come", room.len());
            return Err(Error::Generic { store: "range", source: problem.into() });
        };
        let taken = piece.len().min(room.len());
        room[..taken].copy_from_slice(&piece[..taken]);
        room = &mut room[taken..];
    }
    Ok(())
}
