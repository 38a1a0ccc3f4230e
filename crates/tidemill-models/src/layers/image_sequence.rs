//! Images as sequences of pixels, for attention.

use tch::Tensor;

/// [N, C, H, W] -> [N, H W, C].
pub fn to_sequence(x: &Tensor) -> Tensor {
    x.flatten(2, 3).transpose(1, 2)
}

/// [N, H W, C] -> [N, C, H, W], with the sizes and memory format of `like`. A view of the sequence
/// would be channels-last, and with it the outputs of later layers; where the other tensors are
/// contiguous, layers would have to convert one into the other.
pub fn to_image(x: &Tensor, like: &Tensor) -> Tensor {
    let image = x.transpose(1, 2).reshape(like.size());
    if like.is_contiguous() { image.contiguous() } else { image }
}
