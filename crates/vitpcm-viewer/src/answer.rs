//! What a request is answered with when it is not answered with what it asked for: a status and one sentence, as JSON.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;
use serde::Serialize;
use vitpcm::SegmentError;

/// Why a request was refused, or failed.
#[derive(Debug)]
pub(crate) struct Refusal {
    status: StatusCode,
    message: String,
}

/// Seconds after which a client that was told "busy" may ask again.
const RETRY_AFTER: &str = "1";

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
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "too much is waiting already; try again in a second")
    }

    pub(crate) fn no_such_image() -> Refusal {
        Refusal::new(StatusCode::NOT_FOUND, "no image of this id is kept (any longer); send it again")
    }

    pub(crate) fn bug() -> Refusal {
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "the server failed on this request; please report it")
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
        #[derive(Serialize)]
        struct Problem<'a> {
            error: &'a str,
        }
        let mut response = json(self.status, &Problem { error: &self.message });
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER));
        }
        response
    }
}

/// A value as JSON.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    let text = serde_json::to_vec(value).expect("our values have string keys");
    let mut response = bytes("application/json", text);
    *response.status_mut() = status;
    response
}

/// Bytes of a kind.
pub(crate) fn bytes(content_type: &'static str, bytes: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(bytes.into());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
