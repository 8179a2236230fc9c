//! What a caller has sent of a request that is not complete: small requests are free, large ones take room, of which there
//! is so much for a connection and so much for all.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::HeaderMap;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tonic::Status;

use super::limits::MESSAGE_BYTES_MAX;
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
    has_begun: bool,
    /// Bytes that came, and those that were announced.
    seen: usize,
    claimed: usize,
}

impl Intake {
    #[must_use]
    pub fn new(body: Incoming, headers: &HeaderMap, calls: Calls) -> Self {
        let of_headers = if headers.len() <= FREE_HEADERS { 0 } else { headers.len() * HEADER_BYTES };
        Self { body, room: Room::new(calls), has_begun: false, seen: of_headers, claimed: of_headers }
    }

    fn admit(&mut self, data: &[u8]) -> Result<(), Status> {
        // A flag and the length stand before a message, for all of which memory is set aside at once.
        if let (false, Some([_, length @ ..])) = (self.has_begun, data.first_chunk::<5>()) {
            let length = u32::from_be_bytes(*length) as usize;
            if length > MESSAGE_BYTES_MAX {
                return Err(Status::invalid_argument(format!(
                    "the message has {length} bytes, at most {MESSAGE_BYTES_MAX} are possible"
                )));
            }
            self.claimed += length;
        }
        self.has_begun = true;
        self.seen += data.len();
        if self.room.grow(self.claimed.max(self.seen)) {
            return Ok(());
        }
        Err(Status::resource_exhausted("too many bytes of large requests are waiting for their rest"))
    }
}

impl Body for Intake {
    type Data = Bytes;
    type Error = tonic::codegen::StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(context));
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
