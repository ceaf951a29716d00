#pragma once
/// Forward kernels with the tiles in candidates.h.
#include <gradtile/attention/cuda/sm90/launch_candidate.h>
#include <gradtile/attention/cuda/sm90/forward.cuh>

namespace gradtile::attention::cuda {

template <int head_dim>
void launch_hopper_forward_candidate(int number, const Tensor& q, const Tensor& k, const Tensor& v,
                                     const Tensor& o, const HopperForwardParameters& parameters,
                                     const Context& ctx) {
    constexpr auto count = static_cast<int>(hopper_forward_candidates(head_dim).size());
    visit_candidate<count>(number, [&]<int i>() {
        using Policy = HopperForwardPolicy<head_dim, head_dim, /*is_packed=*/false, HopperRule::products,
                                           hopper_forward_candidates(head_dim)[i]>;
        launch_hopper_forward_policy<bfloat16, Policy>(q, k, v, o, parameters, ctx);
    });
}

}  // namespace gradtile::attention::cuda
