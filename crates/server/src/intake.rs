//! Large bodies: passes, samples, uploaded losses.
//!
//! Reading, decompressing and decoding them takes memory and time that others need, so both are given out:
//!
//! - half of the budget for uploads is for bodies as they come. One that announces its length waits in line
//!   until all of it fits, so that nobody holds a part of it and waits for the rest. One that comes slower
//!   than [`PACE`] while others wait has to leave;
//! - the other half is for decoding, which takes place on a few threads of their own, in turns. What a body is
//!   going to take is estimated from its counts before any value of it is built.
//!
//! Small bodies need neither: heartbeats and polls pass by, however many passes are waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::{FromRequest, Request};
use axum::http::header;
use bytes::Bytes;
use http_body_util::BodyExt;
use tinkrs_wire::{compress, header as names};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::Server;
use crate::error::ApiError;
use crate::extract::{self, header_text};
use crate::memory::{Budget, MemoryKind, Reservation, Size};

/// The largest body that is read, as sent.
pub(crate) const BODY_BYTES: usize = 64 << 20;
/// The largest body after decompression.
const PLAIN_BYTES: usize = 256 << 20;
/// Bodies up to this size are decoded where they are read: that takes no longer than handing them over.
pub(crate) const SMALL: usize = 64 << 10;
/// The room that a body gets whose length is not announced.
const UNANNOUNCED: usize = 8 << 20;
/// How slow a body may come while others wait for its room, in bytes a second.
const PACE: u64 = 32 << 10;
/// How long any body has before its pace matters.
const GRACE: Duration = Duration::from_secs(5);

/// The room and the turns that large bodies wait for.
#[derive(Debug)]
pub(crate) struct Intake {
    memory: Budget,
    /// In KiB.
    room: Arc<Semaphore>,
    room_kib: usize,
    /// How many wait for room.
    waiting: AtomicUsize,
    turns: Arc<Semaphore>,
    /// What one body may take while it is decoded.
    turn_bytes: u64,
}

/// Room for a body, or a turn to decode one. It is given back when this is dropped: the memory first, because
/// whoever gets the permit next counts on it.
#[derive(Debug)]
struct Room {
    _memory: Reservation,
    _permit: OwnedSemaphorePermit,
}

/// What a request has to hold until its body is stored or not needed any longer.
#[derive(Debug, Default)]
#[must_use = "the memory of a body is counted until this is dropped"]
pub(crate) struct Held {
    _room: Option<Room>,
    _turn: Option<Room>,
}

impl Intake {
    pub(crate) fn new(memory: Budget) -> Self {
        let half = memory.plan().part_of(MemoryKind::Uploads) / 2;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let turns = (cores / 2).max(1);
        let room_kib = usize::try_from(half / 1024).unwrap_or(usize::MAX);
        let room_kib = room_kib.min(Semaphore::MAX_PERMITS);
        Self {
            memory,
            room: Arc::new(Semaphore::new(room_kib)),
            room_kib,
            waiting: AtomicUsize::new(0),
            turns: Arc::new(Semaphore::new(turns)),
            turn_bytes: half / turns as u64,
        }
    }

