use super::*;
use http::{HeaderMap, Uri};
use hyper::server::conn::{http1 as server1, http2 as server2};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

const LIMITS: ReadLimits = ReadLimits {
    silence: Duration::from_secs(60),
    max_bytes: 10,
};

/// A server at the other end of pipes, which answers when it is let.
struct Piped {
    http2: bool,
    opened: AtomicUsize,
    arrived: Arc<watch::Sender<usize>>,
    answers: Arc<Semaphore>,
    served: Mutex<JoinSet<()>>,
}

impl Piped {
    fn new(http2: bool, answers: usize) -> Self {
        Self {
            http2,
            opened: AtomicUsize::new(0),
            arrived: Arc::new(watch::Sender::new(0)),
            answers: Arc::new(Semaphore::new(answers)),
            served: Mutex::default(),
        }
    }
}

impl Connect for Piped {
    fn may_be_http2(&self) -> bool {
        self.http2
    }

    async fn open(&self) -> Result<Opened, BoxError> {
        self.opened.fetch_add(1, Ordering::AcqRel);
        let (near, far) = tokio::io::duplex(1 << 16);
        let (arrived, answers) = (Arc::clone(&self.arrived), Arc::clone(&self.answers));
        let service = service_fn(move |_| {
            let (arrived, answers) = (Arc::clone(&arrived), Arc::clone(&answers));
            async move {
                arrived.send_modify(|count| *count += 1);
                answers.acquire().await.unwrap().forget();
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"done"))))
            }
        });
        let far = TokioIo::new(far);
        let http2 = self.http2;
        self.served.lock().unwrap().spawn(async move {
            let _ = if http2 {
                let server = server2::Builder::new(TokioExecutor::new());
                server.serve_connection(far, service).await
            } else {
                let server = server1::Builder::new();
                server.serve_connection(far, service).await
            };
        });
        Ok(Opened {
            stream: Box::new(TokioIo::new(near)),
            http2,
        })
    }

    fn address(&self, uri: &mut Uri, _headers: &mut HeaderMap, _http2: bool) {
        *uri = Uri::from_static("http://piped/");
    }
}

fn request() -> Request<Body> {
    Request::new(Full::default())
}

async fn exchange(pool: &Pool<Piped>) -> Reply {
    pool.exchange(request(), LIMITS).await.unwrap()
}

#[tokio::test]
async fn one_request_after_another_uses_one_connection() {
    for http2 in [false, true] {
        let pool = Pool::new(Piped::new(http2, 3));
        for _ in 0..3 {
            assert_eq!(exchange(&pool).await.body, "done");
        }
        assert_eq!(pool.connector.opened.load(Ordering::Acquire), 1);
    }
}

#[tokio::test]
async fn a_connection_that_was_closed_meanwhile_costs_no_request() {
    for http2 in [false, true] {
        let pool = Pool::new(Piped::new(http2, 2));
        exchange(&pool).await;
        let mut served = std::mem::take(&mut *pool.connector.served.lock().unwrap());
        served.shutdown().await;
        exchange(&pool).await;
        assert_eq!(pool.connector.opened.load(Ordering::Acquire), 2);
    }
}

#[tokio::test]
async fn another_connection_is_opened_for_every_fifty_requests_and_later_closed() {
    let pool = Arc::new(Pool::new(Piped::new(true, 0)));
    let mut exchanges = JoinSet::new();
    for _ in 0..120 {
        let pool = Arc::clone(&pool);
        exchanges.spawn(async move { exchange(&pool).await });
    }
    let mut arrived = pool.connector.arrived.subscribe();
    arrived.wait_for(|count| *count == 120).await.unwrap();
    assert_eq!(pool.lock().shared.len(), 3);
    pool.connector.answers.add_permits(121);
    exchanges.join_all().await;

    tokio::time::pause();
    tokio::time::advance(IDLE_TIMEOUT).await;
    exchange(&pool).await;
    assert_eq!(pool.lock().shared.len(), 1, "a new one, for this request");
}

#[tokio::test]
async fn a_burst_of_resets_gives_up_the_connections_once() {
    let pool = Pool::new(Piped::new(false, 9));
    let first = exchange(&pool).await;
    pool.renew(first.generation);
    let second = exchange(&pool).await;
    pool.renew(first.generation);
    assert_eq!(exchange(&pool).await.generation, second.generation);
    assert_eq!(pool.connector.opened.load(Ordering::Acquire), 2);
}
