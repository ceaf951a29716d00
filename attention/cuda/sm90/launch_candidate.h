#pragma once
/// INTERNAL. Launches kernels with the tiles in candidates.h.
#include <gradtile/attention/cuda/sm90/candidates.h>
#include <gradtile/attention/cuda/sm90/parameters.h>

namespace gradtile::attention::cuda {

/// Calls f<i>() with i = `number`, an index into `count` candidates.
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

/// Like launch_hopper_forward, with tiles hopper_forward_candidates(head_dim)[number]. Each instantiation is
/// compiled in its own source file.
template <int head_dim>
void launch_hopper_forward_candidate(int number, const Tensor& q, const Tensor& k, const Tensor& v,
                                     const Tensor& o, const HopperForwardParameters& parameters,
                                     const Context& ctx);
/// Like launch_hopper_backward, with tiles hopper_backward_candidates(head_dim)[number].
template <int head_dim>
void launch_hopper_backward_candidate(int number, const HopperBackwardTensors& tensors,
                                      const Bits16BackwardParameters& parameters, const Context& ctx);

}  // namespace gradtile::attention::cuda
