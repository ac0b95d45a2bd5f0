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
use futures_util::stream;
use reqwest::{Method, RequestBuilder, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tinkrs::auth::Secret;
use tokio::io::AsyncReadExt;

use crate::hub_home::{self, escaped};
use crate::report::Hint;
use crate::server;

/// How long the Hub may be silent.
const SILENCE: Duration = Duration::from_secs(60);
/// How much of a file the Hub looks at to decide how it is kept.
const SAMPLE_BYTES: u64 = 512;
const PIECE_BYTES: usize = 1 << 20;
const LFS: &str = "application/vnd.git-lfs+json";

/// The Hub, as one user.
#[derive(Debug)]
pub(super) struct Hub {
    http: reqwest::Client,
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
        let mut digest = ring::digest::Context::new(&ring::digest::SHA256);
        let mut piece = vec![0; PIECE_BYTES];
        let mut read = || -> std::io::Result<()> {
            let mut file = std::fs::File::open(&self.path)?;
            loop {
                match file.read(&mut piece)? {
                    0 => return Ok(()),
                    count => digest.update(&piece[..count]),
                }
            }
        };
        read().with_context(|| format!("could not read {}", self.name))?;
        let bytes = digest.finish();
        Ok(bytes
            .as_ref()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect())
    }

    /// Returns the file as the body of a request, read while it is sent.
    async fn body(&self) -> anyhow::Result<reqwest::Body> {
        let file = tokio::fs::File::open(&self.path).await;
        let file = file.with_context(|| format!("could not read {}", self.name))?;
        let pieces = stream::try_unfold(file, |mut file| async move {
            let mut piece = vec![0; PIECE_BYTES];
            let count = file.read(&mut piece).await?;
            piece.truncate(count);
            Ok::<_, std::io::Error>((count > 0).then_some((piece, file)))
        });
        Ok(reqwest::Body::wrap_stream(pieces))
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
        let token = hub_home::token().ok_or_else(|| {
            anyhow!("no token for the Hugging Face Hub").context(Hint(
                "set HF_TOKEN to a token with write access, from the settings of your Hub account",
            ))
        })?;
        let endpoint = hub_home::endpoint();
        Ok(Self {
            http: server::http(&endpoint, SILENCE)?,
            endpoint,
            token,
        })
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self
            .http
            .request(method, format!("{}{path}", self.endpoint));
        request.bearer_auth(self.token.expose())
    }

    /// Returns the name of the token's user.
    pub(super) async fn user(&self) -> anyhow::Result<String> {
        #[derive(Deserialize)]
        struct Me {
            name: String,
        }
        let answer = send(self.request(Method::GET, "/api/whoami-v2")).await?;
        let me: Me = server::refusal(answer).await?.json().await?;
        Ok(me.name)
    }

    /// Creates a repository. One that exists is left as it is.
    pub(super) async fn create_repository(&self, repo: &str, private: bool) -> anyhow::Result<()> {
        let (owner, name) = repo.split_once('/').unwrap_or(("", repo));
        let body = json!({"name": name, "organization": owner, "private": private});
        let request = self.request(Method::POST, "/api/repos/create").json(&body);
        unless_exists(send(request).await?)
            .await
            .with_context(|| format!("could not create the repository {repo}"))
    }

    /// Creates a branch. One that exists is left as it is.
    pub(super) async fn create_branch(&self, repo: &str, branch: &str) -> anyhow::Result<()> {
        let path = format!("/api/models/{repo}/branch/{}", escaped(branch));
        let request = self.request(Method::POST, &path).json(&json!({}));
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
        let path = format!("/{repo}/resolve/{}/{name}", escaped(branch));
        let answer = send(self.request(Method::GET, &path)).await?;
        if answer.status() == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let read = async { anyhow::Ok(server::refusal(answer).await?.text().await?) };
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
            let how =
                how.ok_or_else(|| anyhow!("the Hub did not say how it keeps {}", file.name))?;
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
            .request(Method::POST, &api_path(to, "commit"))
            .header("content-type", "application/x-ndjson")
            .body(body);
        server::refusal(send(request).await?).await.map(drop)
    }

    /// Asks which files are large.
    async fn ask_how(&self, to: &Commit<'_>, files: &[LocalFile]) -> anyhow::Result<Kept> {
        let mut described = Vec::new();
        for file in files {
            let (size, sample) = (file.size_bytes, file.sample()?);
            described.push(json!({"path": file.name, "size": size, "sample": sample}));
        }
        let request = self.request(Method::POST, &api_path(to, "preupload"));
        let answer = send(request.json(&json!({"files": described}))).await?;
        let kept = server::refusal(answer).await?.json().await;
        kept.context("the Hub's answer is not one")
    }

    /// Puts a large file into the Hub's store, if it is not there.
    async fn store(&self, to: &Commit<'_>, file: &LocalFile, oid: &str) -> anyhow::Result<()> {
        let object = json!({"oid": oid, "size": file.size_bytes});
        let body = json!({
            "operation": "upload", "transfers": ["basic"], "hash_algo": "sha256",
            "ref": {"name": to.branch}, "objects": [object],
        });
        let request = self
            .request(
                Method::POST,
                &format!("/{}.git/info/lfs/objects/batch", to.repo),
            )
            .header("accept", LFS)
            .header("content-type", LFS)
            .body(body.to_string());
        let answer = server::refusal(send(request).await?).await?;
        let batch: Batch = answer.json().await.context("the Hub's answer is not one")?;
        let found = batch.objects.into_iter().find(|object| object.oid == oid);
        let found = found.ok_or_else(|| anyhow!("the Hub did not say where {} goes", file.name))?;
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
                request = request.header(name, value);
            }
            let request = request.header("content-length", file.size_bytes);
            let answer = send(request.body(file.body().await?)).await?;
            let stored = server::refusal(answer).await;
            stored.with_context(|| format!("could not upload {}", file.name))?;
        }
        if let Some(verify) = actions.get("verify") {
            let request = self
                .http
                .post(&verify.href)
                .bearer_auth(self.token.expose());
            let answer = send(request.json(&object)).await?;
            let verified = server::refusal(answer).await;
            verified.with_context(|| format!("the Hub did not get all of {}", file.name))?;
        }
        Ok(())
    }
}

fn api_path(to: &Commit<'_>, operation: &str) -> String {
    let pull_request = if to.create_pr { "?create_pr=1" } else { "" };
    let branch = escaped(to.branch);
    format!("/api/models/{}/{operation}/{branch}{pull_request}", to.repo)
}

async fn send(request: RequestBuilder) -> anyhow::Result<reqwest::Response> {
    let sent = request.send().await.map_err(reqwest::Error::without_url);
    sent.context("could not reach the Hub")
}

async fn unless_exists(answer: reqwest::Response) -> anyhow::Result<()> {
    match answer.status() {
        StatusCode::CONFLICT => Ok(()),
        _ => server::refusal(answer).await.map(drop),
    }
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
