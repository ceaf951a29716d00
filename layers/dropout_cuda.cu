// Dropout and the residual sum on the GPU.
#include <gradtile/layers/internal/dropout_backend.h>
#include <gradtile/layers/device/dropout_factors.cuh>
#include <gradtile/layers/device/map_rows.cuh>

namespace gradtile::cuda {
namespace {

using device::Place;
template <class T>
using Output = device::DeviceRows<T>;
template <class T>
using Input = device::DeviceRows<const T>;

/// y = branch * factor (+ x)
template <bool residual>
struct DropWithKey {
    device::DropoutFactors factors_of;
    Philox::Key key;

    template <class S, int n>
    __device__ void operator()(S (&y)[1][n], const S (&in)[residual ? 2 : 1][n], Place place) const {
        S factors[n];
        factors_of.draw(factors, key, place);
#pragma unroll
        for (int i = 0; i < n; ++i) {
            y[0][i] = in[0][i] * factors[i];
            if constexpr (residual) y[0][i] += in[1][i];
        }
    }
};

template <bool residual>
struct Drop {
    device::DropoutFactors factors_of;

    explicit Drop(const DropoutMask& mask) : factors_of(mask) {}
    __device__ DropWithKey<residual> prepared() const { return {factors_of, factors_of.mask.key()}; }
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
            map_rows<device::dropout_group, T, 1, 1>(ctx, {ys}, {branches}, Drop<false>(mask));
        } else if (mask.threshold != 0) {
            map_rows<device::dropout_group, T, 2, 1>(ctx, {ys}, {branches, Input<T>(x, "dropout")},
                                                     Drop<true>(mask));
        } else {
            map_rows<device::dropout_group, T, 2, 1>(ctx, {ys}, {branches, Input<T>(x, "dropout")}, Add{});
        }
    });
}

}  // namespace gradtile::cuda
