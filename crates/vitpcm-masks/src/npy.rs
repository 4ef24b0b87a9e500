//! NumPy's array format, version 1.0, as far as score maps need it; every length is checked before use.

use half::f16;

const MAGIC: &[u8] = b"\x93NUMPY";
/// Longest header that is read; NumPy writes about a hundred bytes.
const MAX_HEADER: usize = 1 << 16;

/// An array as a `.npy` file: NumPy's type name, the shape, the values in C order.
pub fn encoded(descr: &str, shape: &[usize], data: &[u8]) -> Vec<u8> {
    let sizes: Vec<String> = shape.iter().map(|size| format!("{size},")).collect();
    let dictionary =
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}), }}", sizes.join(" "));
    // Magic, version and length are 10 bytes; the header ends with a newline at a multiple of 64.
    let length = (10 + dictionary.len() + 1).next_multiple_of(64) - 10;
    let mut bytes = Vec::with_capacity(10 + length + data.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&[1, 0]);
    bytes.extend_from_slice(&(length as u16).to_le_bytes());
    bytes.extend_from_slice(format!("{dictionary:<0$}\n", length - 1).as_bytes());
    bytes.extend_from_slice(data);
    bytes
}

/// Text as NumPy's fixed-width UTF-32 strings.
pub(crate) fn encoded_strings(strings: &[String]) -> Vec<u8> {
    let width = strings.iter().map(|text| text.chars().count()).max().unwrap_or(0).max(1);
    let padded = strings.iter().flat_map(|text| text.chars().chain(std::iter::repeat('\0')).take(width));
    let data: Vec<u8> = padded.flat_map(|character| (character as u32).to_le_bytes()).collect();
    encoded(&format!("<U{width}"), &[strings.len()], &data)
}

/// An array read from a `.npy` file, not yet interpreted.
#[derive(Debug)]
pub(crate) struct Array<'a> {
    descr: &'a str,
    pub(crate) shape: Vec<usize>,
    data: &'a [u8],
}

impl<'a> Array<'a> {
    /// Parses an array in C order and checks that all its bytes are there.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Array<'a>, String> {
        let rest = bytes.strip_prefix(MAGIC).ok_or("not a NumPy array")?;
        let (start, length) = match rest {
            [1, _, a, b, ..] => (4, usize::from(u16::from_le_bytes([*a, *b]))),
            [2 | 3, _, a, b, c, d, ..] => (6, u32::from_le_bytes([*a, *b, *c, *d]) as usize),
            _ => return Err("an unknown version of NumPy's format".to_string()),
        };
        if length > MAX_HEADER {
            return Err(format!("a NumPy header of {length} bytes"));
        }
        let header = rest.get(start..start + length).ok_or("the NumPy header is truncated")?;
        let header = std::str::from_utf8(header).map_err(|_| "the NumPy header is not text")?;
        let descr = quoted(after(header, "'descr':")?)?;
        if !after(header, "'fortran_order':")?.starts_with("False") {
            return Err("the array is in Fortran order".to_string());
        }
        let shape = tuple(after(header, "'shape':")?)?;
        let array = Array { descr, shape, data: &rest[start + length..] };
        let expected = array.num_values()?.checked_mul(array.value_size()?);
        if expected != Some(array.data.len()) {
            let (shape, found) = (&array.shape, array.data.len());
            return Err(format!("an array of shape {shape:?} and type {descr} with {found} bytes"));
        }
        Ok(array)
    }

    fn num_values(&self) -> Result<usize, String> {
        let product = self.shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
        product.ok_or_else(|| format!("an array of shape {:?}", self.shape))
    }

    fn value_size(&self) -> Result<usize, String> {
        let unknown = || format!("an array of type {}", self.descr);
        match self.descr {
            "|u1" => Ok(1),
            "<f2" => Ok(2),
            "<f4" | "<i4" => Ok(4),
            "<f8" | "<i8" => Ok(8),
            text => {
                let width: usize =
                    text.strip_prefix("<U").and_then(|w| w.parse().ok()).ok_or_else(unknown)?;
                width.checked_mul(4).ok_or_else(unknown)
            }
        }
    }

    /// The values of an array of 16-, 32- or 64-bit floats.
    pub(crate) fn floats(&self) -> Result<Vec<f32>, String> {
        let data = self.data;
        match self.descr {
            "<f2" => Ok(data.as_chunks().0.iter().map(|&b| f16::from_le_bytes(b).to_f32()).collect()),
            "<f4" => Ok(data.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect()),
            "<f8" => Ok(data.as_chunks().0.iter().map(|&b| f64::from_le_bytes(b) as f32).collect()),
            descr => Err(format!("values of type {descr}, expected floats (f2, f4 or f8)")),
        }
    }

    /// The values of an array of non-negative integers.
    pub(crate) fn integers(&self) -> Result<Vec<usize>, String> {
        let data = self.data;
        let signed: Vec<i64> = match self.descr {
            "<i4" => data.as_chunks().0.iter().map(|&b| i64::from(i32::from_le_bytes(b))).collect(),
            "<i8" => data.as_chunks().0.iter().map(|&b| i64::from_le_bytes(b)).collect(),
            descr => return Err(format!("values of type {descr}, expected integers (i4 or i8)")),
        };
        signed
            .into_iter()
            .map(|v| usize::try_from(v).map_err(|_| format!("the negative number {v}")))
            .collect()
    }

    /// The values of an array of strings.
    pub(crate) fn strings(&self) -> Result<Vec<String>, String> {
        if !self.descr.starts_with("<U") {
            return Err(format!("values of type {}, expected strings (U)", self.descr));
        }
        let size = self.value_size()?;
        if size == 0 {
            return Ok(vec![String::new(); self.num_values()?.min(256)]);
        }
        let text = |bytes: &[u8]| {
            let codes =
                bytes.as_chunks().0.iter().map(|&b| u32::from_le_bytes(b)).take_while(|&code| code != 0);
            codes.map(|code| char::from_u32(code).ok_or(format!("the character code {code}"))).collect()
        };
        self.data.chunks_exact(size).map(text).collect()
    }
}

fn after<'a>(header: &'a str, key: &str) -> Result<&'a str, String> {
    let start = header.find(key).ok_or_else(|| format!("a NumPy header without {key}"))?;
    Ok(header[start + key.len()..].trim_start())
}

fn quoted(text: &str) -> Result<&str, String> {
    let mut parts = text.strip_prefix('\'').ok_or("a NumPy type that is not text")?.split('\'');
    parts.next().ok_or_else(|| "a NumPy type that does not end".to_string())
}

fn tuple(text: &str) -> Result<Vec<usize>, String> {
    let inside = text
        .strip_prefix('(')
        .and_then(|text| text.split(')').next())
        .ok_or("a NumPy shape that is no tuple")?;
    let sizes = inside.split(',').map(str::trim).filter(|size| !size.is_empty());
    sizes.map(|size| size.parse().map_err(|_| format!("the NumPy size `{size}`"))).collect()
}
