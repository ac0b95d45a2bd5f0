//! `tinkrs auth`: the key that this machine uses.

use anyhow::{Context as _, anyhow};
use serde::Serialize;
use serde_json::json;
use tinkrs::WhoAmI;
use tinkrs::auth::{
    CredentialPolicy, CredentialStore, KeyKind, StoredCredentials, StoredKey, resolve_from_env,
};
use tinkrs::server_url::HOSTED_CONSOLE;

use crate::context::Context;
use crate::hint::explain;
use crate::http::{describe_key, revoke_key};
use crate::human::{or_unknown, yes_no};
use crate::output::Hint;
use crate::table::{Table, printable};
use crate::{prompt, system};

/// Log in, log out, and see who you are
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Store an API key on this machine
    ///
    /// Asks for the key, checks it with the server and keeps it in ~/.tinker/credentials.json.
    Login,
    /// Remove the stored API key from this machine
    Logout,
    /// Check that there is a credential and that the server takes it
    Status,
    /// Show whom the credential belongs to
    Whoami,
    /// List the keys that are stored on this machine, without the keys themselves
    List,
}

pub(crate) async fn run(ctx: &Context, command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Login => login(ctx).await,
        Command::Logout => logout(ctx).await,
        Command::Status => status(ctx).await,
        Command::Whoami => whoami(ctx).await,
        Command::List => list(ctx),
    }
}

async fn login(ctx: &Context) -> anyhow::Result<()> {
    let store = CredentialStore::of_user()?;
    let mut stored = store.load()?;
    if let Some((_, key)) = stored.default_key() {
        return Err(
            anyhow!("already logged in with the key `{}`", printable(&key.name))
                .context(Hint("`tinkrs auth logout` first, to use another key")),
        );
    }
    ctx.note(format_args!(
        "Create an API Key: {}\n",
        new_key_url(&system::host().unwrap_or_default())
    ));
    let key = prompt::secret("API key: ").await?;
    if key.is_empty() {
        return Err(anyhow!("no key was given"));
    }
    let described = describe_key(&key)
        .await
        .context("could not validate the API key")
        .context(Hint("check that all of it was copied, and TINKER_BASE_URL"))?;
    let (user, organization) = (
        &described.details.user_details.email,
        &described.details.org_details.name,
    );
    let name = printable(&described.name);
    let account = format!("Logged in as {user} ({organization}) with the key `{name}`");
    let shown = json!({"email": user, "organization": organization, "key_id": described.key_id, "name": name});
    let mut record = StoredKey::manual(key, described.name);
    record.note = Some(described.note);
    record.details = Some(described.details);
    stored.insert_default(described.key_id.to_string(), record);
    store.save(&stored)?;
    ctx.done(&shown, printable(&account))
}

async fn logout(ctx: &Context) -> anyhow::Result<()> {
    let store = CredentialStore::of_user()?;
    let mut stored = store.load()?;
    let (id, key) = stored.remove_default().ok_or_else(|| {
        anyhow!("not logged in").context(Hint("a key in TINKER_API_KEY is not stored: unset it"))
    })?;
    let revoked = match key.kind {
        KeyKind::Generated => Some(revoke_key(&key.key).await),
        KeyKind::Manual => None,
    };
    store.save(&stored)?;
    let organization = organization(&key);
    let name = printable(&key.name);
    let shown = json!({"key_id": id, "name": name, "deleted": matches!(revoked, Some(Ok(())))});
    match revoked {
        Some(Ok(())) => ctx.done(
            &shown,
            format_args!("Logged out; the key `{name}` was deleted"),
        ),
        Some(Err(error)) => Err(error.context(format!(
            "logged out, but the key `{name}` (id {id}, {organization}) could not be deleted: \
             delete it at {HOSTED_CONSOLE}/keys"
        ))),
        None => ctx.done(
            &shown,
            format_args!(
                "Logged out. The key `{name}` ({organization}) is still active; to delete it: {HOSTED_CONSOLE}/keys"
            ),
        ),
    }
}

