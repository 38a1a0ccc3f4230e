//! The table of connections: one per bucket and process, so that its requests share credentials and
//! open sockets.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use object_store::ObjectStore;

use crate::error::{Error, Result};
use crate::store::aws_profile::add_profile;
use crate::store::builder::build_store;
use crate::store::credentials::select_settings;
use crate::store::limits::Limits;
use crate::store::uri_root::split_root;

/// A store and the limits that it was opened with.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    pub store: Arc<dyn ObjectStore>,
    pub limits: Limits,
}

/// Connections by root, such as `s3://bucket/`.
static CONNECTIONS: Mutex<Option<HashMap<String, Connection>>> = Mutex::new(None);

/// Connects to the bucket of `uri` with these settings instead of the environment's. They have the
/// names of the environment variables. Everything in this process that opens a URI of the bucket
/// afterwards uses them.
///
/// # Errors
/// [`crate::Error::Uri`] if the scheme is unknown or the settings are invalid.
pub fn connect(uri: &str, settings: &[(&str, String)], limits: Limits) -> Result<()> {
    let (root, _) = split_root(uri)?;
    let settings: Vec<_> =
        settings.iter().map(|(name, value)| (name.to_lowercase(), value.clone())).collect();
    let store = build_store(&root, &settings, &limits)?;
    let mut connections = CONNECTIONS.lock().unwrap_or_else(PoisonError::into_inner);
    connections.get_or_insert_default().insert(root, Connection { store, limits });
    Ok(())
}

/// The connection to a bucket. If there is none yet, opens it with the environment's settings.
pub(crate) fn get_or_open_connection(root: &str) -> Result<Connection> {
    let mut connections = CONNECTIONS.lock().unwrap_or_else(PoisonError::into_inner);
    let connections = connections.get_or_insert_default();
    if let Some(connection) = connections.get(root) {
        return Ok(connection.clone());
    }
    let limits = Limits::default();
    let mut settings = select_settings(std::env::vars());
    if root.starts_with("s3") {
        settings = add_profile(settings, std::env::home_dir().as_deref())
            .map_err(|problem| Error::Uri { uri: root.into(), problem })?;
    }
    let connection = Connection { store: build_store(root, &settings, &limits)?, limits };
    connections.insert(root.to_owned(), connection.clone());
    Ok(connection)
}

/// The limits given to [`connect`] for a bucket or host, or the default ones.
pub(crate) fn limits_for_root(root: &str) -> Limits {
    let connections = CONNECTIONS.lock().unwrap_or_else(PoisonError::into_inner);
    let connection = connections.as_ref().and_then(|connections| connections.get(root));
    connection.map(|connection| connection.limits.clone()).unwrap_or_default()
}