    /// Waits in line for room for this many bytes.
    async fn room(&self, bytes: usize) -> Result<Room, ApiError> {
        let kib = bytes.div_ceil(1024);
        if kib > self.room_kib {
            return Err(ApiError::too_large(format!(
                "the body has {}, and the server has set {} aside for all bodies: `--memory` changes that",
                Size(bytes as u64),
                Size(self.room_kib as u64 * 1024),
            )));
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let waits = Waits(&self.waiting);
        let kib = u32::try_from(kib).unwrap_or(u32::MAX);
        let permit = Arc::clone(&self.room).acquire_many_owned(kib).await;
        drop(waits);
        let permit = permit.map_err(|_| ApiError::unavailable("the server is stopping"))?;
        self.account(bytes as u64, permit)
    }

    /// Notes memory in the budget. It is there, because room and turns are no more than the budget has.
    fn account(&self, bytes: u64, permit: OwnedSemaphorePermit) -> Result<Room, ApiError> {
        let reserved = self.memory.reserve(MemoryKind::Uploads, bytes);
        let memory = reserved.map_err(|refusal| ApiError::busy(refusal.to_string()))?;
        Ok(Room {
            _memory: memory,
            _permit: permit,
        })
    }

    /// Reads a body to its end.
    async fn read(
        &self,
        mut body: Body,
        length: Option<usize>,
    ) -> Result<(Bytes, Option<Room>), ApiError> {
        if length.is_some_and(|length| length > BODY_BYTES) {
            return Err(extract::too_large(BODY_BYTES));
        }
        let expected = length.unwrap_or(UNANNOUNCED.min(self.room_kib * 1024));
        let room = if expected > SMALL {
            Some(self.room(expected).await?)
        } else {
            None
        };
        let mut bytes = Vec::with_capacity(length.unwrap_or_default());
        let (start, mut forgiven) = (Instant::now(), Duration::ZERO);
        loop {
            let pace = Duration::from_secs(bytes.len() as u64 / PACE);
            let late = start + GRACE + pace + forgiven;
            let Ok(frame) = tokio::time::timeout_at(late, body.frame()).await else {
                if room.is_some() && self.waiting.load(Ordering::Relaxed) > 0 {
                    return Err(ApiError::too_slow(
                        "the body comes slowly, and others wait for the memory that it holds: try again later",
                    ));
                }
                forgiven += Duration::from_secs(1);
                continue;
            };
            let Some(frame) = frame else { break };
            let frame = frame.map_err(|error| extract::unreadable(&error))?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            if bytes.len() + data.len() > expected {
                // One that announces its length has no more than that.
                return Err(ApiError::too_large(format!(
                    "a body of more than {} has to announce its length: `Content-Length` is missing",
                    Size(expected as u64)
                )));
            }
            bytes.extend_from_slice(&data);
        }
        Ok((bytes.into(), room))
    }

    /// Waits for a turn to decode a body.
    async fn turn(&self) -> Result<Room, ApiError> {
        let permit = Arc::clone(&self.turns).acquire_owned().await;
        let permit = permit.map_err(|_| ApiError::unavailable("the server is stopping"))?;
        self.account(self.turn_bytes, permit)
    }
}

/// Counts somebody who waits.
struct Waits<'a>(&'a AtomicUsize);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A body that may be large, as it was sent.
#[derive(Debug)]
pub(crate) struct Upload {
    bytes: Bytes,
    /// Whether it is a protobuf message, and not JSON.
    pub(crate) is_message: bool,
    is_compressed: bool,
    room: Option<Room>,
}

impl FromRequest<Server> for Upload {
    type Rejection = ApiError;

    async fn from_request(request: Request, server: &Server) -> Result<Self, ApiError> {
        let is_compressed = match header_text(&request, header::CONTENT_ENCODING).as_deref() {
            None | Some("identity" | "") => false,
            Some("zstd") => true,
            Some(other) => {
                return Err(ApiError::bad_request(format!(
                    "`Content-Encoding`: found {other}, expected zstd or none"
                )));
            }
        };
        let content_type = header_text(&request, header::CONTENT_TYPE).unwrap_or_default();
        let is_message = content_type.starts_with(names::PROTOBUF);
        let length = request.body().size_hint().exact();
        let length = length.map(|length| usize::try_from(length).unwrap_or(usize::MAX));
        let intake = &server.shared().intake;
        let (bytes, room) = intake.read(request.into_body(), length).await?;
        Ok(Self {
            bytes,
            is_message,
            is_compressed,
            room,
        })
    }
}

impl Upload {
    /// Whether it is decoded at once: small, and small after decompression, too.
    fn is_small(&self) -> bool {
        if self.is_compressed {
            compress::announced_bytes(&self.bytes).is_some_and(|bytes| bytes <= SMALL as u64)
        } else {
            self.bytes.len() <= SMALL
        }
    }

    /// Returns the body without its compression.
    fn plain(&self, limit: usize) -> Result<Bytes, ApiError> {
        if self.is_compressed {
            Ok(compress::decompress(&self.bytes, limit)?)
        } else {
            Ok(self.bytes.clone())
        }
    }

