//! The web page: the HTML, CSS and JavaScript files of `assets/`, embedded in the binary.

use crate::answer;
use axum::body::Body;
use axum::http::{HeaderValue, Response, header};

/// Path, content type and content of each file.
pub(crate) const ASSETS: [(&str, &str, &str); 13] = [
    ("/", "text/html; charset=utf-8", include_str!("../assets/index.html")),
    ("/assets/viewer.css", "text/css; charset=utf-8", include_str!("../assets/viewer.css")),
    ("/assets/icon.svg", "image/svg+xml", include_str!("../assets/icon.svg")),
    ("/assets/viewer.js", JAVASCRIPT, include_str!("../assets/viewer.js")),
    ("/assets/api.js", JAVASCRIPT, include_str!("../assets/api.js")),
    ("/assets/colours.js", JAVASCRIPT, include_str!("../assets/colours.js")),
    ("/assets/hints.js", JAVASCRIPT, include_str!("../assets/hints.js")),
    ("/assets/stage.js", JAVASCRIPT, include_str!("../assets/stage.js")),
    ("/assets/tags.js", JAVASCRIPT, include_str!("../assets/tags.js")),
    ("/assets/strip.js", JAVASCRIPT, include_str!("../assets/strip.js")),
    ("/assets/download.js", JAVASCRIPT, include_str!("../assets/download.js")),
    ("/assets/theme.js", JAVASCRIPT, include_str!("../assets/theme.js")),
    ("/api/openapi.json", "application/json", include_str!("../assets/openapi.json")),
];

const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// A file of the page. Browsers revalidate it each time, because another version of the program may serve the same
/// address.
pub(crate) fn answer(content_type: &'static str, content: &'static str) -> Response<Body> {
    let mut response = answer::file(content_type, content);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}
