// GELU on each block of a matrix product while it is in the cache of the thread that computed it.
#include <gradtile/core/gemm_backend.h>
#include <gradtile/layers/gelu_rows_cpu.h>
#include <gradtile/layers/linear_gelu_backend.h>

namespace gradtile::cpu {
namespace {

/// Where row r of a region of the matrix x begins.
template <class T>
struct RegionRows {
    T* first;
    std::int64_t stride;

    RegionRows(const Tensor& x, const GemmRegion& region)
        : first(x.data<T>() + region.row * x.stride(0) + region.column), stride(x.stride(0)) {}
    T* operator[](std::int64_t row) const { return first + row * stride; }
};

}  // namespace

void linear_gelu_forward(const Context& ctx, const Tensor& y, const Tensor& hidden, const Tensor& x,
                         const Tensor& weight, const Tensor& bias, Gelu::Form form) {
    visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
        visit_gelu<Accumulator<T>>(form, [&]<class Form>(TypeTag<Form>) {
            gemm_then(ctx, hidden, x, weight, {.trans_b = true, .bias = bias}, [&](const GemmRegion& region) {
                const RegionRows<T> ys(y, region), hiddens(hidden, region);
                for (std::int64_t r = 0; r < region.rows; ++r)
                    gelu_row<T, Form>(ys[r], hiddens[r], region.columns);
            });
        });
    });
}

void linear_gelu_backward(const Context& ctx, const Tensor& d_hidden, const Tensor& dy, const Tensor& weight,
                          const Tensor& hidden, Gelu::Form form) {
    visit_floating(dy.dtype(), [&]<class T>(TypeTag<T>) {
        visit_gelu<Accumulator<T>>(form, [&]<class Form>(TypeTag<Form>) {
            gemm_then(ctx, d_hidden, dy, weight, {}, [&](const GemmRegion& region) {
                const RegionRows<T> d_hiddens(d_hidden, region), hiddens(hidden, region);
                for (std::int64_t r = 0; r < region.rows; ++r)
                    gelu_row_backward<T, Form>(d_hiddens[r], d_hiddens[r], hiddens[r], region.columns);
            });
        });
    });
}

}  // namespace gradtile::cpu
