// Dropout and the residual sum on the GPU.
#include <gradtile/layers/dropout_backend.h>
#include <gradtile/layers/device/map_rows.cuh>

namespace gradtile::cuda {
namespace {

using device::Place;
template <class T>
using Output = device::Rows<T>;
template <class T>
using Input = device::Rows<const T>;

constexpr int group = 8;  // columns that one Philox draw decides about

/// The mask's factors for n columns: scale where kept, 0 where dropped.
template <class S, int n>
__device__ __forceinline__ void draw_factors(S (&factors)[n], const DropoutMask& mask,
                                             const device::Divisor& tokens, Philox::Key key, Place at) {
    static_assert(n == group || n == 1);
    const std::int64_t sample = tokens.quotient_of(at.row);
    const Philox::Counter words = Philox::draw({static_cast<std::uint32_t>(at.column / group),
                                                static_cast<std::uint32_t>(at.row - sample * mask.tokens), 0,
                                                static_cast<std::uint32_t>(mask.first_sample + sample)},
                                               key);
    const S scale = static_cast<S>(mask.scale);
    if constexpr (n == group) {
#pragma unroll
        for (int i = 0; i < n; ++i)
            factors[i] = (words[i / 2] >> 16 * (i % 2) & 0xffffu) >= mask.threshold ? scale : S(0);
    } else {
        const int i = static_cast<int>(at.column % group);
        const std::uint32_t word = i < 4 ? (i < 2 ? words[0] : words[1]) : (i < 6 ? words[2] : words[3]);
        factors[0] = (word >> 16 * (i % 2) & 0xffffu) >= mask.threshold ? scale : S(0);
    }
}

/// y = branch * factor (+ x)
template <bool residual>
struct DropWithKey {
    DropoutMask mask;
    device::Divisor tokens;
    Philox::Key key;

    template <class S, int n>
    __device__ void operator()(S (&y)[1][n], const S (&in)[residual ? 2 : 1][n], Place at) const {
        S factors[n];
        draw_factors(factors, mask, tokens, key, at);
#pragma unroll
        for (int i = 0; i < n; ++i) {
            y[0][i] = in[0][i] * factors[i];
            if constexpr (residual) y[0][i] += in[1][i];
        }
    }
};

template <bool residual>
struct Drop {
    DropoutMask mask;
    device::Divisor tokens;

    explicit Drop(const DropoutMask& its) : mask(its), tokens(its.tokens) {}
    __device__ DropWithKey<residual> prepared() const { return {mask, tokens, mask.key()}; }
};

struct Add {
    template <class S, int n>
    __device__ void operator()(S (&y)[1][n], const S (&in)[2][n], Place) const {
#pragma unroll
        for (int i = 0; i < n; ++i) y[0][i] = in[0][i] + in[1][i];
    }
};

}  // namespace

void dropout(const Context& ctx, const Tensor& y, const Tensor& x, const Tensor& branch,
             const DropoutMask& mask) {
    visit_floating(y.dtype(), [&]<class T>(TypeTag<T>) {
        const Output<T> ys(y, "dropout");
        const Input<T> branches(branch, "dropout");
        if (!x.defined()) {
            map_rows<group, T, 1, 1>(ctx, {ys}, {branches}, Drop<false>(mask));
        } else if (mask.threshold != 0) {
            map_rows<group, T, 2, 1>(ctx, {ys}, {branches, Input<T>(x, "dropout")}, Drop<true>(mask));
        } else {
            map_rows<group, T, 2, 1>(ctx, {ys}, {branches, Input<T>(x, "dropout")}, Add{});
        }
    });
}

}  // namespace gradtile::cuda
