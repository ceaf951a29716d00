// Replaces attention's CUDA functions in a build without the CUDA toolkit. Each function throws an Error,
// except has_tile_candidates(), which returns false.
#include <gradtile/attention/internal/attention_backend.h>
#include <gradtile/attention/internal/decode_backend.h>
#include <gradtile/attention/internal/flash_plan.h>
#include <gradtile/attention/internal/merge_backend.h>
#include <gradtile/core/cuda_runtime.h>

namespace gradtile::attention::cuda {
namespace {
[[noreturn]] void absent() {
    gradtile::cuda::operator_absent();
}
}  // namespace

std::vector<FlashPlan> plans(const Context&, Pass, const ResolvedOptions&, const Saved&) {
    absent();
}
bool has_tile_candidates() {
    return false;
}
std::string explain(const Context&, const ResolvedOptions&, const Tensor&, const Tensor&, const Tensor&) {
    absent();
}
void clear_unseen(const Context&, const ResolvedOptions&, RowKind, const Tensor&) {
    absent();
}
void forward(const Context&, const ResolvedOptions&, const Saved&) {
    absent();
}
void backward(const Context&, const ResolvedOptions&, const Saved&, const OutputGradients&,
              const Gradients&) {
    absent();
}
void repair_forward(const Context&, const ResolvedOptions&, const Saved&) {
    absent();
}
void repair_backward(const Context&, const ResolvedOptions&, const Saved&, const OutputGradients&,
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
