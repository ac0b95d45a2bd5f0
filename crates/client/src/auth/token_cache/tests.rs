use super::super::claims::tests::token;
use super::*;
use serde_json::json;
use std::collections::VecDeque;
use tokio::sync::Notify;
use tokio::time::{Instant, advance};

#[test]
fn the_time_left_decides() {
    let cases = [
        (Some(3_600), Freshness::Fresh),
        (Some(301), Freshness::Fresh),
        (Some(300), Freshness::RefreshSoon),
        (Some(61), Freshness::RefreshSoon),
        (Some(60), Freshness::RefreshNow),
        (Some(0), Freshness::RefreshNow),
        (Some(-5), Freshness::RefreshNow),
        (None, Freshness::RefreshNow),
    ];
    for (left, expected) in cases {
        let expiry = left.map(|left| START + left);
        assert_eq!(freshness(START, expiry), expected, "{left:?} s left");
    }
    assert_eq!(freshness(-1, Some(i64::MAX)), Freshness::Fresh);
}

#[test]
fn the_background_sleeps_until_five_minutes_before_the_end_but_a_minute_at_least() {
    let cases = [
        (Some(3_600), 3_300),
        (Some(400), 100),
        (Some(310), 60),
        (Some(-10), 60),
        (None, 60),
    ];
    for (left, expected) in cases {
        let nap = nap(START, left.map(|left| START + left));
        assert_eq!(nap, Duration::from_secs(expected), "{left:?} s left");
    }
}

const START: i64 = 1_700_000_000;

/// An exchange that answers from a script and counts its calls.
#[derive(Clone, Default)]
struct Exchange {
    answers: Arc<Mutex<VecDeque<Result<Secret, String>>>>,
    calls: Arc<AtomicU64>,
    called: Arc<Notify>,
    /// How long each exchange takes.
    delay: Duration,
}

impl Exchange {
    /// Answers with tokens that end this many seconds after [`START`]; `None` is a failure.
    fn answering<const N: usize>(ends: [Option<i64>; N]) -> Self {
        let answer = |end: Option<i64>| {
            end.map(|end| token(&json!({"exp": START + end})))
                .ok_or_else(|| "no network".to_owned())
        };
        Self {
            answers: Arc::new(Mutex::new(ends.into_iter().map(answer).collect())),
            ..Self::default()
        }
    }

    fn push(&self, answer: Result<Secret, String>) {
        self.answers.lock().unwrap().push_back(answer);
    }

    fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Makes a cache whose clock is tokio's, which the tests have paused.
    fn cache(&self) -> TokenCache<Failure> {
        let script = self.clone();
        let exchange = move || {
            let script = script.clone();
            async move {
                tokio::time::sleep(script.delay).await;
                script.calls.fetch_add(1, Ordering::Relaxed);
                script.called.notify_one();
                let answer = script.answers.lock().unwrap().pop_front();
                answer.expect("the script has an answer").map_err(Failure)
            }
        };
        let start = Instant::now();
        TokenCache::with_clock(exchange, move || START + start.elapsed().as_secs() as i64)
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Failure(String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<AuthError> for Failure {
    fn from(error: AuthError) -> Self {
        Self(error.to_string())
    }
}

async fn expiry(cache: &TokenCache<Failure>) -> Result<Option<i64>, Failure> {
    let token = cache.token().await?;
    assert_eq!(token.header().as_bytes(), token.secret().as_ref());
    Ok(token.expiry.map(|expiry| expiry - START))
}

/// Moves the clock without letting the background task run before the time has come.
async fn pass(seconds: u64) {
    advance(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn a_fresh_token_is_exchanged_once_for_all_requests() {
    let mut exchange = Exchange::answering([Some(3_600)]);
    exchange.delay = Duration::from_secs(1);
    let cache = exchange.cache();
    let requests: Vec<_> = (0..64)
        .map(|_| {
            let cache = cache.clone();
            tokio::spawn(async move { expiry(&cache).await })
        })
        .collect();
    for request in requests {
        assert_eq!(request.await.unwrap(), Ok(Some(3_600)));
    }
    assert_eq!(exchange.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_finds_a_minute_left_exchanges_first() {
    let exchange = Exchange::answering([Some(1_000), Some(2_000)]);
    let cache = exchange.cache();
    assert_eq!(expiry(&cache).await, Ok(Some(1_000)));
    cache.close(); // without the background task
    pass(939).await;
    assert_eq!(expiry(&cache).await, Ok(Some(1_000)), "61 s are left");
    pass(1).await;
    assert_eq!(expiry(&cache).await, Ok(Some(2_000)), "60 s were left");
    assert_eq!(exchange.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_background_exchanges_five_minutes_before_the_end() {
    let exchange = Exchange::answering([Some(1_000), Some(5_000), Some(9_000)]);
    let cache = exchange.cache();
    let start = Instant::now();
    assert_eq!(expiry(&cache).await, Ok(Some(1_000)));
    exchange.called.notified().await;
    exchange.called.notified().await;
    assert_eq!(start.elapsed().as_secs(), 700);
    exchange.called.notified().await;
    assert_eq!(start.elapsed().as_secs(), 4_700);
    assert_eq!(expiry(&cache).await, Ok(Some(9_000)));
}

#[tokio::test(start_paused = true)]
async fn a_failed_background_exchange_is_tried_again_after_a_minute() {
    let exchange = Exchange::answering([Some(1_000), None, None, Some(5_000)]);
    let cache = exchange.cache();
    let start = Instant::now();
    assert_eq!(expiry(&cache).await, Ok(Some(1_000)));
    for expected in [0, 700, 760, 820] {
        exchange.called.notified().await;
        assert_eq!(start.elapsed().as_secs(), expected);
    }
    assert_eq!(expiry(&cache).await, Ok(Some(5_000)));
}

#[tokio::test(start_paused = true)]
async fn the_older_token_is_used_if_the_exchange_fails() {
    let exchange = Exchange::answering([Some(100), None, Some(9_000)]);
    let cache = exchange.cache();
    assert_eq!(expiry(&cache).await, Ok(Some(100)));
    cache.close();
    pass(50).await;
    assert_eq!(expiry(&cache).await, Ok(Some(100)), "the exchange failed");
    assert_eq!(expiry(&cache).await, Ok(Some(9_000)));
}

#[tokio::test(start_paused = true)]
async fn requests_that_wait_for_a_failing_exchange_do_not_repeat_it() {
    let mut exchange = Exchange::answering([Some(10), None]);
    exchange.delay = Duration::from_secs(1);
    let cache = exchange.cache();
    assert_eq!(expiry(&cache).await, Ok(Some(10)));
    cache.close();
    let requests: Vec<_> = (0..64)
        .map(|_| {
            let cache = cache.clone();
            tokio::spawn(async move { expiry(&cache).await })
        })
        .collect();
    for request in requests {
        assert_eq!(request.await.unwrap(), Ok(Some(10)));
    }
    assert_eq!(exchange.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_first_exchange_that_fails_returns_its_own_error() {
    let exchange = Exchange::answering([None, Some(1_000)]);
    let cache = exchange.cache();
    assert_eq!(expiry(&cache).await, Err(Failure("no network".to_owned())));
    assert_eq!(expiry(&cache).await, Ok(Some(1_000)), "the next one may do");
}

#[tokio::test(start_paused = true)]
async fn a_token_without_an_end_is_exchanged_for_every_request() {
    let exchange = Exchange::default();
    for text in ["opaque", "eyJ.???.x", "another"] {
        exchange.push(Ok(Secret::from(text)));
    }
    let cache = exchange.cache();
    for expected in ["opaque", "eyJ.???.x", "another"] {
        let token = cache.token().await.unwrap();
        assert_eq!(token.secret().expose(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_that_no_header_can_carry_is_a_failed_exchange() {
    let exchange = Exchange::answering([Some(10)]);
    exchange.push(Ok(Secret::from("eyJ\nhost: elsewhere")));
    let cache = exchange.cache();
    assert_eq!(expiry(&cache).await, Ok(Some(10)));
    assert_eq!(expiry(&cache).await, Ok(Some(10)), "the older one stays");
    assert_eq!(exchange.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn closing_or_dropping_the_cache_ends_the_background_task() {
    for close in [true, false] {
        let exchange = Exchange::answering([Some(1_000)]);
        let cache = exchange.cache();
        assert_eq!(expiry(&cache).await, Ok(Some(1_000)));
        if close {
            cache.close();
        } else {
            drop(cache);
        }
        pass(10_000).await;
        tokio::task::yield_now().await;
        assert_eq!(exchange.calls(), 1, "closed: {close}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_given_up_during_an_exchange_leaves_the_cache_usable() {
    let mut exchange = Exchange::answering([Some(1_000)]);
    exchange.delay = Duration::from_secs(5);
    let cache = exchange.cache();
    let given_up = tokio::time::timeout(Duration::from_secs(1), cache.token()).await;
    assert!(given_up.is_err());
    assert_eq!(expiry(&cache).await, Ok(Some(1_000)));
}

#[tokio::test(start_paused = true)]
async fn the_cache_prints_no_token() {
    let exchange = Exchange::answering([Some(1_000)]);
    let cache = exchange.cache();
    cache.token().await.unwrap();
    assert_eq!(format!("{cache:?}"), "TokenCache { .. }");
}
