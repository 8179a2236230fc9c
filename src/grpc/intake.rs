//! What a caller has sent of a request that is not complete: small requests are free, large ones take room, of which there
//! is so much for a connection and so much for all; and none may take for ever.

use std::{
    future::Future as _,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::HeaderMap;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use smallvec::SmallVec;
use tokio::time::{Sleep, sleep};
use tonic::Status;

use super::{
    limits::{MESSAGE_BYTES_MAX, MESSAGE_MAX},
    unary::PREFIX,
};
use crate::drain::{Calls, Room};

/// A call with so many headers takes no room for them.
const FREE_HEADERS: usize = 32;
/// What a header takes, however short it is.
const HEADER_BYTES: usize = 128;

/// The body of a request.
#[derive(Debug)]
pub struct Intake {
    body: Incoming,
    room: Room,
    goes_on: bool,
    /// What stands before a message, as far as it is here: a flag, and the length.
    prefix: SmallVec<[u8; PREFIX]>,
    /// Bytes of the body that came, and what is counted beside them.
    seen: usize,
    beside: usize,
    has_asked: bool,
    /// Made when somebody has to wait.
    too_late: Option<Pin<Box<Sleep>>>,
}

impl Intake {
    /// A call that goes on has one message at first, and others when its caller likes.
    #[must_use]
    pub fn new(body: Incoming, headers: &HeaderMap, calls: Calls, goes_on: bool) -> Self {
        let beside = if headers.len() <= FREE_HEADERS { 0 } else { headers.len() * HEADER_BYTES };
        let room = Room::new(calls);
        Self { body, room, goes_on, prefix: SmallVec::new(), seen: 0, beside, has_asked: false, too_late: None }
    }

    fn admit(&mut self, data: &[u8]) -> Result<(), Status> {
        if self.goes_on && self.has_asked {
            // What follows is small: the services that go on take no large messages.
            return Ok(());
        }
        self.seen += data.len();
        if !self.has_asked {
            let missing = PREFIX - self.prefix.len();
            self.prefix.extend_from_slice(&data[..missing.min(data.len())]);
            if let [_, length @ ..] = &*self.prefix
                && let Ok(length) = <[u8; 4]>::try_from(length)
            {
                self.announced(u32::from_be_bytes(length) as usize)?;
            }
        }
        if self.room.grow(self.beside + self.seen) {
            return Ok(());
        }
        Err(Status::resource_exhausted("too many bytes of large requests are waiting for their rest"))
    }

    fn announced(&mut self, length: usize) -> Result<(), Status> {
        if length > MESSAGE_BYTES_MAX {
            return Err(Status::invalid_argument(format!(
                "the message has {length} bytes, at most {MESSAGE_BYTES_MAX} are possible"
            )));
        }
        if self.seen >= PREFIX + length {
            self.has_asked = true;
            self.room.calls().note_asked();
        }
        Ok(())
    }

    /// Nobody waits for a message for ever, except for the next one of a call that goes on.
    fn wait(&mut self, context: &mut Context<'_>) -> Poll<Status> {
        if self.goes_on && self.has_asked {
            return Poll::Pending;
        }
        let too_late = self.too_late.get_or_insert_with(|| Box::pin(sleep(MESSAGE_MAX)));
        ready!(too_late.as_mut().poll(context));
        Poll::Ready(Status::deadline_exceeded(format!("the message was not sent within {MESSAGE_MAX:?}")))
    }
}

impl Body for Intake {
    type Data = Bytes;
    type Error = tonic::codegen::StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else {
            return self.wait(context).map(|late| Some(Err(late.into())));
        };
        Poll::Ready(match frame {
            Some(Ok(frame)) => match frame.data_ref().map(|data| self.admit(data)) {
                Some(Err(refusal)) => Some(Err(refusal.into())),
                Some(Ok(())) | None => Some(Ok(frame)),
            },
            Some(Err(error)) => Some(Err(error.into())),
            None => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
