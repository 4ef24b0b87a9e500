//! The API, one function a route: what comes in is checked here, work is handed to the queues, answers are JSON.
//! `assets/openapi.json` describes it to others; a test holds both together.

use crate::answer::{Refusal, bytes, json};
use crate::assets::{self, ASSETS};
use crate::download::{self, DownloadWish, Format};
use crate::gallery::Gallery;
use crate::guard::{OwnName, guard};
use crate::kept_image::{KeptImage, MaskWish, SUGGESTED_FROM};
use crate::limits::Limits;
use crate::names;
use crate::work_queue::{Place, WorkQueue};
use axum::Router;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use axum::routing::{get, post};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Instant;
use vitpcm::Segmenter;
use vitpcm_data::{ImageLimits, decode_image};
use vitpcm_masks::palette::voc_colour;
use vitpcm_masks::{Classes, encode_label_png};

/// Largest body of a request that is not an upload.
const MAX_WISH_BYTES: usize = 1 << 20;

/// How many times its limit a body may have and still be read to its end, so that its sender gets to read the refusal.
const MAX_DISCARDED: usize = 8;

/// What all requests share.
pub(crate) struct App {
    pub(crate) segmenter: Segmenter,
    pub(crate) model_name: String,
    pub(crate) limits: Limits,
    pub(crate) gallery: Gallery,
    /// Decoding and the network: one image at a time, on all cores.
    pub(crate) uploads: WorkQueue,
    /// Masks and downloads, which do not wait for the network.
    pub(crate) masks: WorkQueue,
    /// Threads of their own: on those of the network a mask would wait for the next pause between its layers.
    pub(crate) mask_threads: rayon::ThreadPool,
}

type Shared = State<Arc<App>>;
type Answer = Result<Response<Body>, Refusal>;

/// All routes, guarded.
pub(crate) fn router(app: Arc<App>, own_name: OwnName) -> Router {
    let mut router = Router::new()
        .route("/api/model", get(model))
        .route("/api/images", post(take_image))
        .route("/api/images/{id}", get(image).delete(forget_image))
        .route("/api/images/{id}/view", get(view))
        .route("/api/images/{id}/scores/{class}", get(scores))
        .route("/api/images/{id}/mask", post(mask))
        .route("/api/downloads", post(make_download));
    for (path, content_type, content) in ASSETS {
        router = router.route(path, get(move || async move { assets::answer(content_type, content) }));
    }
    router
        .fallback(async || Refusal::new(StatusCode::NOT_FOUND, "there is nothing at this address"))
        .method_not_allowed_fallback(async || {
            Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "this address does not answer to this method")
        })
        .layer(axum::middleware::from_fn_with_state(own_name, guard))
        .with_state(app)
}

#[derive(Serialize)]
struct ModelInfo<'a> {
    model: &'a str,
    classes: Vec<ClassInfo<'a>>,
    formats: Vec<FormatInfo>,
    limits: LimitsInfo,
}

#[derive(Serialize)]
struct ClassInfo<'a> {
    name: &'a str,
    /// Red, green, blue in masks.
    colour: [u8; 3],
}

#[derive(Serialize)]
struct FormatInfo {
    name: &'static str,
    title: &'static str,
    description: &'static str,
}

#[derive(Serialize)]
struct LimitsInfo {
    upload_bytes: usize,
    pixels: u64,
    images: usize,
    download_images: usize,
}

async fn model(State(app): Shared) -> Response<Body> {
    let class = |(index, name)| ClassInfo { name, colour: voc_colour(index as u8) };
    let names = app.segmenter.classes().names().iter().map(String::as_str);
    let limits = &app.limits;
    let info = ModelInfo {
        model: &app.model_name,
        classes: names.enumerate().map(class).collect(),
        formats: Format::all()
            .map(|f| FormatInfo { name: f.name(), title: f.title(), description: f.description() })
            .collect(),
        limits: LimitsInfo {
            upload_bytes: limits.max_upload_bytes,
            pixels: limits.max_pixels,
            images: limits.max_images,
            download_images: limits.max_export_images,
        },
    };
    json(StatusCode::OK, &info)
}

#[derive(Deserialize)]
struct NameParameter {
    #[serde(default)]
    name: String,
}

#[derive(Serialize)]
struct ImageInfo<'a> {
    id: &'a str,
    name: &'a str,
    width: usize,
    height: usize,
    view: ViewInfo,
    tags: Vec<TagInfo<'a>>,
}

