#pragma once
/// Documents that lie one after the other in a batch of token windows.
#include <gradtile/core/tensor.h>

namespace gradtile {

/// Attention stays within a document, and positions start again at 0. Both tensors have fixed shapes, so that
/// a captured CUDA graph can be replayed with other documents.
struct Documents {
    /// int32 [D + 1]. Document d has the tokens offsets[d] to offsets[d + 1] - 1 of the batch [B,T] in
    /// row-major order. The last offset is B T; repetitions of it are empty documents.
    Tensor offsets = {};
    Tensor positions = {};  ///< int32 [B,T]: index of each token in its document

    explicit operator bool() const { return offsets.defined(); }
};

}  // namespace gradtile
