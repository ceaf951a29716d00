#pragma once
/// A tensor [.., C] seen as rows of C contiguous elements: what every operator over the last axis walks
/// along.
#include <algorithm>

#include <gradtile/core/host_device.h>
#include <gradtile/core/tensor.h>

namespace gradtile {

/// Where row r of a [.., C] view starts. The leading axes are merged into at most two groups, which covers a
/// dense tensor, a slice of its last axis, and one head group [B,S,H,D] of a packed projection.
struct RowLayout {
    std::int64_t rows = 0;
    std::int64_t width = 0;
    std::int64_t inner = 1;  ///< rows of the inner group
    std::int64_t outer_stride = 0;
    std::int64_t inner_stride = 0;

    GRADTILE_HOST_DEVICE std::int64_t offset(std::int64_t row) const {
        if (row < inner) return row * inner_stride;  // no division when all axes merge into one group
        return (row / inner) * outer_stride + (row % inner) * inner_stride;
    }
};

/// Throws Error naming `op` unless the last axis is contiguous and the leading ones merge into two groups.
RowLayout row_layout(const Tensor& x, const char* op);

/// Typed rows of a tensor, for the inner loops of CPU kernels.
template <class T>
class TensorRows {
  public:
    TensorRows(const Tensor& x, const char* op) : data_(x.data<T>()), layout_(row_layout(x, op)) {}
    T* operator[](std::int64_t row) const { return data_ + layout_.offset(row); }
    std::int64_t count() const { return layout_.rows; }
    std::int64_t width() const { return layout_.width; }

  private:
    T* data_;
    RowLayout layout_;
};

/// Rows of one parallel block for operators that treat each row alone: about 16,384 elements, so that a block
/// is worth a thread's while and stays in its cache. Depends on the shape only.
inline std::int64_t rows_per_block(std::int64_t width) {
    constexpr std::int64_t elements = 1 << 14;
    return std::max<std::int64_t>(1, elements / std::max<std::int64_t>(1, width));
}

/// Calls body(row) for every row, in parallel blocks.
template <class Body>
void for_rows(const Context& ctx, std::int64_t rows, std::int64_t width, Body&& body) {
    parallel_ranges(ctx, rows, rows_per_block(width), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t r = begin; r < end; ++r) body(r);
    });
}

}  // namespace gradtile