#[derive(Serialize)]
struct ViewInfo {
    width: usize,
    height: usize,
}

#[derive(Serialize)]
struct TagInfo<'a> {
    name: &'a str,
    probability: f32,
    suggested: bool,
}

impl<'a> ImageInfo<'a> {
    fn new(id: &'a str, image: &'a KeptImage, classes: &'a Classes) -> ImageInfo<'a> {
        let (width, height) = image.size();
        let (view_width, view_height) = image.view_size();
        let tag = |(name, &probability): (&'a String, &f32)| TagInfo {
            name,
            probability,
            suggested: probability >= SUGGESTED_FROM,
        };
        let tags = classes.names().iter().zip(&image.scores.tag_probabilities).skip(1).map(tag).collect();
        let view = ViewInfo { width: view_width, height: view_height };
        ImageInfo { id, name: &image.name, width, height, view, tags }
    }
}

async fn take_image(
    State(app): Shared,
    parameter: Result<Query<NameParameter>, QueryRejection>,
    request: Request,
) -> Answer {
    let Query(parameter) = parameter.map_err(|problem| Refusal::bad_request(problem.body_text()))?;
    let is_image = |kind: &str| kind.starts_with("image/") || kind == "application/octet-stream";
    check_content_type(request.headers(), is_image, "an image file, as image/… or application/octet-stream")?;
    let (place, bytes) =
        received(request, app.uploads.enter(), app.limits.max_upload_bytes, &app.limits).await?;
    let worker = app.clone();
    let work = move || {
        let name = names::clean(&parameter.name);
        let limits = ImageLimits { max_pixels: worker.limits.max_pixels };
        let pixels = decode_image(&name, &bytes, &limits);
        let pixels = pixels.map_err(|error| Refusal::unprocessable(error.to_string()))?;
        let scores = worker.segmenter.score(&pixels)?;
        let image = Arc::new(KeptImage::new(name, bytes, pixels, scores)?);
        Ok((worker.gallery.keep(image.clone()), image))
    };
    let (id, image) = app.uploads.run(place, work).await?;
    Ok(json(StatusCode::CREATED, &ImageInfo::new(&id, &image, app.segmenter.classes())))
}

async fn image(State(app): Shared, Path(id): Path<String>) -> Answer {
    let image = app.gallery.image(&id).ok_or_else(Refusal::no_such_image)?;
    Ok(json(StatusCode::OK, &ImageInfo::new(&id, &image, app.segmenter.classes())))
}

async fn forget_image(State(app): Shared, Path(id): Path<String>) -> Answer {
    if !app.gallery.forget(&id) {
        return Err(Refusal::no_such_image());
    }
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    Ok(response)
}

async fn view(State(app): Shared, Path(id): Path<String>) -> Answer {
    let image = app.gallery.image(&id).ok_or_else(Refusal::no_such_image)?;
    Ok(bytes("image/jpeg", image.view_jpeg().to_vec()))
}

async fn scores(State(app): Shared, Path((id, class)): Path<(String, String)>) -> Answer {
    let image = app.gallery.image(&id).ok_or_else(Refusal::no_such_image)?;
    let no_such_class = || Refusal::new(StatusCode::NOT_FOUND, "the model has no class of this name");
    let class = app.segmenter.classes().index_of(&class).ok_or_else(no_such_class)?;
    Ok(bytes("image/png", image.scores_png(class)))
}

#[derive(Serialize)]
struct MaskInfo<'a> {
    width: usize,
    height: usize,
    tags: Vec<&'a str>,
    areas: Vec<Area<'a>>,
    /// Time that it took, the waiting left out.
    milliseconds: f64,
    /// A PNG, as a data URL.
    mask: String,
}

#[derive(Serialize)]
struct Area<'a> {
    class: &'a str,
    pixels: u32,
    share: f64,
}

