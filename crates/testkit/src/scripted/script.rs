//! Telling the server to misbehave.
//!
//! A rule names the requests that it is about and what happens to them. Rules are asked in the
//! order in which they were made; the first that is about a request and not used up decides.

use super::reply::Reply;
use super::{Gate, Recorded, Shared};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tinkrs_types::protocol::FailedRequest;
use tinkrs_types::service::ErrorCategory;
use tokio::sync::watch;

type Condition = Box<dyn Fn(&Recorded) -> bool + Send>;

/// What happens to a request.
#[derive(Clone, Debug)]
pub(super) enum Effect {
    /// Another answer.
    Reply(Reply),
    /// The connection is reset instead of an answer.
    Reset,
    /// The connection ends after so many bytes of the answer's body.
    Truncate(usize),
    /// Nothing happens until the gate opens.
    Stall(Gate),
    /// Nothing happens for a while.
    Delay(Duration),
    /// The promised result is not there until the gate opens.
    HoldResult(Gate),
    /// The promised result is a failure.
    FailResult(FailedRequest),
}

/// When the effect happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// Before the body is read.
    Unread,
    /// Before the request is executed; a reply, a reset or a cut is all that happens.
    Read,
    /// After the request was executed, before it is answered.
    Executed,
}

struct Rule {
    endpoint: &'static str,
    conditions: Vec<Condition>,
    skip: usize,
    times: usize,
    moment: Moment,
    effect: Effect,
    seen: usize,
    hits: watch::Sender<usize>,
}

/// All rules of a server.
#[derive(Default)]
pub(super) struct Script {
    rules: Vec<Rule>,
}

impl Script {
    /// Returns what should happen to a request, of the effects that happen at this point.
    pub(super) fn pick(&mut self, request: &Recorded, unread: bool) -> Option<(Moment, Effect)> {
        let rules = self.rules.iter_mut();
        for rule in rules.filter(|rule| (rule.moment == Moment::Unread) == unread) {
            let about = rule.endpoint == request.endpoint || rule.endpoint == super::ANY;
            if !about || !rule.conditions.iter().all(|condition| condition(request)) {
                continue;
            }
            rule.seen += 1;
            let used = *rule.hits.borrow();
            if rule.seen > rule.skip && used < rule.times {
                rule.hits.send_replace(used + 1);
                return Some((rule.moment, rule.effect.clone()));
            }
        }
        None
    }
}

/// A rule in the making: which requests it is about.
///
/// It is about one request, the next one, unless told otherwise.
#[must_use = "a rule does nothing until it says what happens"]
pub struct On<'a> {
    shared: &'a Arc<Shared>,
    endpoint: &'static str,
    conditions: Vec<Condition>,
    skip: usize,
    times: usize,
    moment: Moment,
}

impl fmt::Debug for On<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("On")
            .field("endpoint", &self.endpoint)
            .field("skip", &self.skip)
            .field("times", &self.times)
            .field("moment", &self.moment)
            .finish_non_exhaustive()
    }
}

impl<'a> On<'a> {
    pub(super) fn new(shared: &'a Arc<Shared>, endpoint: &'static str) -> Self {
        Self {
            shared,
            endpoint,
            conditions: vec![],
            skip: 0,
            times: 1,
            moment: Moment::Read,
        }
    }

    /// Leaves the first `n - 1` such requests alone.
    pub fn nth(mut self, n: usize) -> Self {
        self.skip = n.saturating_sub(1);
        self
    }

    /// Is about so many requests in a row.
    pub fn times(mut self, times: usize) -> Self {
        self.times = times;
        self
    }

    /// Is about all such requests.
    pub fn always(self) -> Self {
        self.times(usize::MAX)
    }

    /// Is about polls for the results of this type only, such as `Sample`.
    pub fn for_request_type(self, name: &'static str) -> Self {
        self.when(move |request| request.header(tinkrs_wire::header::REQUEST_TYPE) == Some(name))
    }

    /// Is about requests with this credential only.
    pub fn from_key(self, key: &'static str) -> Self {
        self.when(move |request| request.key() == Some(key))
    }

    /// Is about the request with this sequence number only.
    pub fn seq(self, seq_id: i64) -> Self {
        self.when(move |request| request.seq_id() == Some(seq_id))
    }

    /// Is about requests that meet a condition only.
    pub fn when(mut self, condition: impl Fn(&Recorded) -> bool + Send + 'static) -> Self {
        self.conditions.push(Box::new(condition));
        self
    }

    /// Lets the request be executed first: what goes wrong is the answer.
    pub fn executed(mut self) -> Self {
        self.moment = Moment::Executed;
        self
    }

    /// Acts before the body is read; conditions see an empty body.
    pub fn unread(mut self) -> Self {
        self.moment = Moment::Unread;
        self
    }

    /// Answers with something else.
    pub fn reply(self, reply: Reply) -> Rules {
        self.add(Effect::Reply(reply))
    }

    /// Resets the connection.
    pub fn reset(self) -> Rules {
        self.add(Effect::Reset)
    }

    /// Executes the request and ends the connection after so many bytes of the answer's body.
    pub fn truncate(mut self, bytes: usize) -> Rules {
        self.moment = Moment::Executed;
        self.add(Effect::Truncate(bytes))
    }

    /// Does nothing until the gate opens, or the client gives up.
    pub fn stall_until(self, gate: &Gate) -> Rules {
        self.add(Effect::Stall(gate.clone()))
    }

    /// Does nothing for a while.
    pub fn delay(self, time: Duration) -> Rules {
        self.add(Effect::Delay(time))
    }

    /// Promises a result as usual, but has it only once the gate is open.
    pub fn hold_result(self, gate: &Gate) -> Rules {
        self.add(Effect::HoldResult(gate.clone()))
    }

    /// Promises a result as usual, but the result is a failure.
    pub fn fail_result(self, message: &str, category: ErrorCategory) -> Rules {
        self.add(Effect::FailResult(FailedRequest {
            error: message.to_owned(),
            category,
        }))
    }

    fn add(self, effect: Effect) -> Rules {
        let hits = watch::Sender::new(0);
        let rule = Rule {
            endpoint: self.endpoint,
            conditions: self.conditions,
            skip: self.skip,
            times: self.times,
            moment: self.moment,
            effect,
            seen: 0,
            hits: hits.clone(),
        };
        self.shared.script().rules.push(rule);
        Rules { hits }
    }
}

/// A rule that was made: tells how often it was used.
#[derive(Clone, Debug)]
pub struct Rules {
    hits: watch::Sender<usize>,
}

impl Rules {
    /// Returns how many requests the rule was applied to.
    pub fn hits(&self) -> usize {
        *self.hits.borrow()
    }

    /// Waits until the rule was applied to so many requests.
    pub async fn hit(&self, times: usize) {
        let mut hits = self.hits.subscribe();
        hits.wait_for(|hits| *hits >= times)
            .await
            .expect("`self` holds the sender");
    }
}
