#pragma once
/// INTERNAL; include only in sources compiled for one instruction set. See attention/cpu/bf16/tiles.h.
#include <gradtile/attention/cpu/bf16/backward.h>
#include <gradtile/attention/cpu/bf16/forward.h>

namespace gradtile::attention::cpu {
namespace {

/// The driver's bf16 kernel table for one tile algebra.
template <class Tiles>
constexpr FlashKernels<bfloat16> bf16_kernels_on(const char* name) {
    return {.name = name,
            .scores_in_base_2 = true,
            .blocks =
                [](const Geometry& geometry) {
                    const BlockPolicy policy = block_policy(geometry);
                    return Blocks{policy.forward_rows, policy.backward_keys, backward_rows};
                },
            .forward_scratch_bytes =
                [](const Geometry& geometry) {
                    ScratchPieces pieces(nullptr);
                    ForwardScratch(geometry, block_policy(geometry), pieces);
                    return pieces.bytes();
                },
            .backward_scratch_bytes =
                [](const Geometry& geometry) {
                    ScratchPieces pieces(nullptr);
                    BackwardScratch(geometry, block_policy(geometry), pieces);
                    return pieces.bytes();
                },
            .forward = [](const ForwardTask<bfloat16>& task,
                          std::byte* scratch) { ForwardBlock<Tiles>(task, ScratchPieces(scratch)).run(); },
            .backward = [](const BackwardTask<bfloat16>& task,
                           std::byte* scratch) { BackwardBlock<Tiles>(task, ScratchPieces(scratch)).run(); }};
}

}  // namespace
}  // namespace gradtile::attention::cpu
