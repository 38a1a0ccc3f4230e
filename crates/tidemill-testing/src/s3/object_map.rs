//! The S3 operations that Tidemill uses, on a map behind one lock. The lock makes a conditional put
//! atomic. (s3s-fs is not atomic: it looks for the file first and writes it later.)

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use bytes::Bytes;
use futures::TryStreamExt;
use s3s::dto::*;
use s3s::{S3, S3Error, S3Request, S3Response, S3Result, s3_error};
use twox_hash::XxHash3_128;

/// The maximum number of keys per page of a listing, like Amazon's.
const PAGE_KEYS: usize = 1000;

/// A stored object.
#[derive(Clone)]
struct StoredObject {
    bytes: Bytes,
    e_tag: ETag,
    modified: Timestamp,
}

impl StoredObject {
    fn new(bytes: Bytes) -> Self {
        let e_tag = ETag::Strong(format!("{:032x}", XxHash3_128::oneshot(&bytes)));
        Self { bytes, e_tag, modified: SystemTime::now().into() }
    }
}

/// Objects by key.
type Bucket = BTreeMap<String, StoredObject>;

#[derive(Default)]
struct State {
    buckets: HashMap<String, Bucket>,
    /// The parts of each upload, by number.
    uploads: HashMap<String, BTreeMap<i32, Bytes>>,
    started_uploads: usize,
    forbids_deletes: bool,
}

impl State {
    fn bucket(&mut self, name: &str) -> S3Result<&mut Bucket> {
        self.buckets
            .get_mut(name)
            .ok_or_else(|| s3_error!(NoSuchBucket, "The specified bucket does not exist"))
    }

    fn object(&mut self, bucket: &str, key: &str) -> S3Result<StoredObject> {
        self.bucket(bucket)?.get(key).cloned().ok_or_else(|| s3_error!(NoSuchKey))
    }

    /// Stores an object. With `If-None-Match: *` fails if the object exists.
    fn put(
        &mut self,
        bucket: &str,
        key: String,
        bytes: Bytes,
        if_none_match: Option<&ETagCondition>,
    ) -> S3Result<ETag> {
        let bucket = self.bucket(bucket)?;
        if if_none_match.is_some_and(ETagCondition::is_any) && bucket.contains_key(&key) {
            return Err(s3_error!(PreconditionFailed));
        }
        let object = StoredObject::new(bytes);
        let e_tag = object.e_tag.clone();
        bucket.insert(key, object);
        Ok(e_tag)
    }

    /// Deletes an object, which may be absent.
    fn delete(&mut self, bucket: &str, key: &str) -> S3Result<()> {
        if self.forbids_deletes {
            return Err(s3_error!(AccessDenied));
        }
        self.bucket(bucket)?.remove(key);
        Ok(())
    }
}

/// All buckets and their objects.
#[derive(Clone, Default)]
pub struct ObjectMap(Arc<Mutex<State>>);

impl ObjectMap {
    pub fn create_bucket(&self, name: &str) {
        self.state().buckets.entry(name.into()).or_default();
    }

    pub fn put(&self, bucket: &str, key: &str, bytes: Bytes) {
        self.state().put(bucket, key.into(), bytes, None).unwrap();
    }

    pub fn keys(&self, bucket: &str) -> Vec<String> {
        self.state().bucket(bucket).unwrap().keys().cloned().collect()
    }

    pub fn forbid_deletes(&self) {
        self.state().forbids_deletes = true;
    }

