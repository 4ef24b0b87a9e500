//! Gradients on their way through host memory: copied into pieces of a size that suits a network, summed over the ranks by
//! whoever carries them, and taken apart again.

use candle_core::{DType, Tensor, Var};

use crate::error::Result;

/// Copies gradients into buckets of at most `bucket` numbers (more only for a single large parameter), has each
/// summed, and takes them apart again.
pub(crate) fn sum_in_buckets(
    gradients: &[Tensor],
    share: f32,
    variables: &[(String, Var)],
    bucket: usize,
    mut sum: impl FnMut(&mut [f32]),
) -> Result<Vec<Tensor>> {
    let mut sums = Vec::with_capacity(variables.len());
    let mut values: Vec<f32> = Vec::new();
    while let Some((_, next)) = variables.get(sums.len()) {
        let first = sums.len();
        let (mut last, mut more) = (first, next.elem_count());
        values.clear();
        while more > 0 {
            match gradients.get(last) {
                Some(gradient) => {
                    let gradient = gradient.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
                    values.extend(gradient.into_iter().map(|value| share * value));
                }
                None => values.resize(values.len() + more, 0.0),
            }
            last += 1;
            let fits = |(_, variable): &&(String, Var)| values.len() + variable.elem_count() <= bucket;
            more = variables.get(last).filter(fits).map_or(0, |(_, variable)| variable.elem_count());
        }
        sum(&mut values);
        let mut rest = values.as_slice();
        for (_, variable) in &variables[first..last] {
            let (own, behind) = rest.split_at(variable.elem_count());
            let own = Tensor::from_slice(own, variable.dims(), variable.device())?;
            sums.push(own.to_dtype(variable.dtype())?);
            rest = behind;
        }
    }
    Ok(sums)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn buckets_hold_whole_parameters_and_give_each_its_own_sum() {
        let variable = |length: usize| {
            let zeros = Tensor::zeros(length, DType::F32, &Device::Cpu).unwrap();
            (length.to_string(), Var::from_tensor(&zeros).unwrap())
        };
        let variables = [3, 2, 9, 1, 4].map(variable);
        let gradients: Vec<Tensor> = (variables.iter().zip(1..))
            .map(|((_, v), i)| Tensor::full(i as f32, v.dims(), &Device::Cpu).unwrap())
            .collect();
        let mut lengths = Vec::new();
        // Another rank that has the same.
        let sums = sum_in_buckets(&gradients, 0.25, &variables, 5, |values| {
            lengths.push(values.len());
            values.iter_mut().for_each(|value| *value *= 2.0);
        });
        assert_eq!(lengths, [5, 9, 5]);
        for ((sum, gradient), (_, variable)) in sums.unwrap().iter().zip(&gradients).zip(&variables) {
            assert_eq!(sum.dims(), variable.dims());
            let halves = (gradient * 0.5).unwrap();
            assert_eq!(sum.to_vec1::<f32>().unwrap(), halves.to_vec1::<f32>().unwrap());
        }
    }

    #[test]
    fn a_rank_without_images_adds_nothing() {
        let ones = Tensor::ones((2, 3), DType::F32, &Device::Cpu).unwrap();
        let variables = [("w".to_owned(), Var::from_tensor(&ones).unwrap())];
        let sums = sum_in_buckets(&[], 0.0, &variables, 100, |values| assert_eq!(values, [0.0; 6])).unwrap();
        assert_eq!(sums[0].dims(), [2, 3]);
    }
}
