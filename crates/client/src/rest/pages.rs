//! Listings of any length, fetched page by page.

use crate::Error;
use crate::training::BoxFuture;
use futures_core::Stream;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// A page and how to get the next one.
pub(crate) struct Page<T> {
    pub(crate) items: Vec<T>,
    pub(crate) next: Option<Fetch<T>>,
}

/// Which part of a listing a page is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) limit: u64,
    pub(crate) offset: u64,
}

impl Window {
    /// Makes the first page of this size.
    pub(crate) fn new(limit: u64) -> Self {
        Self { limit, offset: 0 }
    }

    pub(crate) fn query(self) -> [(&'static str, Cow<'static, str>); 2] {
        [
            ("limit", self.limit.to_string().into()),
            ("offset", self.offset.to_string().into()),
        ]
    }
}

/// Fetches a page.
pub(crate) type Fetch<T> = Box<dyn FnOnce() -> BoxFuture<Result<Page<T>, Error>> + Send>;

/// All items of a listing, as a [`Stream`]. A page is fetched when its first item is asked for.
///
/// An error ends it. Dropping it asks for nothing more.
#[must_use = "nothing is fetched until the stream is polled"]
pub struct Pages<T> {
    items: VecDeque<T>,
    state: State<T>,
}

enum State<T> {
    Next(Fetch<T>),
    Fetching(BoxFuture<Result<Page<T>, Error>>),
    Done,
}

impl<T> Pages<T> {
    pub(crate) fn new(first: Fetch<T>) -> Self {
        Self {
            items: VecDeque::new(),
            state: State::Next(first),
        }
    }

    /// Returns the next item, fetching its page if it must.
    pub async fn next(&mut self) -> Option<Result<T, Error>>
    where
        T: Unpin,
    {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }
}

impl<T: Unpin> Stream for Pages<T> {
    type Item = Result<T, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(item) = self.items.pop_front() {
                return Poll::Ready(Some(Ok(item)));
            }
            match std::mem::replace(&mut self.state, State::Done) {
                State::Done => return Poll::Ready(None),
                State::Next(fetch) => self.state = State::Fetching(fetch()),
                State::Fetching(mut page) => match page.as_mut().poll(cx) {
                    Poll::Pending => {
                        self.state = State::Fetching(page);
                        return Poll::Pending;
                    }
                    page => {
                        let page = match ready!(page) {
                            Ok(page) => page,
                            Err(error) => return Poll::Ready(Some(Err(error))),
                        };
                        self.items = page.items.into();
                        self.state = page.next.map_or(State::Done, State::Next);
                    }
                },
            }
        }
    }
}

impl<T> fmt::Debug for Pages<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pages")
            .field("buffered", &self.items.len())
            .finish_non_exhaustive()
    }
}

/// Makes the next page of a listing by offset, if there is one.
///
/// A server may give fewer items than it was asked for, so without a total only an empty page is
/// the end.
pub(crate) fn by_offset<T, F>(offset: u64, items: Vec<T>, total: Option<u64>, fetch: F) -> Page<T>
where
    F: FnOnce(u64) -> BoxFuture<Result<Page<T>, Error>> + Send + 'static,
{
    let end = offset + items.len() as u64;
    let more = !items.is_empty() && total.is_none_or(|total| end < total);
    let next = more.then(|| Box::new(move || fetch(end)) as Fetch<T>);
    Page { items, next }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Serves a listing of seven in pages of three at most, whatever was asked for.
    fn capped(offset: u64, total: Option<u64>) -> BoxFuture<Result<Page<u64>, Error>> {
        let items = (offset..7).take(3).collect();
        Box::pin(async move { Ok(by_offset(offset, items, total, move |o| capped(o, total))) })
    }

    #[tokio::test]
    async fn a_listing_is_read_to_its_end_however_small_its_pages() {
        for total in [None, Some(7)] {
            let mut pages = Pages::new(Box::new(move || capped(0, total)));
            let mut read = Vec::new();
            while let Some(item) = pages.next().await {
                read.push(item.unwrap());
            }
            assert_eq!(read, [0, 1, 2, 3, 4, 5, 6], "total {total:?}");
        }
    }
}
