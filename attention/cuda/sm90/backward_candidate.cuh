#pragma once
/// Backward kernels with the tiles in candidates.h.
#include <gradtile/attention/cuda/sm90/launch_candidate.h>
#include <gradtile/attention/cuda/sm90/backward.cuh>

namespace gradtile::attention::cuda {

template <int head_dim>
void launch_hopper_backward_candidate(int number, const HopperBackwardTensors& tensors,
                                      const Bits16BackwardParameters& parameters, const Context& ctx) {
    constexpr auto count = static_cast<int>(hopper_backward_candidates(head_dim).size());
    visit_candidate<count>(number, [&]<int i>() {
        using Policy = HopperBackwardPolicy<head_dim, /*in_turns=*/false, /*is_packed=*/false,
                                            HopperRule::products, hopper_backward_candidates(head_dim)[i]>;
        launch_hopper_backward_kernels<bfloat16, Policy>(tensors, parameters, ctx);
    });
}

}  // namespace gradtile::attention::cuda
