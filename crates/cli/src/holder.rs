//! The process that holds a data folder, as another process finds it.
//!
//! What the folder says may be out of date, and the port may be another program's by now. So a process has to
//! prove that it is the one, before anything else is sent to it.

use std::path::Path;
use std::time::Duration;

use tinkrs::external::HttpClient;
use tinkrs_server::{ASK_INTERVAL, Holder};
use tinkrs_wire::endpoint::DATA_FOLDER;
use tinkrs_wire::op::data_folder::FolderProof;

/// How long a process on this machine may take to answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// After how many wrong or refused answers it is gone.
const GONE: u32 = 2;

/// What a process at a holder's address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Probe {
    /// The holder.
    Holder,
    /// Another program, or none.
    Stranger,
    /// Nobody answers in time: it may be stopped, or busy.
    Silent,
}

/// Finds the process that holds a folder, if it answers.
pub(crate) async fn find(folder: &Path) -> Option<Holder> {
    let holder = Holder::read(folder)?;
    (probe(&holder).await == Probe::Holder).then_some(holder)
}

/// Asks who is at a holder's address.
pub(crate) async fn probe(holder: &Holder) -> Probe {
    let nonce = format!("{:032x}", fastrand::u128(..));
    let url = format!("{}{}?nonce={nonce}", holder.url, DATA_FOLDER.path);
    let asked = async {
        let response = HttpClient::new(2 * TIMEOUT).get(&url).send().await.ok()?;
        let answer: FolderProof = response.json().await.ok()?;
        Some(answer.proof)
    };
    match tokio::time::timeout(TIMEOUT, asked).await {
        Err(_) => Probe::Silent,
        Ok(Some(proof)) if proof == holder.proof(&nonce) => Probe::Holder,
        Ok(_) => Probe::Stranger,
    }
}

/// Completes when the holder is gone.
pub(crate) async fn gone(holder: &Holder) {
    let mut failures = 0;
    while failures < GONE {
        tokio::time::sleep(ASK_INTERVAL).await;
        match probe(holder).await {
            Probe::Holder | Probe::Silent => failures = 0,
            Probe::Stranger => failures += 1,
        }
    }
}
