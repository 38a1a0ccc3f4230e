//! Models on the Hugging Face Hub, `hf://user/name` or `hf://user/name@revision`, by the user's own
//! `huggingface_hub` (`python/tidemill/hub.py`): its cache, its token and its offline mode count.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::error::{Error, Result};
use crate::python::call_script;

const SCHEME: &str = "hf://";
const SCRIPT: &str = "hub.py";

/// The folders of this process's downloads: each verb opens its models several times.
static DOWNLOADED: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());

/// A repository of models.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repository {
    /// `user/name`.
    name: String,
    revision: Option<String>,
}

impl Repository {
    /// Parses a path; `None` if it is none of the Hub.
    ///
    /// # Errors
    /// If the name is not `user/name`.
    pub fn parse(path: &Path) -> Option<Result<Self>> {
        let text = path.to_str()?;
        let name = text.strip_prefix(SCHEME)?;
        let (name, revision) =
            name.split_once('@').map_or((name, None), |(name, r)| (name, Some(r.to_owned())));
        let parts: Vec<&str> = name.split('/').collect();
        Some(match parts.as_slice() {
            [user, model] if !user.is_empty() && !model.is_empty() => {
                Ok(Self { name: name.into(), revision })
            }
            _ => Err(Error::Arguments(format!(
                "{text}: a model of the Hub is hf://user/name or hf://user/name@revision"
            ))),
        })
    }

    /// Downloads the parts of a model folder, unless they are in the cache, and returns the folder.
    ///
    /// # Errors
    /// Those of `huggingface_hub`, or that it is not installed.
    pub fn download(&self) -> Result<PathBuf> {
        let key = format!("{}@{}", self.name, self.revision.as_deref().unwrap_or_default());
        // Other threads wait here for the same download.
        let mut downloaded = DOWNLOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(folder) = downloaded.get(&key) {
            return Ok(folder.clone());
        }
        let arguments = [self.name.as_str()].into_iter().chain(self.revision.as_deref());
        let folder = PathBuf::from(self.call("download", arguments)?);
        downloaded.insert(key, folder.clone());
        Ok(folder)
    }

    /// Uploads a folder into the repository, which is made if it does not exist. Returns its page.
    ///
    /// # Errors
    /// Those of `huggingface_hub`, or that it is not installed.
    pub fn upload(&self, folder: &Path) -> Result<String> {
        let arguments = [self.name.as_ref(), folder.as_os_str()];
        self.call("upload", arguments.into_iter().chain(self.revision.as_ref().map(AsRef::as_ref)))
    }

    fn call<A: AsRef<OsStr>>(
        &self,
        function: &str,
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<String> {
        call_script(SCRIPT, function, arguments).map_err(|error| match error {
            Error::Script(message) => Error::Script(format!("{SCHEME}{}: {message}", self.name)),
            error => error,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repositories_have_a_user_and_a_name() {
        let parse = |text: &str| Repository::parse(Path::new(text));
        let repository = |name: &str, revision: Option<&str>| Repository {
            name: name.into(),
            revision: revision.map(Into::into),
        };
        assert_eq!(parse("hf://a/b").unwrap().unwrap(), repository("a/b", None));
        assert_eq!(parse("hf://a/b@refs/pr/1").unwrap().unwrap(), repository("a/b", Some("refs/pr/1")));
        assert!(parse("models/sd2").is_none());
        for wrong in ["hf://b", "hf://a/b/c", "hf://a/", "hf://"] {
            assert!(parse(wrong).unwrap().is_err(), "{wrong}");
        }
    }
}
