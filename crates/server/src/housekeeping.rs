//! What happens by itself as time passes.

use std::time::Duration;

use tinkrs_types::SessionStatus;

use crate::Server;

/// How often the server looks around.
const TICK: Duration = Duration::from_secs(1);

impl Server {
    /// Gives up on what never came, ends sessions whose clients are gone, and drops what is not
    /// kept any longer, until the server is dropped.
    pub(crate) fn keep_house(&self) {
        let (server, settings) = (self.downgrade(), &self.shared().settings);
        let tick = TICK
            .min(settings.gap_patience)
            .max(Duration::from_millis(1));
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(tick).await;
                let Some(inner) = server.upgrade() else {
                    return;
                };
                Self::from(inner).clean();
            }
        });
    }

    fn clean(&self) {
        let settings = &self.shared().settings;
        self.abandon_gaps();
        self.reap_sessions();
        self.shared()
            .results
            .expire(settings.keep_fetched, settings.keep_unfetched);
        self.shared().checkpoints.expire();
    }

    fn reap_sessions(&self) {
        let patience = self.shared().settings.session_patience;
        let silent: Vec<_> = {
            let registry = self.registry();
            let sessions = registry.sessions.values();
            sessions
                .filter(|session| session.is_open() && session.seen.elapsed() >= patience)
                .map(|session| session.record.id.clone())
                .collect()
        };
        for id in silent {
            tracing::info!(session.id = %id, "ended a session whose client is gone");
            self.end_session(
                &id,
                SessionStatus::Cancelled {
                    detail: Some(format!(
                        "nothing was heard of the client for {} s",
                        patience.as_secs()
                    )),
                },
            );
        }
    }
}
