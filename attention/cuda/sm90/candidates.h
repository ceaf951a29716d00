#pragma once
/// INTERNAL. Tiles that `gradtile bench attention --tune` compares with the policy's tiles (tiles.h). A build
/// with -DGRADTILE_TUNE=ON has kernels for these tiles: bfloat16, dense, without score rules, not
/// deterministic. To try other tiles, add them here.
#include <span>

#include <gradtile/attention/cuda/sm90/tiles.h>

namespace gradtile::attention::cuda {

namespace candidates {
// Order as in HopperForwardTiles: consumers, keys, K/V stages, Q stages, turns.
inline constexpr HopperForwardTiles
    forward_32[] = {{3, 128, 2, 2, false},
                    {3, 128, 2, 1, true},
                    {2, 128, 2, 2, true},
                    {2, 192, 2, 2, true},
                    {4, 64, 2, 2, true}},
    forward_64[] = {{3, 128, 2, 2, true}, {3, 128, 2, 2, false}, {3, 128, 3, 2, true}, {3, 128, 2, 1, true},
                    {3, 96, 2, 2, true},  {2, 128, 2, 2, true},  {2, 192, 2, 2, true}, {4, 64, 2, 2, true}},
    forward_96[] = {{2, 128, 2, 2, false}, {2, 128, 2, 1, true}, {2, 176, 2, 1, true}, {3, 96, 2, 1, true}},
    forward_128[] = {{2, 128, 2, 2, true},
                     {2, 128, 2, 2, false},
                     {2, 128, 2, 1, true},
                     {2, 176, 2, 1, true},
                     {2, 96, 2, 2, true}},
    forward_192[] = {{2, 112, 2, 1, true}, {2, 96, 2, 1, false}, {2, 80, 2, 1, false}},
    forward_256[] = {{2, 80, 2, 1, true}, {2, 64, 2, 1, false}};
// Order as in HopperBackwardTiles: rows, P in 16 bits, dQ accumulator ring, dQ stages. 64 rows at head dim 32
// would need a 16-column product, which the kernels do not have; 128 rows at head dim 128 do not fit the
// registers.
inline constexpr HopperBackwardTiles backward_32[] = {{128, false, true, 1}},
                                     backward_64[] = {{64, false, true, 2}},
                                     backward_128[] = {{64, false, false, 1}};
}  // namespace candidates

/// `head_dim` is the forward kernel's.
constexpr std::span<const HopperForwardTiles> hopper_forward_candidates(int head_dim) {
    using namespace candidates;
    if (head_dim <= 32) return forward_32;
    if (head_dim <= 64) return forward_64;
    if (head_dim <= 96) return forward_96;
    if (head_dim <= 128) return forward_128;
    if (head_dim <= 192) return forward_192;
    return forward_256;
}
/// `head_dim` is the backward kernel's. Head dims above hopper_backward_keys_max_head_dim have no candidates.
constexpr std::span<const HopperBackwardTiles> hopper_backward_candidates(int head_dim) {
    using namespace candidates;
    if (head_dim <= 32) return backward_32;
    if (head_dim <= 64) return backward_64;
    if (head_dim <= hopper_backward_keys_max_head_dim) return backward_128;
    return {};
}

}  // namespace gradtile::attention::cuda
