//! HTTP responses: JSON, a file, or a refusal (a status and one sentence as JSON). A response larger than a few KiB
//! holds a share of the memory budget until it is sent.

use crate::memory::{Budget, PIECE, Paid};
use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;
use hyper::body::{Frame, SizeHint};
use serde::Serialize;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use vitpcm::SegmentError;

/// What a route returns.
pub(crate) type Answer = Result<Response<Body>, Refusal>;

/// Why a request was refused or failed.
#[derive(Debug)]
pub(crate) struct Refusal {
    status: StatusCode,
    message: String,
}

/// `Retry-After` in seconds, sent with 503.
const RETRY_AFTER: &str = "1";

/// Longest error message, in characters, because some quote the request.
const MAX_MESSAGE: usize = 500;

impl Refusal {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Refusal {
        Refusal { status, message: message.into() }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::BAD_REQUEST, message)
    }

    pub(crate) fn unprocessable(message: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, message)
    }

    pub(crate) fn busy() -> Refusal {
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "the server is busy; try again in a second")
    }

    pub(crate) fn no_such_image() -> Refusal {
        Refusal::new(StatusCode::NOT_FOUND, "no image with this id (any more); upload it again")
    }

    pub(crate) fn bug() -> Refusal {
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "the server failed on this request; please report it")
    }

    /// The response body.
    pub(crate) fn json(&self) -> Vec<u8> {
        #[derive(Serialize)]
        struct Problem {
            error: String,
        }
        json_of(&Problem { error: self.message.chars().take(MAX_MESSAGE).collect() })
    }
}

impl From<SegmentError> for Refusal {
    fn from(error: SegmentError) -> Refusal {
        match error {
            SegmentError::UnknownTag { .. } => Refusal::unprocessable(error.to_string()),
            other => Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, other.to_string()),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response<Body> {
        let mut response = file(JSON, self.json());
        *response.status_mut() = self.status;
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER));
        }
        response
    }
}

pub(crate) const JSON: &str = "application/json";

fn json_of(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("our values have string keys")
}

/// A JSON response.
pub(crate) fn json(status: StatusCode, value: &impl Serialize, budget: &Budget) -> Answer {
    let mut response = bytes(JSON, json_of(value).into(), budget)?;
    *response.status_mut() = status;
    Ok(response)
}

/// Bytes with a content type. Bodies of up to one piece are not charged to the budget, so that a server with full
/// memory still answers small requests.
pub(crate) fn bytes(content_type: &'static str, bytes: Bytes, budget: &Budget) -> Answer {
    if bytes.len() <= PIECE {
        return Ok(file(content_type, bytes));
    }
    let share = budget.take(bytes.len())?;
    Ok(file(content_type, pieces([Bytes::from_owner(Paid { bytes, share })].into())))
}

/// A response with a content type.
pub(crate) fn file(content_type: &'static str, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// A body that is streamed piece by piece.
pub(crate) fn pieces(pieces: VecDeque<Bytes>) -> Body {
    Body::new(PiecewiseBody(pieces))
}

struct PiecewiseBody(VecDeque<Bytes>);

impl HttpBody for PiecewiseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(first) = self.0.front_mut() else { return Poll::Ready(None) };
        let piece = first.split_to(PIECE.min(first.len()));
        if first.is_empty() {
            self.0.pop_front();
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.iter().map(|bytes| bytes.len() as u64).sum())
    }
}
