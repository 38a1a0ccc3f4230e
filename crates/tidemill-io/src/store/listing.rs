//! Listings with retries.

use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};

use crate::store::limits::Limits;

/// The names of the objects and of the folders right in a folder.
pub(crate) async fn list_names(
    store: &dyn ObjectStore,
    folder: &Path,
    limits: &Limits,
) -> object_store::Result<Vec<String>> {
    let mut retries = limits.start_retries();
    let listed = loop {
        match store.list_with_delimiter(Some(folder)).await {
            Ok(listed) => break listed,
            Err(error) => retries.wait_or_fail(error).await?,
        }
    };
    let objects = listed.objects.iter().map(|meta| &meta.location);
    Ok(objects.chain(&listed.common_prefixes).filter_map(|path| path.filename().map(str::to_owned)).collect())
}

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
