//! The few calls of the Hugging Face Hub that an upload takes.
//!
//! Small files go into the commit itself. The Hub says which ones are large; those are put into
//! its store first, each in one piece, and the commit has their digests.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};
use tinkrs::auth::Secret;
use tinkrs::external::{HttpClient, HttpRequest, HttpResponse};
use tinkrs::rest::download::Digest;
use tinkrs_wire::text::percent_encode;

use crate::http;
use crate::output::Hint;

/// How long the Hub may be silent.
const SILENCE: Duration = Duration::from_secs(60);
/// How much of a file the Hub looks at to decide how it is kept.
const SAMPLE_BYTES: u64 = 512;
const LFS: &str = "application/vnd.git-lfs+json";

/// The Hub, as one user.
#[derive(Debug)]
pub(super) struct Hub {
    http: HttpClient,
    endpoint: String,
    token: Secret,
}

/// Where an upload goes.
#[derive(Debug)]
pub(super) struct Commit<'a> {
    pub(super) repo: &'a str,
    pub(super) branch: &'a str,
    pub(super) message: &'a str,
    pub(super) create_pr: bool,
}

/// A file to upload.
#[derive(Debug)]
pub(super) struct LocalFile {
    /// Its path in the repository.
    pub(super) name: String,
    path: PathBuf,
    size_bytes: u64,
}

impl LocalFile {
    /// Lists the files of a folder and of the folders in it, by name.
    pub(super) fn all_in(folder: &Path) -> anyhow::Result<Vec<Self>> {
        let mut files = Vec::new();
        let mut folders = vec![(folder.to_owned(), String::new())];
        while let Some((folder, prefix)) = folders.pop() {
            for entry in std::fs::read_dir(&folder).context("could not list the files")? {
                let entry = entry.context("could not list the files")?;
                let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
                let found = entry.metadata().context("could not list the files")?;
                if found.is_dir() {
                    folders.push((entry.path(), format!("{name}/")));
                } else {
                    let (path, size_bytes) = (entry.path(), found.len());
                    files.push(Self {
                        name,
                        path,
                        size_bytes,
                    });
                }
            }
        }
        files.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(files)
    }

    fn sample(&self) -> anyhow::Result<String> {
        let mut bytes = Vec::new();
        let file = std::fs::File::open(&self.path);
        file.and_then(|file| file.take(SAMPLE_BYTES).read_to_end(&mut bytes))
            .with_context(|| format!("could not read {}", self.name))?;
        Ok(BASE64_STANDARD.encode(bytes))
    }

    fn sha256(&self) -> anyhow::Result<String> {
        let digest = Digest::sha256_of(&self.path);
        let digest = digest.with_context(|| format!("could not read {}", self.name))?;
        Ok(digest.as_str().to_owned())
    }
}

#[derive(Deserialize)]
struct Kept {
    files: Vec<KeptFile>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct KeptFile {
    path: String,
    upload_mode: String,
    #[serde(default)]
    should_ignore: bool,
}

#[derive(Deserialize)]
struct Batch {
    objects: Vec<BatchObject>,
}

#[derive(Deserialize)]
struct BatchObject {
    oid: String,
    /// Nothing if the Hub has the file already.
    actions: Option<BTreeMap<String, Action>>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Action {
    href: String,
    #[serde(default)]
    header: BTreeMap<String, Value>,
}

impl Hub {
    /// Finds the Hub and the user's token, where the Hub's own tool has them.
    pub(super) fn from_env() -> anyhow::Result<Self> {
        let hub = tinkrs::hub::Hub::from_env();
        let token = hub.token().cloned().ok_or_else(|| {
            anyhow!("no token for the Hugging Face Hub").context(Hint(
                "set HF_TOKEN to a token with write access, from the settings of your Hub account",
            ))
        })?;
        Ok(Self {
            http: HttpClient::new(SILENCE),
            endpoint: hub.endpoint().to_owned(),
            token,
        })
    }

    fn get(&self, path: &str) -> HttpRequest {
        let request = self.http.get(&format!("{}{path}", self.endpoint));
        request.bearer_token(&self.token)
    }

    fn post(&self, path: &str) -> HttpRequest {
        let request = self.http.post(&format!("{}{path}", self.endpoint));
        request.bearer_token(&self.token)
    }

    /// Returns the name of the token's user.
    pub(super) async fn user(&self) -> anyhow::Result<String> {
        #[derive(Deserialize)]
        struct Me {
            name: String,
        }
        let response = send(self.get("/api/whoami-v2")).await?;
        let me: Me = http::check_status(response).await?.json().await?;
        Ok(me.name)
    }

    /// Creates a repository. One that exists is left as it is.
    pub(super) async fn create_repository(&self, repo: &str, private: bool) -> anyhow::Result<()> {
        let (owner, name) = repo.split_once('/').unwrap_or(("", repo));
        let body = json!({"name": name, "organization": owner, "private": private});
        let request = self.post("/api/repos/create").json(&body);
        unless_exists(send(request).await?)
            .await
            .with_context(|| format!("could not create the repository {repo}"))
    }

    /// Creates a branch. One that exists is left as it is.
    pub(super) async fn create_branch(&self, repo: &str, branch: &str) -> anyhow::Result<()> {
        let path = format!("/api/models/{repo}/branch/{}", percent_encode(branch));
        let request = self.post(&path).json(&json!({}));
        unless_exists(send(request).await?)
            .await
            .with_context(|| format!("could not create the branch {branch} of {repo}"))
    }