    pub fn open_uploads(&self) -> usize {
        self.state().uploads.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

/// Reads the whole body of a request.
async fn read_body(body: Option<StreamingBlob>) -> S3Result<Bytes> {
    let body = body.ok_or_else(|| s3_error!(IncompleteBody))?;
    let pieces: Vec<Bytes> =
        body.try_collect().await.map_err(|e| S3Error::with_source(s3s::S3ErrorCode::IncompleteBody, e))?;
    Ok(pieces.concat().into())
}

#[async_trait::async_trait]
impl S3 for ObjectMap {
    async fn get_object(&self, request: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        let input = request.input;
        let StoredObject { bytes, e_tag, modified } = self.state().object(&input.bucket, &input.key)?;
        if input.if_match.as_ref().and_then(ETagCondition::as_etag).is_some_and(|wanted| *wanted != e_tag) {
            return Err(s3_error!(PreconditionFailed));
        }
        let size = bytes.len();
        let (bytes, content_range) = match input.range {
            None => (bytes, None),
            Some(range) => {
                let range = range.check(size as u64)?;
                let content_range = format!("bytes {}-{}/{size}", range.start, range.end - 1);
                (bytes.slice(range.start as usize..range.end as usize), Some(content_range))
            }
        };
        Ok(S3Response::new(GetObjectOutput {
            content_length: Some(bytes.len() as i64),
            content_range,
            e_tag: Some(e_tag),
            last_modified: Some(modified),
            body: Some(StreamingBlob::wrap(futures::stream::iter([Ok::<_, std::io::Error>(bytes)]))),
            ..Default::default()
        }))
    }

    async fn head_object(
        &self,
        request: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        let object = self.state().object(&request.input.bucket, &request.input.key)?;
        Ok(S3Response::new(HeadObjectOutput {
            content_length: Some(object.bytes.len() as i64),
            e_tag: Some(object.e_tag),
            last_modified: Some(object.modified),
            ..Default::default()
        }))
    }

    async fn put_object(&self, request: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        let input = request.input;
        let bytes = read_body(input.body).await?;
        let e_tag = self.state().put(&input.bucket, input.key, bytes, input.if_none_match.as_ref())?;
        Ok(S3Response::new(PutObjectOutput { e_tag: Some(e_tag), ..Default::default() }))
    }

    async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let input = request.input;
        let prefix = input.prefix.unwrap_or_default();
        let after = input.continuation_token.or(input.start_after).unwrap_or_default();
        let mut state = self.state();
        let objects = state.bucket(&input.bucket)?.iter();
        let mut found: Vec<Object> = objects
            .filter(|(key, _)| key.starts_with(&prefix) && **key > after)
            .take(PAGE_KEYS + 1)
            .map(|(key, object)| Object {
                key: Some(key.clone()),
                size: Some(object.bytes.len() as i64),
                e_tag: Some(object.e_tag.clone()),
                last_modified: Some(object.modified.clone()),
                ..Default::default()
            })
            .collect();
        let has_more = found.len() > PAGE_KEYS;
        found.truncate(PAGE_KEYS);
        Ok(S3Response::new(ListObjectsV2Output {
            name: Some(input.bucket),
            prefix: Some(prefix),
            is_truncated: Some(has_more),
            next_continuation_token: found.last().filter(|_| has_more).and_then(|object| object.key.clone()),
            key_count: Some(found.len() as i32),
            contents: Some(found),
            ..Default::default()
        }))
    }

    async fn delete_object(
        &self,
        request: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        self.state().delete(&request.input.bucket, &request.input.key)?;
        Ok(S3Response::new(DeleteObjectOutput::default()))
    }

    async fn delete_objects(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        let mut state = self.state();
        let mut deleted = Vec::new();
        for object in request.input.delete.objects {
            state.delete(&request.input.bucket, &object.key)?;
            deleted.push(DeletedObject { key: Some(object.key), ..Default::default() });
        }
        Ok(S3Response::new(DeleteObjectsOutput { deleted: Some(deleted), ..Default::default() }))
    }

    async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        let CreateMultipartUploadInput { bucket, key, .. } = request.input;
        let mut state = self.state();
        state.bucket(&bucket)?;
        state.started_uploads += 1;
        let upload = format!("upload-{}", state.started_uploads);
        state.uploads.insert(upload.clone(), BTreeMap::new());
        Ok(S3Response::new(CreateMultipartUploadOutput {
            bucket: Some(bucket),
            key: Some(key),
            upload_id: Some(upload),
            ..Default::default()
        }))
    }

    async fn upload_part(
        &self,
        request: S3Request<UploadPartInput>,
    ) -> S3Result<S3Response<UploadPartOutput>> {
        let input = request.input;
        let bytes = read_body(input.body).await?;
        let e_tag = StoredObject::new(bytes.clone()).e_tag;
        let mut state = self.state();
        let parts = state.uploads.get_mut(&input.upload_id).ok_or_else(|| s3_error!(NoSuchUpload))?;
        parts.insert(input.part_number, bytes);
        Ok(S3Response::new(UploadPartOutput { e_tag: Some(e_tag), ..Default::default() }))
    }

    async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        let input = request.input;
        let mut state = self.state();
        let parts = state.uploads.remove(&input.upload_id).ok_or_else(|| s3_error!(NoSuchUpload))?;
        let requested = input.multipart_upload.and_then(|upload| upload.parts).unwrap_or_default();
        let bytes: Option<Vec<Bytes>> =
            requested.iter().map(|part| parts.get(&part.part_number?).cloned()).collect();
        let bytes = bytes.ok_or_else(|| s3_error!(InvalidPart))?.concat().into();
        let e_tag = state.put(&input.bucket, input.key.clone(), bytes, input.if_none_match.as_ref())?;
        Ok(S3Response::new(CompleteMultipartUploadOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            e_tag: Some(e_tag),
            ..Default::default()
        }))
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        self.state().uploads.remove(&request.input.upload_id);
        Ok(S3Response::new(AbortMultipartUploadOutput::default()))
    }
}
