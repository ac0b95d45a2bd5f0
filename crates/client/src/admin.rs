//! What an administrator reads: the audit log, usage and storage.

use crate::connection::call::Call;
use crate::rest::RestClient;
use crate::{Error, ServiceClient, ServiceClientBuilder};
use std::borrow::Cow;
use tinkrs_types::{InvalidInput, ProjectId, Timestamp};
use tinkrs_wire::endpoint::{self, Endpoint};

/// A day of the calendar.
pub use jiff::civil::Date;
pub use tinkrs_types::admin::{
    AuditEntry, AuditEventType, AuditLog, BillingEvent, BillingEventInfo, BillingSession,
    BillingUsage, StorageUsage, StorageUsageRow,
};

const HOUR_SECONDS: i64 = 3_600;
const MAX_BILLING_DAYS: i64 = 14;
/// A day's audit log and two weeks' usage come as one response, however many users there are.
const MAX_REPORT_BYTES: usize = 256 << 20;

/// Reads what an administrator may read: the audit log, usage and storage.
#[derive(Clone, Debug)]
pub struct AdminClient {
    rest: RestClient,
}

fn large(endpoint: &'static Endpoint) -> Call {
    Call::new(endpoint).max_response_bytes(MAX_REPORT_BYTES)
}

impl AdminClient {
    pub(crate) fn new(service: ServiceClient) -> Self {
        Self {
            rest: RestClient::new(service),
        }
    }

    /// Makes a client with the settings of the environment.
    pub fn from_env() -> Self {
        Self::with_settings(ServiceClient::builder())
    }

    /// Makes a client with other settings. It shares its connection as
    /// [`RestClient::with_settings`] says.
    pub fn with_settings(settings: ServiceClientBuilder) -> Self {
        Self {
            rest: RestClient::with_settings(settings),
        }
    }

    /// Reads a day of the audit log; `None` means today (in UTC).
    ///
    /// # Errors
    /// If one is not an administrator (status 403), or the server cannot be asked.
    pub async fn get_audit_log(
        &self,
        events: AuditEventType,
        day: Option<Date>,
    ) -> Result<AuditLog, Error> {
        let day = day.map(|day| ("day", Cow::from(day.to_string())));
        let query = [("event_type", Cow::from(events.name()))]
            .into_iter()
            .chain(day);
        self.rest
            .json(large(&endpoint::GET_AUDIT_LOG).query(query))
            .await
    }

    /// Reads the usage by hour, from `starting_on` to before `ending_before`.
    ///
    /// # Errors
    /// If the times are not whole hours or more than 14 days apart, if one is not an
    /// administrator (status 403), or if the server cannot be asked.
    pub async fn get_billing_usage(
        &self,
        starting_on: Timestamp,
        ending_before: Timestamp,
    ) -> Result<BillingUsage, Error> {
        for (field, time) in [
            ("starting_on", starting_on),
            ("ending_before", ending_before),
        ] {
            if time.as_second() % HOUR_SECONDS != 0 || time.subsec_nanosecond() != 0 {
                return Err(InvalidInput::new(field, time, "a whole hour, in UTC").into());
            }
        }
        let seconds = ending_before.as_second() - starting_on.as_second();
        if !(1..=MAX_BILLING_DAYS * 24 * HOUR_SECONDS).contains(&seconds) {
            let allowed = "a time after `starting_on`, by at most 14 days";
            return Err(InvalidInput::new("ending_before", ending_before, allowed).into());
        }
        let query = [
            ("starting_on", Cow::from(starting_on.to_string())),
            ("ending_before", Cow::from(ending_before.to_string())),
        ];
        self.rest
            .json(large(&endpoint::GET_BILLING_USAGE).query(query))
            .await
    }

    /// Reads how much checkpoint storage is in use now, in one project or in all.
    ///
    /// # Errors
    /// If one is not an administrator (status 403), or the server cannot be asked.
    pub async fn get_current_checkpoint_storage_usage(
        &self,
        project: Option<&ProjectId>,
    ) -> Result<StorageUsage, Error> {
        let query = project.map(|project| ("project_id", Cow::from(project.as_str())));
        let call = Call::new(&endpoint::GET_CURRENT_CHECKPOINT_STORAGE_USAGE).query(query);
        self.rest.json(call).await
    }
}
