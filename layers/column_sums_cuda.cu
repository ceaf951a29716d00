// Column sums on the GPU.
#include <gradtile/layers/internal/column_sums_backend.h>
#include <gradtile/layers/device/column_sums.cuh>

namespace gradtile::cuda {
namespace {

/// A Source for column_sums.cuh that sums a matrix's elements.
template <class T>
struct Matrix {
    template <int n>
    struct Of {
        static constexpr int inputs = 1, blocks = 6;
        const T* x;
        std::int64_t row_stride;

        __device__ device::Fetched<n, T> read(std::int64_t row, std::int64_t column) const {
            device::Fetched<n, T> fetched;
            fetched.read(x + row * row_stride + column);
            return fetched;
        }
        template <class S>
        __device__ void finish(S (&values)[n], const device::Fetched<n, T>& fetched, std::int64_t,
                               std::int64_t) const {
            fetched.values(values);
        }
    };
};

}  // namespace

void sum_columns(const Context& ctx, const Tensor& parts, const Tensor& x) {
    visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
        const bool vectors = x.stride(0) % device::vector_length<T> == 0 && device::on_vector_boundary(x);
        sum_columns_of<T, Matrix<T>::template Of>(ctx, parts, x.size(0), vectors,
                                                  static_cast<const T*>(x.data<T>()), x.stride(0));
    });
}

void add_parts(const Context& ctx, const GradientTarget& total, const Tensor& parts) {
    const auto add = [&]<class S>(TypeTag<S>) {
        add_partials<S, 1>(ctx, {total}, parts.data<S>(), parts.size(0));
    };
    total.grad.dtype() == DType::f64 ? add(TypeTag<double>{}) : add(TypeTag<float>{});
}

}  // namespace gradtile::cuda