async fn status(ctx: &Context) -> anyhow::Result<()> {
    let found = resolve_from_env(None, CredentialPolicy::Any);
    let say = |text: String| {
        if ctx.is_json() {
            Ok(())
        } else {
            ctx.line(text)
        }
    };
    let available = found.is_ok();
    say(format!("Credentials available: {}", word(available)))?;
    let access = match found {
        Err(error) => {
            let headline = "there is no credential to use".to_owned();
            Err(explain(error.into(), headline))
        }
        Ok(_) => {
            let service = ctx.service();
            let action = "use the Tinker API with this credential";
            let access = ctx.ask(action, service.check_access()).await;
            say(format!("Tinker accessible: {}", word(access.is_ok())))?;
            access
        }
    };
    if ctx.is_json() {
        let shown =
            json!({"credentials_available": available, "tinker_accessible": access.is_ok()});
        ctx.done(&shown, "")?;
    }
    access
}

fn word(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

async fn whoami(ctx: &Context) -> anyhow::Result<()> {
    let service = ctx.service();
    let me: WhoAmI = ctx.ask("tell who you are", service.whoami()).await?;
    ctx.show(&me, || {
        let mut table = Table::properties();
        table.row(["Email", &or_unknown(me.email.as_deref())]);
        table.row(["User", &me.user_urn]);
        table.row(["Organization", &me.org_urn]);
        table
    })
}

#[derive(Debug, Serialize)]
struct ListedKey<'a> {
    key_id: &'a str,
    name: &'a str,
    kind: KeyKind,
    default: bool,
    email: Option<&'a str>,
    organization: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct ListedKeys<'a> {
    keys: Vec<ListedKey<'a>>,
}

fn list(ctx: &Context) -> anyhow::Result<()> {
    let stored = CredentialStore::of_user()?.load()?;
    let listed = listed(&stored);
    ctx.show(&listed, || {
        let title = if listed.keys.is_empty() {
            "No keys are stored on this machine"
        } else {
            "Stored keys"
        };
        let mut table = Table::new(["Key ID", "Name", "Email", "Organization", "Default"]);
        for key in &listed.keys {
            table.row([
                key.key_id,
                key.name,
                key.email.unwrap_or("N/A"),
                key.organization.unwrap_or("N/A"),
                yes_no(key.default),
            ]);
        }
        table.title(title)
    })
}

fn listed(stored: &StoredCredentials) -> ListedKeys<'_> {
    let default = stored.default_key().map(|(id, _)| id);
    let keys = stored.keys().iter().map(|(id, key)| ListedKey {
        key_id: id,
        name: &key.name,
        kind: key.kind,
        default: default == Some(id),
        email: key
            .details
            .as_ref()
            .map(|of| of.user_details.email.as_str()),
        organization: key.details.as_ref().map(|of| of.org_details.name.as_str()),
    });
    ListedKeys {
        keys: keys.collect(),
    }
}

fn organization(key: &StoredKey) -> String {
    let details = key.details.as_ref();
    printable(details.map_or("unknown organization", |of| &of.org_details.name))
}

/// Returns the page that makes a key named after this machine.
fn new_key_url(host: &str) -> String {
    let short = host.split('.').next().unwrap_or_default();
    let safe: String = short
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
        .collect();
    let name = if safe.is_empty() { "unknown" } else { &safe };
    format!(
        "{}/keys?new_key=true&key_name=tinker-cli-{name}",
        HOSTED_CONSOLE
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_new_key_is_named_after_the_short_host_name() {
        for (host, name) in [
            ("laptop.home.example", "laptop"),
            ("", "unknown"),
            ("a b", "ab"),
        ] {
            let url = new_key_url(host);
            assert!(
                url.ends_with(&format!("key_name=tinker-cli-{name}")),
                "{url}"
            );
        }
    }

    #[test]
    fn a_listing_of_keys_has_no_key_in_it() {
        let mut stored = StoredCredentials::default();
        stored.insert_default("7", StoredKey::manual("tml-hidden", "laptop"));
        let json = serde_json::to_string(&listed(&stored)).unwrap();
        assert!(
            json.contains("laptop") && !json.contains("hidden"),
            "{json}"
        );
    }
}
