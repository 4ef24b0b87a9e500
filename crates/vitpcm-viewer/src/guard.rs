//! Access checks: rejects requests that a browser sends for another site, and adds strict security headers to every
//! response.
//!
//! The `Host` header must be an IP address or one of our names, which defeats DNS rebinding. A cross-site request from
//! a browser shows in `Origin` and `Sec-Fetch-Site`, which scripts cannot forge; other programs send neither.

use crate::answer::Refusal;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::IntoResponse;
use std::net::IpAddr;
use std::sync::Arc;

/// Sent with every response.
pub(crate) const HEADERS: [(HeaderName, &str); 7] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("permissions-policy"), "camera=(), geolocation=(), microphone=()"),
];

/// The host name that the server listens on, if any; addresses and `localhost` are always allowed.
pub(crate) type OwnName = Arc<Option<String>>;

/// Passes a request on or rejects it, and sets the response headers.
pub(crate) async fn guard(State(own_name): State<OwnName>, request: Request, next: Next) -> Response<Body> {
    let mut response = match check(request.uri(), request.headers(), own_name.as_deref()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response.headers_mut().entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

fn check(uri: &Uri, headers: &HeaderMap, own_name: Option<&str>) -> Result<(), Refusal> {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("unreadable"));
    let host = text("host").unwrap_or_default();
    // A proxy could interpret a second Host header, or a request line with an authority, differently.
    let is_plain = headers.get_all("host").iter().count() == 1 && uri.authority().is_none();
    if !is_plain || !is_own_host(host, own_name) {
        let message = "addressed to another server; use the address that `vitpcm serve` printed";
        return Err(Refusal::new(StatusCode::MISDIRECTED_REQUEST, message));
    }
    let is_own_origin = |origin: &str| origin.strip_prefix("http://") == Some(host);
    let is_foreign_fetch = |site: &str| !matches!(site, "same-origin" | "none");
    if !text("origin").is_none_or(is_own_origin) || text("sec-fetch-site").is_some_and(is_foreign_fetch) {
        return Err(Refusal::new(StatusCode::FORBIDDEN, "requests from other sites are refused"));
    }
    Ok(())
}

/// Whether a `Host` header is an IP address, `localhost` or the server's own name, with any port.
fn is_own_host(host: &str, own_name: Option<&str>) -> bool {
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let name = match host.rsplit_once(':') {
        Some((name, port)) if is_port(port) => name,
        _ => host,
    };
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    address.parse::<IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || own_name.is_some_and(|own| own.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_and_own_names_are_hosts() {
        for own in ["localhost", "LOCALHOST:8000", "127.0.0.1:8000", "[::1]:80", "192.168.0.7", "lab:8000"] {
            assert!(is_own_host(own, Some("lab")), "{own}");
        }
        for foreign in
            ["", "evil.example", "localhost.evil.example:8000", "127.0.0.1.evil.example", "lab2", ":80"]
        {
            assert!(!is_own_host(foreign, Some("lab")), "{foreign}");
        }
    }

    #[test]
    fn requests_of_other_sites_are_refused() {
        let check = |pairs: &[(&'static str, &'static str)]| {
            let headers = pairs
                .iter()
                .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
            check(&Uri::from_static("/"), &headers.collect(), None).is_ok()
        };
        assert!(check(&[("host", "localhost:1")]));
        assert!(check(&[
            ("host", "localhost:1"),
            ("origin", "http://localhost:1"),
            ("sec-fetch-site", "same-origin")
        ]));
        assert!(check(&[("host", "localhost:1"), ("sec-fetch-site", "none")]));
        assert!(!check(&[("host", "localhost:1"), ("origin", "http://evil.example")]));
        assert!(!check(&[("host", "localhost:1"), ("origin", "http://localhost:2")]));
        assert!(!check(&[("host", "localhost:1"), ("origin", "null")]));
        assert!(!check(&[("host", "localhost:1"), ("sec-fetch-site", "cross-site")]));
        assert!(!check(&[("host", "localhost:1"), ("sec-fetch-site", "same-site")]));
        assert!(!check(&[]));
        assert!(!check(&[("host", "localhost:1"), ("host", "evil.example")]));
    }
}
