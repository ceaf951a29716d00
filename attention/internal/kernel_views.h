#pragma once
/// INTERNAL. Tensors as kernels take them: directly where their columns are adjacent, through scratch where
/// not.
#include <gradtile/core/tensor_ops.h>

namespace gradtile::attention {

/// Rows may lie anywhere; kernels want the elements of a row side by side.
inline bool has_adjacent_columns(const Tensor& x) {
    return x.stride(-1) == 1 || x.size(-1) == 1;
}

/// An input in a layout kernels read: itself, or a copy in scratch when it is not `direct`.
class Readable {
  public:
    Readable(const Context& ctx, const Tensor& x, bool direct)
        : source_(x), tensor_(direct ? x : empty(ctx, x.shape(), x.dtype())), direct_(direct) {}
    Readable(const Context& ctx, const Tensor& x) : Readable(ctx, x, has_adjacent_columns(x)) {}
    void load(const Context& ctx) const {
        if (!direct_) copy(ctx, tensor_, source_);
    }
    const Tensor& tensor() const { return tensor_; }

  private:
    Tensor source_, tensor_;
    bool direct_;
};

/// An output in a layout kernels write: itself, or scratch (of the accumulator's dtype, say) copied at the
/// end when it is not `direct`.
class Writable {
  public:
    Writable(const Context& ctx, const Tensor& x, DType dtype, bool direct)
        : target_(x), tensor_(direct ? x : empty(ctx, x.shape(), dtype)), direct_(direct) {}
    Writable(const Context& ctx, const Tensor& x, DType dtype)
        : Writable(ctx, x, dtype, has_adjacent_columns(x) && x.dtype() == dtype) {}
    void store(const Context& ctx) const {
        if (!direct_) copy(ctx, target_, tensor_);
    }
    const Tensor& tensor() const { return tensor_; }

  private:
    Tensor target_, tensor_;
    bool direct_;
};

}  // namespace gradtile::attention
