//! Gets a whole object of any size. object_store limits the time for a request together with all
//! its retries, including those for its body. A large object on a slow link takes longer than that,
//! so it is fetched with several range requests.

use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{Error, GetOptions, GetResultPayload, ObjectStore, ObjectStoreExt, Result};

/// Concurrent range requests for one object.
const CONCURRENT_RANGES: usize = 4;

/// Gets all bytes of an object. Up to `range_bytes` bytes take one request. For a larger object the
/// first request delivers the first `range_bytes` bytes, and further requests fetch as many bytes
/// each.
pub(crate) async fn get_whole_object(
    store: &dyn ObjectStore,
    path: &Path,
    range_bytes: usize,
) -> Result<Bytes> {
    let first = store.get(path).await?;
    let is_file = matches!(first.payload, GetResultPayload::File(..));
    let size = first.meta.size as usize;
    // Without an entity tag, the ranges could come from different versions of the object.
    let Some(tag) = first.meta.e_tag.clone().filter(|_| !is_file && size > range_bytes) else {
        return first.bytes().await;
    };
    let mut bytes = vec![0; size];
    let (head, rest) = bytes.split_at_mut(range_bytes);
    let fetch = async |(start, buffer): (usize, &mut [u8])| {
        let range = start as u64..(start + buffer.len()) as u64;
        let options =
            GetOptions { range: Some(range.into()), if_match: Some(tag.clone()), ..GetOptions::default() };
        fill_buffer(buffer, store.get_opts(path, options).await?.into_stream()).await
    };
    let ranges = (range_bytes..).step_by(range_bytes).zip(rest.chunks_mut(range_bytes));
    let others = stream::iter(ranges).map(fetch).buffer_unordered(CONCURRENT_RANGES).try_collect::<()>();
    futures::future::try_join(fill_buffer(head, first.into_stream()), others).await?;
    Ok(bytes.into())
}

/// Fills `buffer` with the first bytes of a body.
async fn fill_buffer(mut buffer: &mut [u8], mut body: BoxStream<'static, Result<Bytes>>) -> Result<()> {
    while !buffer.is_empty() {
        let Some(chunk) = body.try_next().await? else {
            let problem = format!("the last {} bytes of a range did not come", buffer.len());
            return Err(Error::Generic { store: "range", source: problem.into() });
        };
        let len = chunk.len().min(buffer.len());
        buffer[..len].copy_from_slice(&chunk[..len]);
        buffer = &mut buffer[len..];
    }
    Ok(())
}
