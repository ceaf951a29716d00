// The CUDA side of train in a build without the CUDA toolkit.
#include <gradtile/core/cuda_runtime.h>
#include <gradtile/train/adamw_backend.h>
#include <gradtile/train/global_norm_backend.h>
#include <gradtile/train/muon_backend.h>

namespace gradtile::cuda {
namespace {
[[noreturn]] void absent() {
    operator_absent();  // says whether a toolkit or only this kernel is missing
}
}  // namespace

void adamw_step(const Context&, const ParameterStore&, std::span<const AdamWBlock>, const Tensor&,
                const Tensor&, const Tensor&, double, const AdamWOptions&, const UpdateOptions&) {
    absent();
}
void global_norm(const Context&, const Tensor&, const Tensor&) {
    absent();
}
void clip_scale(const Context&, const Tensor&, const Tensor&, const ClipOptions&) {
    absent();
}
void muon_momentum(const Context&, const Tensor&, const Tensor&, double, const Tensor&, const Tensor&) {
    absent();
}
void divide_by_norm(const Context&, const Tensor&, const Tensor&) {
    absent();
}
void muon_apply(const Context&, const Tensor&, double, double, const Tensor&, const Tensor&, const Tensor&,
                const UpdateOptions&) {
    absent();
}

}  // namespace gradtile::cuda
