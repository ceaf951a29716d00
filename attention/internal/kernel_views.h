#pragma once
/// INTERNAL. Adapts tensors to the layouts that kernels support. Kernels need adjacent elements in a row;
/// tensors with other layouts are copied to or from scratch memory.
#include <gradtile/core/internal/data_or_null.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile::attention {

/// Whether a row's elements are adjacent. The other axes' strides do not matter.
inline bool has_adjacent_columns(const Tensor& x) {
    return x.stride(-1) == 1 || x.size(-1) == 1;
}

/// Returns x with a batch axis of size 1 in front if its rank is below `batched_rank` (4 for q, k, v and o, 3
/// for LSE): backends see packed sequences as one batch. An undefined x stays undefined.
inline Tensor with_batch_axis(const Tensor& x, int batched_rank) {
    if (!x.defined() || x.rank() == batched_rank) return x;
    return batched_rank == 3 ? x.expand({1, x.size(0), x.size(1)})
                             : x.expand({1, x.size(0), x.size(1), x.size(2)});
}

/// A bias or its gradient as backends see it: [B, Hq, Sq, Sk], or [1, Hq, 1, total keys] for rank 2, which
/// packed sequences have. An undefined x stays undefined.
inline Tensor with_bias_axes(const Tensor& x) {
    return x.defined() && x.rank() == 2 ? x.expand({1, 1, x.size(0), x.size(1)}).transpose(1, 2) : x;
}

/// x's shape with the columns rounded up to a multiple of `multiple`.
inline Shape with_padded_columns(const Tensor& x, std::int64_t multiple) {
    Shape shape = x.shape();
    if (multiple > 1) shape[x.rank() - 1] = (x.size(-1) + multiple - 1) / multiple * multiple;
    return shape;
}

/// An input in a layout that kernels can read: the tensor itself if `direct`, else a copy in scratch memory,
/// which load() fills. Zeros pad the copy's columns to a multiple of `column_multiple`.
class Readable {
  public:
    Readable(const Context& ctx, const Tensor& x, bool direct, std::int64_t column_multiple = 1)
        : source_(x),
          tensor_(direct ? x : empty(ctx, with_padded_columns(x, column_multiple), x.dtype())),
          direct_(direct) {}
    Readable(const Context& ctx, const Tensor& x) : Readable(ctx, x, has_adjacent_columns(x)) {}
    void load(const Context& ctx) const {
        if (direct_) return;
        if (tensor_.size(-1) == source_.size(-1)) return copy(ctx, tensor_, source_);
        fill(ctx, tensor_, 0);
        copy(ctx, tensor_.slice(tensor_.rank() - 1, 0, source_.size(-1)), source_);
    }
    const Tensor& tensor() const { return tensor_; }

  private:
    Tensor source_, tensor_;
    bool direct_;
};

/// Returns a contiguous tensor: x itself or a copy. An undefined x stays undefined.
inline Readable contiguous(const Context& ctx, const Tensor& x) {
    return {ctx, x, !x.defined() || x.is_contiguous()};
}

/// An output in a layout and dtype that kernels can write: the tensor itself if `direct`, else scratch
/// memory, which store() copies to the tensor, without the columns that pad it to `column_multiple`.
class Writable {
  public:
    Writable(const Context& ctx, const Tensor& x, DType dtype, bool direct, std::int64_t column_multiple = 1)
        : target_(x),
          tensor_(direct ? x : empty(ctx, with_padded_columns(x, column_multiple), dtype)),
          direct_(direct) {}
    Writable(const Context& ctx, const Tensor& x, DType dtype)
        : Writable(ctx, x, dtype, has_adjacent_columns(x) && x.dtype() == dtype) {}
    void store(const Context& ctx) const {
        if (!direct_) copy(ctx, target_, tensor_.slice(tensor_.rank() - 1, 0, target_.size(-1)));
    }
    const Tensor& tensor() const { return tensor_; }

  private:
    Tensor target_, tensor_;
    bool direct_;
};

}  // namespace gradtile::attention
