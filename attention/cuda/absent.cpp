// Replaces attention's CUDA functions in a build without the CUDA toolkit. Each function throws an Error,
// except has_tile_candidates(), which returns false.
#include <gradtile/attention/internal/attention_backend.h>
#include <gradtile/attention/internal/decode_backend.h>
#include <gradtile/attention/internal/kernel_candidates.h>
#include <gradtile/attention/internal/merge_backend.h>
#include <gradtile/core/cuda_runtime.h>

namespace gradtile::attention::cuda {
namespace {
[[noreturn]] void absent() {
    gradtile::cuda::operator_absent();
}
}  // namespace

std::vector<KernelCandidate> forward_candidates(const Context&, const ResolvedOptions&, const Tensor&,
                                                const Tensor&, const Tensor&) {
    absent();
}
std::vector<KernelCandidate> backward_candidates(const Context&, const ResolvedOptions&, const Tensor&,
                                                 const Tensor&, const Tensor&) {
    absent();
}
bool has_tile_candidates() {
    return false;
}
std::string explain_flash_forward(const Context&, const ResolvedOptions&, const Tensor&, const Tensor&,
                                  const Tensor&) {
    absent();
}
std::string explain_memory_efficient_forward(const Context&, const ResolvedOptions&, const Tensor&,
                                             const Tensor&, const Tensor&) {
    absent();
}
std::string explain_flash1_forward(const Context&, const ResolvedOptions&, const Tensor&, const Tensor&,
                                   const Tensor&) {
    absent();
}
void clear_unseen(const Context&, const ResolvedOptions&, RowKind, const Tensor&) {
    absent();
}
void naive_forward(const Context&, const ResolvedOptions&, const Saved&) {
    absent();
}
void naive_backward(const Context&, const ResolvedOptions&, const Saved&, const OutputGradients&,
                    const Gradients&) {
    absent();
}
void flash_forward(const Context&, const ResolvedOptions&, const Saved&) {
    absent();
}
void repair_forward(const Context&, const ResolvedOptions&, const Saved&) {
    absent();
}
void repair_backward(const Context&, const ResolvedOptions&, const Saved&, const OutputGradients&,
                     const Gradients&) {
    absent();
}
void flash_backward(const Context&, const ResolvedOptions&, const Saved&, const OutputGradients&,
                    const Gradients&) {
    absent();
}

void memory_efficient_forward(const Context&, const ResolvedOptions&, const Saved&) {
    absent();
}
void memory_efficient_backward(const Context&, const ResolvedOptions&, const Saved&, const OutputGradients&,
                               const Gradients&) {
    absent();
}
void flash1_forward(const Context&, const ResolvedOptions&, const Saved&) {
    absent();
}
void flash1_backward(const Context&, const ResolvedOptions&, const Saved&, const OutputGradients&,
                     const Gradients&) {
    absent();
}

void decode(const Context&, const Tensor&, const Tensor&, const DecodeInputs&, const DecodeCache&,
            const ResolvedOptions&, const DecodeScratch&) {
    absent();
}

void merge(const Context&, const PartialResult&, const PartialResult&, const PartialResult&) {
    absent();
}

}  // namespace gradtile::attention::cuda