async fn mask(State(app): Shared, Path(id): Path<String>, request: Request) -> Answer {
    let (place, wish) = wish::<MaskWish>(&app, request).await?;
    let image = app.gallery.image(&id).ok_or_else(Refusal::no_such_image)?;
    let worker = app.clone();
    let work = move || {
        let started = Instant::now();
        let classes = worker.segmenter.classes();
        let made = worker.mask_threads.install(|| image.mask(&wish, classes))?;
        let mut png = Vec::new();
        encode_label_png(&mut png, &made.mask).map_err(|_| Refusal::bug())?;
        let name = |class: usize| classes.names()[class].as_str();
        let (width, height) = made.mask.size();
        let area = |(class, pixels): (usize, u32)| Area {
            class: name(class),
            pixels,
            share: f64::from(pixels) / (width * height) as f64,
        };
        let histogram = made.mask.histogram().into_iter().enumerate().take(classes.len());
        let info = MaskInfo {
            width,
            height,
            tags: made.segmentation.tags.iter().map(|&class| name(class)).collect(),
            areas: histogram.filter(|&(_, pixels)| pixels > 0).map(area).collect(),
            mask: format!("data:image/png;base64,{}", STANDARD.encode(png)),
            milliseconds: (started.elapsed().as_secs_f64() * 1e4).round() / 10.0,
        };
        Ok(json(StatusCode::OK, &info))
    };
    app.masks.run(place, work).await
}

async fn make_download(State(app): Shared, request: Request) -> Answer {
    let (place, wish) = wish::<DownloadWish>(&app, request).await?;
    let limit = app.limits.max_export_images;
    if wish.images.is_empty() || wish.images.len() > limit {
        let text = format!("{} images; expected 1 to {limit}", wish.images.len());
        return Err(Refusal::unprocessable(text));
    }
    let find = |one: &download::ImageWish| app.gallery.image(&one.id).ok_or_else(Refusal::no_such_image);
    let images = wish.images.iter().map(find).collect::<Result<Vec<_>, _>>()?;
    let worker = app.clone();
    let work = move || {
        let classes = worker.segmenter.classes();
        worker.mask_threads.install(|| download::make(&wish, &images, classes))
    };
    let file = app.masks.run(place, work).await?;
    let mut response = bytes(file.content_type, file.bytes);
    let name = HeaderValue::try_from(names::attachment(&file.name)).map_err(|_| Refusal::bug())?;
    response.headers_mut().insert(header::CONTENT_DISPOSITION, name);
    Ok(response)
}

/// The body of a request for a mask or a download, with a place in the queue.
async fn wish<T: DeserializeOwned>(app: &App, request: Request) -> Result<(Place, T), Refusal> {
    check_content_type(request.headers(), |kind| kind == "application/json", "application/json")?;
    let (place, bytes) = received(request, app.masks.enter(), MAX_WISH_BYTES, &app.limits).await?;
    let wish = serde_json::from_slice(&bytes).map_err(|error| Refusal::bad_request(error.to_string()))?;
    Ok((place, wish))
}

/// A kind that no form of another site can send without asking first.
fn check_content_type(
    headers: &HeaderMap,
    is_fine: impl Fn(&str) -> bool,
    expected: &str,
) -> Result<(), Refusal> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if is_fine(&essence) {
        return Ok(());
    }
    let text = format!("Content-Type `{essence}`; expected {expected}");
    Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, text))
}

/// Reads a body, if there is a place in the queue for it and it is not too large. What is refused is still read, and thrown
/// away, within reason: a client that is writing would not see an answer that comes with the closing of the connection.
async fn received(
    request: Request,
    place: Result<Place, Refusal>,
    max_bytes: usize,
    limits: &Limits,
) -> Result<(Place, Vec<u8>), Refusal> {
    let too_large = || {
        let text = format!("the request has more than {max_bytes} bytes");
        Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, text)
    };
    let announced = request.headers().get(header::CONTENT_LENGTH).and_then(|n| n.to_str().ok()?.parse().ok());
    let is_too_large = announced.is_some_and(|length: usize| length > max_bytes);
    if request.headers().contains_key(header::EXPECT) && (is_too_large || place.is_err()) {
        return Err(place.err().unwrap_or_else(too_large)); // Nothing was sent yet.
    }
    let mut body = request.into_body();
    let read = async {
        let (mut bytes, mut num_bytes) = (Vec::new(), 0);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| Refusal::bad_request("the request ended early"))?;
            let Some(data) = frame.data_ref() else { continue };
            num_bytes += data.len();
            if num_bytes > max_bytes.saturating_mul(MAX_DISCARDED) {
                break;
            }
            if num_bytes > max_bytes || is_too_large || place.is_err() {
                bytes = Vec::new();
            } else {
                bytes.extend_from_slice(data);
            }
        }
        if num_bytes > max_bytes || is_too_large { Err(too_large()) } else { Ok(bytes) }
    };
    let too_slow = |_| Refusal::new(StatusCode::REQUEST_TIMEOUT, "the request took too long to arrive");
    let bytes = tokio::time::timeout(limits.body_time, read).await.map_err(too_slow)??;
    Ok((place?, bytes))
}
