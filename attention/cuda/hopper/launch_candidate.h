#pragma once
/// INTERNAL. Launches the kernels of candidates.h.
#include <gradtile/attention/cuda/hopper/candidates.h>
#include <gradtile/attention/cuda/hopper/parameters.h>

namespace gradtile::attention::cuda {

/// Calls f<i>() for the number `i` = `number` of a list of `count` candidates.
template <int count, class F>
void visit_candidate(int number, F&& f) {
    check(number >= 0 && number < count, "attention: tiles ", number, "; expected 0 to ", count - 1);
    const auto visit = [&]<int i>(auto&& self) {
        if constexpr (i < count) {
            if (number == i) return f.template operator()<i>();
            self.template operator()<i + 1>(self);
        }
    };
    visit.template operator()<0>(visit);
}

/// Like launch_hopper_forward, with tiles `number` of hopper_forward_candidates(head_dim). Each of these
/// functions is compiled in a source file of its own.
template <int head_dim>
void launch_hopper_forward_candidate(int number, const Tensor& q, const Tensor& k, const Tensor& v,
                                     const Tensor& o, const HopperForwardParameters& parameters,
                                     const Context& ctx);
/// Like launch_hopper_backward, with tiles `number` of hopper_backward_candidates(head_dim).
template <int head_dim>
void launch_hopper_backward_candidate(int number, const HopperBackwardTensors& tensors,
                                      const Bits16BackwardParameters& parameters, const Context& ctx);

}  // namespace gradtile::attention::cuda