    /// Reads a text of a repository, if it is there.
    pub(super) async fn read_text(
        &self,
        repo: &str,
        branch: &str,
        name: &str,
    ) -> anyhow::Result<Option<String>> {
        let path = format!("/{repo}/resolve/{}/{name}", percent_encode(branch));
        let response = send(self.get(&path)).await?;
        if response.status() == 404 {
            return Ok(None);
        }
        let read = async { anyhow::Ok(http::check_status(response).await?.text().await?) };
        let text = read
            .await
            .with_context(|| format!("could not read {name} of {repo}"))?;
        Ok(Some(text))
    }

    /// Uploads files as one commit.
    pub(super) async fn upload(&self, to: &Commit<'_>, files: &[LocalFile]) -> anyhow::Result<()> {
        let mut lines =
            vec![json!({"key": "header", "value": {"summary": to.message, "description": ""}})];
        let kept = self.ask_how(to, files).await?;
        for file in files {
            let how = kept.files.iter().find(|kept| kept.path == file.name);
            let how = how.ok_or_else(|| {
                anyhow!("the Hub's response has no upload mode for {}", file.name)
            })?;
            if how.should_ignore {
                continue;
            }
            let value = if how.upload_mode == "lfs" {
                let oid = file.sha256()?;
                self.store(to, file, &oid).await?;
                let size = file.size_bytes;
                json!({"key": "lfsFile", "value": {"path": file.name, "algo": "sha256", "oid": oid, "size": size}})
            } else {
                let bytes = tokio::fs::read(&file.path).await;
                let bytes = bytes.with_context(|| format!("could not read {}", file.name))?;
                let content = BASE64_STANDARD.encode(bytes);
                json!({"key": "file", "value": {"path": file.name, "encoding": "base64", "content": content}})
            };
            lines.push(value);
        }
        let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let request = self
            .post(&api_path(to, "commit"))
            .header("content-type", "application/x-ndjson")
            .body(body);
        http::check_status(send(request).await?).await.map(drop)
    }

    /// Asks which files are large.
    async fn ask_how(&self, to: &Commit<'_>, files: &[LocalFile]) -> anyhow::Result<Kept> {
        let mut described = Vec::new();
        for file in files {
            let (size, sample) = (file.size_bytes, file.sample()?);
            described.push(json!({"path": file.name, "size": size, "sample": sample}));
        }
        let request = self.post(&api_path(to, "preupload"));
        let response = send(request.json(&json!({"files": described}))).await?;
        let kept = http::check_status(response).await?.json().await;
        kept.context("could not parse the Hub's response")
    }

    /// Puts a large file into the Hub's store, if it is not there.
    async fn store(&self, to: &Commit<'_>, file: &LocalFile, oid: &str) -> anyhow::Result<()> {
        let object = json!({"oid": oid, "size": file.size_bytes});
        let body = json!({
            "operation": "upload", "transfers": ["basic"], "hash_algo": "sha256",
            "ref": {"name": to.branch}, "objects": [object],
        });
        let request = self
            .post(&format!("/{}.git/info/lfs/objects/batch", to.repo))
            .header("accept", LFS)
            .header("content-type", LFS)
            .body(body.to_string());
        let response = http::check_status(send(request).await?).await?;
        let batch: Batch = response
            .json()
            .await
            .context("could not parse the Hub's response")?;
        let found = batch.objects.into_iter().find(|object| object.oid == oid);
        let found = found
            .ok_or_else(|| anyhow!("the Hub's response has no upload link for {}", file.name))?;
        if let Some(error) = found.error {
            bail!("the Hub does not take {}: {error}", file.name);
        }
        let Some(actions) = found.actions else {
            return Ok(());
        };
        if let Some(upload) = actions.get("upload") {
            // The link is signed: it takes no token, and must not be shown.
            let mut request = self.http.put(&upload.href);
            for (name, value) in &upload.header {
                let value = value
                    .as_str()
                    .map_or_else(|| value.to_string(), str::to_owned);
                request = request.header(name, &value);
            }
            let response = send(request.file(&file.path)).await?;
            let stored = http::check_status(response).await;
            stored.with_context(|| format!("could not upload {}", file.name))?;
        }
        if let Some(verify) = actions.get("verify") {
            let request = self.http.post(&verify.href).bearer_token(&self.token);
            let response = send(request.json(&object)).await?;
            let verified = http::check_status(response).await;
            verified.with_context(|| format!("the Hub did not get all of {}", file.name))?;
        }
        Ok(())
    }
}

fn api_path(to: &Commit<'_>, operation: &str) -> String {
    let pull_request = if to.create_pr { "?create_pr=1" } else { "" };
    let branch = percent_encode(to.branch);
    format!("/api/models/{}/{operation}/{branch}{pull_request}", to.repo)
}

async fn send(request: HttpRequest) -> anyhow::Result<HttpResponse> {
    request.send().await.context("could not reach the Hub")
}

async fn unless_exists(response: HttpResponse) -> anyhow::Result<()> {
    if response.status() == 409 {
        return Ok(());
    }
    http::check_status(response).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_branch_stays_one_segment_of_the_url() {
        let commit = Commit {
            repo: "ada/mine",
            branch: "a/b?c",
            message: "",
            create_pr: true,
        };
        let path = api_path(&commit, "commit");
        assert_eq!(path, "/api/models/ada/mine/commit/a%2Fb%3Fc?create_pr=1");
    }
}