    /// Decodes the body where that holds up nobody, if the memory that it is estimated to take is there. That is
    /// counted until the second value is dropped.
    pub(crate) async fn decode<T: Send + 'static>(
        self,
        server: &Server,
        estimate: fn(&[u8]) -> u64,
        work: impl FnOnce(Bytes) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<(T, Held), ApiError> {
        if self.is_small() {
            return Ok((work(self.plain(SMALL)?)?, Held::default()));
        }
        let intake = &server.shared().intake;
        let (turn, limit) = (intake.turn().await?, intake.turn_bytes);
        let decoding = tokio::task::spawn_blocking(move || {
            let largest = PLAIN_BYTES.min(usize::try_from(limit).unwrap_or(usize::MAX));
            let plain = self.plain(largest)?;
            let unpacked = if self.is_compressed {
                plain.len() as u64
            } else {
                0
            };
            let decoded = estimate(&plain);
            if unpacked + decoded > limit {
                return Err(ApiError::too_large(format!(
                    "the body would take {} of memory, and the server has set {} aside for decoding one: \
                     `--memory` changes that",
                    Size(unpacked + decoded),
                    Size(limit)
                )));
            }
            let decoded = work(plain)?;
            // What was unpacked lives until it is stored, and so does the turn.
            let held = Held {
                _room: self.room,
                _turn: self.is_compressed.then_some(turn),
            };
            Ok((decoded, held))
        });
        let decoded = decoding.await;
        decoded.map_err(|_| ApiError::unavailable("the body could not be decoded"))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Plan;

    /// Half of the budget for uploads is 1 MiB.
    fn intake() -> Arc<Intake> {
        let mut plan = Plan::new(1 << 30, 0, 1).unwrap();
        plan.uploads = 2 << 20;
        Arc::new(Intake::new(Budget::new(plan)))
    }

    /// A body of `parts` times 100 KB, one every `pause`.
    fn body(parts: usize, pause: Duration) -> (Body, Option<usize>) {
        let (sender, receiver) = tokio::sync::mpsc::channel::<Result<Bytes, std::io::Error>>(1);
        tokio::spawn(async move {
            for _ in 0..parts {
                tokio::time::sleep(pause).await;
                let _ = sender.send(Ok(vec![b' '; 100_000].into())).await;
            }
        });
        let parts_of_body = Parts(receiver);
        (Body::from_stream(parts_of_body), Some(parts * 100_000))
    }

    struct Parts(tokio::sync::mpsc::Receiver<Result<Bytes, std::io::Error>>);

    impl futures_core::Stream for Parts {
        type Item = Result<Bytes, std::io::Error>;

        fn poll_next(
            mut self: std::pin::Pin<&mut Self>,
            cx: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Self::Item>> {
            self.0.poll_recv(cx)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_wait_in_line_and_what_never_fits_is_refused_with_the_numbers() {
        let intake = intake();
        let refused = intake.room(2 << 20).await.unwrap_err();
        for part in ["2.0 MiB", "1.0 MiB", "--memory"] {
            assert!(refused.detail().contains(part), "{}", refused.detail());
        }
        let (large, length) = body(9, Duration::ZERO);
        let (bytes, first) = intake.read(large, length).await.unwrap();
        assert_eq!(bytes.len(), 900_000);
        let waiting = tokio::spawn({
            let intake = Arc::clone(&intake);
            async move {
                let (body, length) = body(9, Duration::ZERO);
                intake
                    .read(body, length)
                    .await
                    .map(|(bytes, _)| bytes.len())
            }
        });
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!waiting.is_finished());
        // Small ones pass by.
        let small = intake.read(Body::from("{}"), Some(2)).await.unwrap();
        assert!(small.1.is_none());
        drop(first);
        assert_eq!(waiting.await.unwrap().unwrap(), 900_000);
        assert!(intake.memory.usage().contains(&("uploads", 0)));
    }

    #[tokio::test]
    async fn turns_follow_each_other_without_a_gap_in_the_budget() {
        let intake = intake();
        let full = intake.room(1 << 20).await.unwrap();
        let taking = (0..1000).map(|_| {
            let intake = Arc::clone(&intake);
            tokio::spawn(async move { intake.turn().await.map(drop) })
        });
        for turn in taking.collect::<Vec<_>>() {
            turn.await.unwrap().unwrap();
        }
        drop(full);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_body_may_take_its_time_unless_others_wait_for_its_room() {
        let intake = intake();
        let slow = || {
            let intake = Arc::clone(&intake);
            tokio::spawn(async move {
                let (body, length) = body(6, Duration::from_secs(20));
                intake
                    .read(body, length)
                    .await
                    .map(|(bytes, _)| bytes.len())
            })
        };
        assert_eq!(slow().await.unwrap().unwrap(), 600_000);
        let slow = slow();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (other, length) = body(9, Duration::ZERO);
        assert!(intake.read(other, length).await.is_ok());
        let refused = slow.await.unwrap().unwrap_err();
        assert!(refused.detail().contains("slowly"), "{}", refused.detail());
    }
}
