//! Failed logins, by the address that they come from.
//!
//! The first few cost nothing: people mistype. Each one after them doubles the time in which nothing from that address is
//! looked at, a right key included, or the wait would tell which one was right. A while without a failure, and an
//! address is forgotten. Behind a proxy that does not say who calls, all have its address and wait for each other.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::lock::lock;

/// How many failures cost nothing.
const FREE: u32 = 5;
/// The longest wait.
const LONGEST: Duration = Duration::from_secs(60);
/// How long after its last failure an address is forgotten.
const MEMORY: Duration = Duration::from_secs(15 * 60);
/// How many addresses are remembered. The one that failed longest ago makes room.
const ADDRESSES: usize = 4096;

/// Addresses from which logins failed.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    failed: Mutex<HashMap<IpAddr, Failures>>,
}

#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    last: Instant,
}

impl Failures {
    /// Returns how long after the last failure nothing is looked at.
    fn wait(self) -> Duration {
        match self.count.checked_sub(FREE + 1) {
            None => Duration::ZERO,
            Some(more) => Duration::from_secs(1 << more.min(10)).min(LONGEST),
        }
    }
}

impl Attempts {
    /// Returns how long an address has to wait before it may try again, if it has to.
    pub(crate) fn wait(&self, address: IpAddr, now: Instant) -> Option<Duration> {
        let failed = lock(&self.failed);
        let failures = failed.get(&network(address))?;
        let waited = now.saturating_duration_since(failures.last);
        failures
            .wait()
            .checked_sub(waited)
            .filter(|left| !left.is_zero())
    }

    /// Notes a failure.
    pub(crate) fn failed(&self, address: IpAddr, now: Instant) {
        let mut failed = lock(&self.failed);
        let network = network(address);
        if !failed.contains_key(&network) && failed.len() >= ADDRESSES {
            failed.retain(|_, it| now.saturating_duration_since(it.last) < MEMORY);
            if failed.len() >= ADDRESSES
                && let Some(oldest) = failed.iter().min_by_key(|(_, it)| it.last).map(|it| *it.0)
            {
                failed.remove(&oldest);
            }
        }
        let failures = failed.entry(network).or_insert(Failures {
            count: 0,
            last: now,
        });
        if now.saturating_duration_since(failures.last) >= MEMORY {
            failures.count = 0;
        }
        failures.count = failures.count.saturating_add(1);
        failures.last = now;
    }
}

/// Whoever has one address of IPv6 has all of its network.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !0 << 64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_few_failures_are_free_and_then_the_wait_doubles() {
        let attempts = Attempts::default();
        let (one, mut now) = (address("10.0.0.1"), Instant::now());
        let mut waits = Vec::new();
        for _ in 0..15 {
            attempts.failed(one, now);
            let wait = attempts.wait(one, now).unwrap_or_default();
            waits.push(wait.as_secs());
            now += wait;
            assert_eq!(attempts.wait(one, now), None, "after {wait:?}");
        }
        assert_eq!(waits, [0, 0, 0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60]);
        assert_eq!(attempts.wait(address("10.0.0.2"), now), None);
        now += MEMORY;
        attempts.failed(one, now);
        assert_eq!(attempts.wait(one, now), None, "it was forgotten");
    }

    #[test]
    fn a_network_of_addresses_is_one() {
        let (attempts, now) = (Attempts::default(), Instant::now());
        for number in 0..=FREE {
            attempts.failed(address(&format!("2001:db8::{number}")), now);
        }
        assert!(attempts.wait(address("2001:db8::ffff"), now).is_some());
        assert_eq!(attempts.wait(address("2001:db8:0:1::1"), now), None);
        for _ in 0..=FREE {
            attempts.failed(address("::ffff:10.0.0.1"), now);
        }
        assert!(attempts.wait(address("10.0.0.1"), now).is_some());
    }

    #[test]
    fn so_many_addresses_are_remembered() {
        let (attempts, start) = (Attempts::default(), Instant::now());
        for number in 0..ADDRESSES as u32 + 100 {
            let address = IpAddr::V4(number.into());
            attempts.failed(address, start + Duration::from_millis(number.into()));
        }
        let failed = lock(&attempts.failed);
        assert_eq!(failed.len(), ADDRESSES);
        assert!(!failed.contains_key(&address("0.0.0.0")), "the oldest went");
    }
}
