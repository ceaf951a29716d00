// Sums with learned factors on the GPU.
#include <gradtile/layers/internal/weighted_sum_backend.h>
#include <gradtile/core/cuda/device/reduce.cuh>
#include <gradtile/layers/device/map_rows.cuh>

namespace gradtile::cuda {
namespace {

using namespace device;

constexpr int sum_threads = 256;
/// Blocks of the backward pass: at most 4 on each of 132 multiprocessors. The count is the same for every
/// GPU, so that memory plans and results do not depend on it.
constexpr std::int64_t max_blocks = 132 * 4, elements_per_block = 4096;

/// y = sum_k factor_k x_k
template <class S, int terms>
struct SumWithFactors {
    S factor[terms];

    template <int n>
    __device__ void operator()(S (&y)[1][n], const S (&x)[terms][n], Place) const {
#pragma unroll
        for (int i = 0; i < n; ++i) {
            y[0][i] = factor[0] * x[0][i];
#pragma unroll
            for (int k = 1; k < terms; ++k) y[0][i] += factor[k] * x[k][i];
        }
    }
};
template <class T, int terms>
struct SumTerms {
    const T* factor[terms];

    __device__ SumWithFactors<Accumulator<T>, terms> prepared() const {
        SumWithFactors<Accumulator<T>, terms> op;
#pragma unroll
        for (int k = 0; k < terms; ++k) op.factor[k] = device::convert<Accumulator<T>>(*factor[k]);
        return op;
    }
};

template <class T, int terms>
struct SumGradients {
    const T* dy;
    const T* x[terms];
    const T* factor[terms];
    T* gradient[terms];  ///< the first one may be dy
    bool adds[terms];
    Accumulator<T>* partials;  ///< [terms, blocks]
    std::int64_t vectors;      ///< groups of n elements
};

/// Writes the terms' gradients, and the block's sums of dy x_k to partials[k][block].
template <int n, class T, int terms>
__global__ void __launch_bounds__(sum_threads, 4) sum_backward_kernel(const SumGradients<T, terms> p) {
    using S = Accumulator<T>;
    await_predecessor();
    S factor[terms], sums[terms] = {};
#pragma unroll
    for (int k = 0; k < terms; ++k) factor[k] = device::convert<S>(*p.factor[k]);
    const std::int64_t step = gridDim.x * std::int64_t{sum_threads};
    for (std::int64_t index = blockIdx.x * std::int64_t{sum_threads} + threadIdx.x; index < p.vectors;
         index += step) {
        S dy[n], x[terms][n], old[terms][n];
        load<n>(dy, p.dy + index * n);
#pragma unroll
        for (int k = 0; k < terms; ++k) {
            load<n>(x[k], p.x[k] + index * n);
            if (p.adds[k]) load<n>(old[k], p.gradient[k] + index * n);
        }
#pragma unroll
        for (int k = 0; k < terms; ++k) {
            S value[n];
#pragma unroll
            for (int i = 0; i < n; ++i) {
                sums[k] += dy[i] * x[k][i];
                value[i] = factor[k] * dy[i];
                if (p.adds[k]) value[i] += old[k][i];
            }
            store<n>(p.gradient[k] + index * n, value);
        }
    }
#pragma unroll
    for (int k = 0; k < terms; ++k) {
        const S sum = reduce_team<sum_threads>(sums[k], Sum{});
        if (threadIdx.x == 0) p.partials[k * std::int64_t{gridDim.x} + blockIdx.x] = sum;
    }
}

/// Calls f(std::integral_constant<int, number of terms>).
template <class F>
void with_term_count(std::size_t count, F&& f) {
    switch (count) {
        case 1:
            return f(std::integral_constant<int, 1>{});
        case 2:
            return f(std::integral_constant<int, 2>{});
        case 3:
            return f(std::integral_constant<int, 3>{});
        default:
            throw Error(concat("weighted_sum: ", count, " terms on a GPU; expected 1 to 3"));
    }
}

}  // namespace

void weighted_sum(const Context& ctx, const Tensor& y, std::span<const WeightedTerm> terms) {
    visit_floating(y.dtype(), [&]<class T>(TypeTag<T>) {
        with_term_count(terms.size(), [&]<int count>(std::integral_constant<int, count>) {
            SumTerms<T, count> op;
            std::array<DeviceRows<const T>, std::size_t{count}> in;
            for (std::size_t k = 0; k < terms.size(); ++k) {
                in[k] = DeviceRows<const T>(terms[k].x, "weighted_sum");
                op.factor[k] = terms[k].factor.template data<T>();
            }
            map_rows<vector_length<T>, T, std::size_t{count}, 1>(ctx, {DeviceRows<T>(y, "weighted_sum")}, in,
                                                                 op);
        });
    });
}

std::int64_t weighted_sum_parts(std::int64_t elements) {
    return std::min(max_blocks, ceil_div(elements, elements_per_block));
}

void weighted_sum_backward(const Context& ctx, const Tensor& partials, const Tensor& dy,
                           std::span<const WeightedTerm> terms) {
    visit_floating(dy.dtype(), [&]<class T>(TypeTag<T>) {
        with_term_count(terms.size(), [&]<int count>(std::integral_constant<int, count>) {
            SumGradients<T, count> p{};
            p.dy = dy.data<T>();
            p.partials = partials.data<Accumulator<T>>();
            bool in_vectors = dy.elements() % vector_length<T> == 0 && on_vector_boundary(dy);
            for (std::size_t k = 0; k < terms.size(); ++k) {
                p.x[k] = terms[k].x.template data<T>();
                p.factor[k] = terms[k].factor.template data<T>();
                p.gradient[k] = terms[k].gradient.template data<T>();
                p.adds[k] = terms[k].adds_to_gradient;
                in_vectors &= on_vector_boundary(terms[k].x) && on_vector_boundary(terms[k].gradient);
            }
            const auto run = [&]<int n>(std::integral_constant<int, n>) {
                p.vectors = dy.elements() / n;
                launch(ctx, sum_backward_kernel<n, T, count>, blocks_for(partials.size(1), 1),
                       Block{.threads = sum_threads, .starts_early = true}, p);
            };
            in_vectors ? run(std::integral_constant<int, vector_length<T>>{})
                       : run(std::integral_constant<int, 1>{});
        });
    });
}

}  // namespace gradtile::cuda
