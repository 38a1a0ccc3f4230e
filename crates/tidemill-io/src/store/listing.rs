//! Listings with retries.

use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};

use crate::store::limits::Limits;

/// Lists all objects below a folder.
pub(crate) async fn list_objects(
    store: &dyn ObjectStore,
    folder: &Path,
    limits: &Limits,
) -> object_store::Result<Vec<ObjectMeta>> {
    let mut retries = limits.start_retries();
    loop {
        match store.list(Some(folder)).try_collect().await {
            Ok(objects) => return Ok(objects),
            Err(error) => retries.wait_or_fail(error).await?,
        }
    }
}
