// Rotary position embedding on the GPU.
#include <gradtile/layers/internal/rope_backend.h>
#include <gradtile/layers/device/map_rows.cuh>

namespace gradtile::cuda {
namespace {

constexpr int rope_threads = 256;

template <class T>
struct Rotation {
    T* x;
    const Accumulator<T>*cosines, *sines;  // [length, half]
    std::int64_t length, heads, half;
    std::int64_t sample_stride, token_stride, head_stride;
    Accumulator<T> sign;   // -1: inverse rotation
    std::int64_t vectors;  // pairs (x[i], x[i + half]), divided by the vector length
};

/// Each thread rotates n pairs (x[i], x[i + half]) of one head.
template <int n, class T>
__global__ void __launch_bounds__(rope_threads) rotate_kernel(const Rotation<T> r) {
    using S = Accumulator<T>;
    const std::int64_t index = blockIdx.x * std::int64_t{rope_threads} + threadIdx.x;
    if (index >= r.vectors) return;
    const std::int64_t per_head = r.half / n;
    const std::int64_t head_index = device::quotient(index, per_head),
                       i = (index - head_index * per_head) * n;
    const std::int64_t token_index = device::quotient(head_index, r.heads);
    const std::int64_t head = head_index - token_index * r.heads;
    const std::int64_t sample = device::quotient(token_index, r.length);
    const std::int64_t token = token_index - sample * r.length;

    T* a = r.x + sample * r.sample_stride + token * r.token_stride + head * r.head_stride + i;
    T* b = a + r.half;
    S u[n], v[n], cosine[n], sine[n];
    device::load<n>(u, a);
    device::load<n>(v, b);
    device::load<n>(cosine, r.cosines + token * r.half + i);
    device::load<n>(sine, r.sines + token * r.half + i);
    S rotated_u[n], rotated_v[n];
#pragma unroll
    for (int k = 0; k < n; ++k) {
        const S s = r.sign * sine[k];
        rotated_u[k] = u[k] * cosine[k] - v[k] * s;
        rotated_v[k] = v[k] * cosine[k] + u[k] * s;
    }
    device::store<n>(a, rotated_u);
    device::store<n>(b, rotated_v);
}

}  // namespace

void rope_rotate(const Context& ctx, const Tensor& x, const Tensor& cosines, const Tensor& sines,
                 bool inverse) {
    visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
        using S = Accumulator<T>;
        Rotation<T> rotation{.x = x.data<T>(),
                             .cosines = cosines.data<S>(),
                             .sines = sines.data<S>(),
                             .length = x.size(1),
                             .heads = x.size(2),
                             .half = x.size(3) / 2,
                             .sample_stride = x.stride(0),
                             .token_stride = x.stride(1),
                             .head_stride = x.stride(2),
                             .sign = inverse ? S(-1) : S(1),
                             .vectors = x.elements() / 2};
        const auto run = [&]<int n>(std::integral_constant<int, n>) {
            rotation.vectors /= n;
            launch(ctx, rotate_kernel<n, T>, blocks_for(rotation.vectors, rope_threads), Block{rope_threads},
                   rotation);
        };
        constexpr int n = device::vector_length<T>;
        // Rows of the tables are on 16-byte boundaries for every `start`, if a row has whole vectors.
        const bool vectors = device::on_vector_boundary(x) && rotation.half % n == 0 &&
                             rotation.sample_stride % n == 0 && rotation.token_stride % n == 0 &&
                             rotation.head_stride % n == 0;
        if (vectors) {
            run(std::integral_constant<int, n>{});
        } else {
            run(std::integral_constant<int, 1>{});
        }
    });
}

}  // namespace gradtile::cuda
