//! Which span something belongs to, in this process and in the headers between processes.

use std::fmt;
use std::future::Future;

tokio::task_local! {
    static CURRENT: TraceContext;
}

/// A span's place: its trace, its own id, and whether the trace is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    pub(crate) trace: u128,
    pub(crate) span: u64,
    pub(crate) sampled: bool,
}

impl TraceContext {
    /// Makes the place of a span below this one, or of the first one of a trace.
    pub(crate) fn below(parent: Option<Self>) -> Self {
        let (trace, sampled) = parent.map_or((0, true), |it| (it.trace, it.sampled));
        let trace = if trace == 0 {
            nonzero(|| fastrand::u128(..))
        } else {
            trace
        };
        let span = nonzero(|| u128::from(fastrand::u64(..))) as u64;
        Self {
            trace,
            span,
            sampled,
        }
    }

    /// Reads the value of a `traceparent` header; what is not one is as if there were none, as W3C has it.
    ///
    /// ```
    /// use tinkrs_otel::TraceContext;
    /// let value = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    /// assert_eq!(TraceContext::parse(value).unwrap().to_string(), value);
    /// assert_eq!(TraceContext::parse("00-0-0-01"), None);
    /// ```
    pub fn parse(value: &str) -> Option<Self> {
        let mut parts = value.trim().split('-');
        let (version, trace) = (parts.next()?, parts.next()?);
        let (span, flags) = (parts.next()?, parts.next()?);
        // Later versions may have more behind these; the first may not.
        let fits = version != "00" || parts.next().is_none();
        let version = number(version, 2)?;
        let trace = number(trace, 32)?;
        let span = u64::try_from(number(span, 16)?).ok()?;
        let sampled = number(flags, 2)? & 1 == 1;
        (fits && version != 0xff && trace != 0 && span != 0).then_some(Self {
            trace,
            span,
            sampled,
        })
    }
}

/// Reads lower-case hexadecimal digits, exactly so many.
fn number(text: &str, digits: usize) -> Option<u128> {
    let plain = text
        .bytes()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    (text.len() == digits && plain)
        .then(|| u128::from_str_radix(text, 16).ok())
        .flatten()
}

fn nonzero(mut draw: impl FnMut() -> u128) -> u128 {
    loop {
        let number = draw();
        if number != 0 {
            return number;
        }
    }
}

/// Writes the value of a `traceparent` header.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = u8::from(self.sampled);
        write!(f, "00-{:032x}-{:016x}-{flags:02x}", self.trace, self.span)
    }
}

/// Returns the span that the running task is in.
pub fn current() -> Option<TraceContext> {
    CURRENT.try_with(|context| *context).ok()
}

/// Runs a future in a span: what it starts is below that. `None` changes nothing.
///
/// A task that the future spawns has to be given the span again.
pub async fn in_scope<F: Future>(context: Option<TraceContext>, future: F) -> F::Output {
    match context {
        Some(context) => CURRENT.scope(context, future).await,
        None => future.await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_a_traceparent_is_not_taken() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert!(TraceContext::parse(good).is_some());
        assert!(TraceContext::parse(&format!("01{}-more", &good[2..])).is_some());
        for bad in [
            "",
            "00",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-€bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
        ] {
            assert_eq!(TraceContext::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_span_below_another_is_of_its_trace_and_a_first_one_of_a_new_one() {
        let first = TraceContext::below(None);
        let second = TraceContext::below(Some(first));
        assert_eq!((first.trace, true), (second.trace, second.sampled));
        assert_ne!(first.span, second.span);
        assert_ne!(TraceContext::below(None).trace, first.trace);
        let unrecorded = TraceContext {
            sampled: false,
            ..first
        };
        assert!(!TraceContext::below(Some(unrecorded)).sampled);
    }

    #[tokio::test]
    async fn a_scope_ends_with_its_future() {
        let span = TraceContext::below(None);
        assert_eq!(current(), None);
        in_scope(Some(span), async { assert_eq!(current(), Some(span)) }).await;
        assert_eq!(current(), None);
    }
}
