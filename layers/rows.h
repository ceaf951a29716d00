#pragma once
/// A tensor [.., C] as a list of rows with C contiguous elements, for operators over the last axis.
#include <algorithm>

#include <gradtile/core/host_device.h>
#include <gradtile/core/tensor.h>

namespace gradtile {

/// Where each row in a view [.., C] starts. The leading axes are merged into at most two groups. This allows
/// a dense tensor, a slice along its last axis, and a head group [B,S,H,D] in a packed projection.
struct RowLayout {
    std::int64_t rows = 0;
    std::int64_t width = 0;
    std::int64_t inner = 1;  ///< rows in the inner group
    std::int64_t outer_stride = 0;
    std::int64_t inner_stride = 0;

    GRADTILE_HOST_DEVICE std::int64_t offset(std::int64_t row) const {
        if (row < inner) return row * inner_stride;  // avoids a division if all axes are one group
        return (row / inner) * outer_stride + (row % inner) * inner_stride;
    }
};

/// Returns x's layout. Throws Error with the name `op` unless the last axis is contiguous and the leading
/// axes can be merged into two groups.
RowLayout row_layout(const Tensor& x, const char* op);

/// Reshapes [.., columns] to a matrix [rows, columns].
inline Tensor as_matrix(const Tensor& x) {
    const std::int64_t columns = x.size(-1);
    return x.rank() == 2 ? x : x.reshape({columns == 0 ? 0 : x.elements() / columns, columns});
}

/// A tensor's rows as pointers to T, for CPU kernels.
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

/// Rows per parallel block, for operators that compute each row independently. A block has about 16,384
/// elements: enough work for a thread, and small enough for its cache. Depends on the shape only.
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
