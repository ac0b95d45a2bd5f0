//! What a request sends: bytes, or a file that is read while it is sent.

use super::HttpError;
use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, SizeHint};
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use tokio::fs::File;
use tokio::io::{AsyncRead, ReadBuf};

const PIECE_BYTES: u64 = 1 << 20;

/// What a request sends. It can be sent again, as redirects need it.
#[derive(Debug)]
pub(super) enum Upload {
    Bytes(Bytes),
    File(PathBuf),
}

impl Upload {
    /// Makes a body of it, which counts what was `sent`.
    pub(super) async fn body(
        &self,
        sent: Arc<AtomicU64>,
    ) -> Result<UnsyncBoxBody<Bytes, io::Error>, HttpError> {
        let path = match self {
            Self::Bytes(bytes) => {
                let body = Full::new(bytes.clone());
                return Ok(body.map_err(|never| match never {}).boxed_unsync());
            }
            Self::File(path) => path,
        };
        let open = async {
            let file = File::open(path).await?;
            let left = file.metadata().await?.len();
            Ok(FileBody { file, left, sent })
        };
        let opened: io::Result<FileBody> = open.await;
        let body = opened.map_err(|source| HttpError::File {
            path: path.clone(),
            source,
        })?;
        Ok(body.boxed_unsync())
    }
}

struct FileBody {
    file: File,
    left: u64,
    sent: Arc<AtomicU64>,
}

impl Body for FileBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let mut piece = vec![0; self.left.min(PIECE_BYTES) as usize];
        let mut buffer = ReadBuf::new(&mut piece);
        if let Err(error) = ready!(Pin::new(&mut self.file).poll_read(cx, &mut buffer)) {
            return Poll::Ready(Some(Err(error)));
        }
        let count = buffer.filled().len();
        if count == 0 {
            let error = io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter");
            return Poll::Ready(Some(Err(error)));
        }
        piece.truncate(count);
        self.left -= count as u64;
        self.sent.fetch_add(count as u64, Ordering::Relaxed);
        Poll::Ready(Some(Ok(Frame::data(piece.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
