//! Decodes one AV1 picture (feature `avif`) with rav1d, without its assembly. rav1d has dav1d's C interface, so this is
//! the crate's only file with unsafe code. A panic inside rav1d aborts the program, because C functions cannot unwind,
//! and rav1d 1.1.0 panics on some damaged pictures (`decode.rs`, `on_error`): this is why AVIF is a feature that is off
//! by default.

use heifer::heifer_hevc_dec::recon::Frame;
use rav1d::include::dav1d::data::Dav1dData;
use rav1d::include::dav1d::dav1d::{Dav1dContext, Dav1dSettings};
use rav1d::include::dav1d::headers::{
    DAV1D_PIXEL_LAYOUT_I400, DAV1D_PIXEL_LAYOUT_I420, DAV1D_PIXEL_LAYOUT_I422, DAV1D_PIXEL_LAYOUT_I444,
};
use rav1d::include::dav1d::picture::Dav1dPicture;
use rav1d::src::lib::{
    dav1d_close, dav1d_data_create, dav1d_data_unref, dav1d_default_settings, dav1d_get_picture, dav1d_open,
    dav1d_picture_unref, dav1d_send_data,
};
use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// Decodes the first picture of a stream. Its planes are padded to whole chroma samples.
pub(crate) fn decode_av1(stream: &[u8], max_pixels: u64) -> Result<Frame, String> {
    if stream.is_empty() {
        return Err("an AVIF picture without data".to_string());
    }
    let decoder = Decoder::open(max_pixels)?;
    let mut data = Data::copy_of(stream)?;
    let picture = decoder.first_picture(&mut data)?;
    picture.frame()
}

fn failed(what: &str, code: i32) -> String {
    format!("the AV1 decoder could not {what} (error {})", -code)
}

struct Decoder(Option<Dav1dContext>);

impl Decoder {
    fn open(max_pixels: u64) -> Result<Self, String> {
        let mut settings = MaybeUninit::<Dav1dSettings>::uninit();
        // SAFETY: the call initialises all settings.
        let mut settings = unsafe {
            dav1d_default_settings(NonNull::from(&mut settings).cast());
            settings.assume_init()
        };
        settings.n_threads = 1;
        settings.max_frame_delay = 1;
        settings.frame_size_limit = u32::try_from(max_pixels).unwrap_or(u32::MAX);
        let mut context = None;
        // SAFETY: both pointers are to values that live until the call returns.
        let result =
            unsafe { dav1d_open(Some(NonNull::from(&mut context)), Some(NonNull::from(&mut settings))) };
        if result.0 != 0 {
            return Err(failed("start", result.0));
        }
        Ok(Decoder(context))
    }

    fn first_picture(&self, data: &mut Data) -> Result<Picture, String> {
        // SAFETY: the context is open until `self` is dropped; `data` lives until the call returns.
        let sent = unsafe { dav1d_send_data(self.0, Some(NonNull::from(&mut data.0))) };
        if sent.0 != 0 {
            return Err(failed("read this picture", sent.0));
        }
        let mut picture = Picture(Dav1dPicture::default());
        // SAFETY: as above; an empty picture owns nothing that overwriting it would leak.
        let result = unsafe { dav1d_get_picture(self.0, Some(NonNull::from(&mut picture.0))) };
        if result.0 != 0 {
            return Err(failed("read this picture", result.0));
        }
        Ok(picture)
    }
}

impl Drop for Decoder {
    fn drop(&mut self) {
        // SAFETY: the context came from `dav1d_open` and is closed once; the call leaves `None` behind.
        unsafe { dav1d_close(Some(NonNull::from(&mut self.0))) }
    }
}

/// A stream in rav1d's own buffer.
struct Data(Dav1dData);

