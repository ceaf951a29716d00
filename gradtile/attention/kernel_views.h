#pragma once
/// INTERNAL. Tensors as kernels take them: directly where their columns are adjacent, through scratch where
/// not.
#include <gradtile/core/tensor_ops.h>

namespace gradtile::attention {

/// Rows may lie anywhere; kernels want the elements of a row side by side.
inline bool has_adjacent_columns(const Tensor& x) {
    return x.stride(-1) == 1 || x.size(-1) == 1;
}

/// An input in a layout kernels read: itself, or a copy in scratch when its columns are not adjacent.
class Readable {
  public:
    Readable(const Context& ctx, const Tensor& x) : source_(x), tensor_(x) {
        if (!has_adjacent_columns(x)) tensor_ = empty(ctx, x.shape(), x.dtype());
    }
    void load(const Context& ctx) const {
        if (!has_adjacent_columns(source_)) copy(ctx, tensor_, source_);
    }
    const Tensor& tensor() const { return tensor_; }

  private:
    Tensor source_;
    Tensor tensor_;
};

/// An output in a layout kernels write: itself, or scratch (of the accumulator's dtype, say) copied at the
/// end.
class Writable {
  public:
    Writable(const Context& ctx, const Tensor& x, DType dtype) : target_(x), tensor_(x) {
        direct_ = has_adjacent_columns(x) && x.dtype() == dtype;
        if (!direct_) tensor_ = empty(ctx, x.shape(), dtype);
    }
    void store(const Context& ctx) const {
        if (!direct_) copy(ctx, target_, tensor_);
    }
    const Tensor& tensor() const { return tensor_; }

  private:
    Tensor target_;
    Tensor tensor_;
    bool direct_ = false;
};

}  // namespace gradtile::attention
