#pragma once
/// INTERNAL. Adapts tensors to the layouts that kernels support. Kernels need the elements of a row side by
/// side; tensors with other layouts are copied to or from scratch memory.
#include <gradtile/core/tensor_ops.h>

namespace gradtile::attention {

/// Whether the elements of a row are side by side. The rows themselves may be anywhere.
inline bool has_adjacent_columns(const Tensor& x) {
    return x.stride(-1) == 1 || x.size(-1) == 1;
}

/// An input in a layout that kernels can read: the tensor itself if `direct`, else a copy in scratch memory,
/// which load() fills.
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

/// An output in a layout and dtype that kernels can write: the tensor itself if `direct`, else scratch
/// memory, which store() copies to the tensor.
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