impl Data {
    fn copy_of(stream: &[u8]) -> Result<Self, String> {
        let mut data = Data(Dav1dData::default());
        // SAFETY: the call writes `data.0`, which is empty.
        let buffer = unsafe { dav1d_data_create(Some(NonNull::from(&mut data.0)), stream.len()) };
        let buffer = NonNull::new(buffer).ok_or("no memory for an AVIF picture")?;
        // SAFETY: the buffer is new and has the requested length.
        unsafe { buffer.as_ptr().copy_from_nonoverlapping(stream.as_ptr(), stream.len()) };
        Ok(data)
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        // SAFETY: `self.0` is valid; it is empty if the decoder took the buffer.
        unsafe { dav1d_data_unref(Some(NonNull::from(&mut self.0))) }
    }
}

struct Picture(Dav1dPicture);

impl Picture {
    fn frame(&self) -> Result<Frame, String> {
        let parameters = &self.0.p;
        let (width, height) = (parameters.w as usize, parameters.h as usize);
        let (chroma_format, (across, down)) = match parameters.layout {
            DAV1D_PIXEL_LAYOUT_I400 => (0, (1, 1)),
            DAV1D_PIXEL_LAYOUT_I420 => (1, (2, 2)),
            DAV1D_PIXEL_LAYOUT_I422 => (2, (2, 1)),
            DAV1D_PIXEL_LAYOUT_I444 => (3, (1, 1)),
            other => return Err(format!("an AV1 picture of layout {other}")),
        };
        let chroma =
            if chroma_format == 0 { (0, 0) } else { (width.div_ceil(across), height.div_ceil(down)) };
        let padded = (width.next_multiple_of(across), height.next_multiple_of(down));
        // SAFETY: the picture keeps the sequence header alive.
        let header = self.0.seq_hdr.map(|header| unsafe { header.as_ref() });
        Ok(Frame {
            widths: [padded.0 as u32, chroma.0 as u32, chroma.0 as u32],
            heights: [padded.1 as u32, chroma.1 as u32, chroma.1 as u32],
            planes: [
                self.plane(0, (width, height), padded)?,
                self.plane(1, chroma, chroma)?,
                self.plane(2, chroma, chroma)?,
            ],
            bit_depth: [parameters.bpc as u8; 2],
            chroma_format,
            full_range: header.is_some_and(|header| header.color_range != 0),
            matrix_coeffs: header.map_or(2, |header| header.mtrx as u8),
        })
    }

    /// One plane of `size` (width, height), with its last column and row replicated up to `padded`.
    fn plane(&self, index: usize, size: (usize, usize), padded: (usize, usize)) -> Result<Vec<u16>, String> {
        if size.0 == 0 || size.1 == 0 {
            return Ok(Vec::new());
        }
        let stride = self.0.stride[index.min(1)];
        let start = self.0.data[index].ok_or("an AV1 picture without one of its planes")?;
        let value_bytes = if self.0.p.bpc > 8 { 2 } else { 1 };
        if stride < (size.0 * value_bytes) as isize {
            return Err("an AV1 picture with overlapping rows".to_string());
        }
        let mut values = Vec::with_capacity(padded.0 * padded.1);
        for y in 0..padded.1 {
            let row =
                start.as_ptr().cast_const().cast::<u8>().wrapping_offset(stride * y.min(size.1 - 1) as isize);
            // SAFETY: rav1d allocates `stride` bytes for each of at least `size.1` rows, and keeps them as long as the picture.
            let bytes = unsafe { std::slice::from_raw_parts(row, size.0 * value_bytes) };
            let begin = values.len();
            match value_bytes {
                1 => values.extend(bytes.iter().map(|&value| u16::from(value))),
                _ => values.extend(bytes.as_chunks().0.iter().map(|&pair| u16::from_ne_bytes(pair))),
            }
            let last = values[begin + size.0 - 1];
            values.resize(begin + padded.0, last);
        }
        Ok(values)
    }
}

impl Drop for Picture {
    fn drop(&mut self) {
        // SAFETY: the picture is valid, empty or filled by the decoder.
        unsafe { dav1d_picture_unref(Some(NonNull::from(&mut self.0))) }
    }
}
