// The CUDA side of matrix products in a build without the CUDA toolkit.
#include <gradtile/core/cuda_runtime.h>
#include <gradtile/core/gemm/gemm_algorithms.h>
#include <gradtile/core/gemm/internal/gemm_backend.h>
#include <gradtile/core/gemm/internal/gemm_candidates.h>
#include <gradtile/core/gemm/internal/symmetric_backend.h>

namespace gradtile {

std::string cuda_matrix_library() {
    cuda::operator_absent();
}

namespace cuda {

std::shared_ptr<GemmState> make_gemm_state(Device) {
    operator_absent();
}
std::vector<GemmAlgorithm> gemm_algorithms(const Context&) {
    operator_absent();
}
std::size_t restore_gemm_algorithms(const Context&, std::span<const GemmAlgorithm>) {
    operator_absent();
}
std::size_t refused_gemm_algorithms(const Context&) {
    operator_absent();
}
bool symmetric_product(const Context&, const Tensor&, const Tensor&, const SymmetricProduct&) {
    operator_absent();
}
std::vector<std::uint64_t> own_gemm_kernels() {
    return {};
}
std::string own_gemm_kernel_name(std::uint64_t) {
    operator_absent();
}
std::optional<std::uint64_t> own_gemm_kernel(const GemmAlgorithm&) {
    return std::nullopt;
}
void restrict_gemm(const Context&, std::optional<std::uint64_t>) {
    operator_absent();
}
void gemm(const Context&, const Tensor&, const Tensor&, const Tensor&, const GemmOptions&) {
    operator_absent();
}

}  // namespace cuda
}  // namespace gradtile
