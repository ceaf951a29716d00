#pragma once
/// INTERNAL; include only in sources compiled for one instruction set. The driver's kernel table for one
/// vector type, with tensors of type T and arithmetic in float32.
#include <gradtile/attention/cpu/f32/backward.h>

namespace gradtile::attention::cpu {
namespace {

template <class V, class T = float>
constexpr FlashKernels<T> f32_kernels_on(const char* name) {
    return {.name = name,
            .scores_in_base_2 = true,
            .blocks =
                [](const Geometry& geometry) {
                    return Blocks{.forward_rows = forward_task_rows(geometry),
                                  .backward_keys = backward_task_keys(geometry),
                                  .backward_rows = backward_rows};
                },
            .forward_scratch_bytes =
                [](const Geometry& geometry) {
                    ScratchFloats memory(nullptr);
                    ForwardScratch(geometry, memory);
                    return memory.bytes();
                },
            .backward_scratch_bytes =
                [](const Geometry& geometry) {
                    ScratchFloats memory(nullptr);
                    BackwardScratch(geometry, memory);
                    return memory.bytes();
                },
            .forward = [](const ForwardTask<T>& task,
                          std::byte* scratch) { ForwardBlock<V, T>(task, ScratchFloats(scratch)).run(); },
            .backward = [](const BackwardTask<T>& task,
                           std::byte* scratch) { BackwardBlock<V, T>(task, ScratchFloats(scratch)).run(); }};
}

}  // namespace
}  // namespace gradtile::attention::cpu
