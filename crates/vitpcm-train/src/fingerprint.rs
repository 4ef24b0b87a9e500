//! Numbers that tell data sets, settings and weights apart (FNV-1a). They stay in saved states: not to be changed.

use candle_core::{DType, Var};

use crate::error::Result;

/// The fingerprint of bytes.
pub(crate) fn of_bytes(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

/// The fingerprint of texts, with a byte between them that none holds.
pub(crate) fn of_parts<'a>(parts: impl Iterator<Item = &'a [u8]>) -> u64 {
    of_bytes(parts.flat_map(|part| part.iter().copied().chain([255])))
}

/// The fingerprint of weights, to the last bit.
pub(crate) fn of_weights(variables: &[(String, Var)]) -> Result<u64> {
    let mut bytes = Vec::with_capacity(8 * variables.len());
    for (_, variable) in variables {
        let values = variable.as_tensor().detach().to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        bytes.extend(of_bytes(values.into_iter().flat_map(f32::to_le_bytes)).to_le_bytes());
    }
    Ok(of_bytes(bytes.into_iter()))
}
