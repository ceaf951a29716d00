// gradtile/train's CUDA functions in a build without the CUDA toolkit: each throws an Error.
#include <gradtile/core/cuda_runtime.h>
#include <gradtile/train/checkpoint/device_snapshot.h>
#include <gradtile/train/optimizers/internal/averaged_optimizer_backend.h>
#include <gradtile/train/optimizers/internal/elementwise_optimizer_backend.h>
#include <gradtile/train/optimizers/internal/global_norm_backend.h>
#include <gradtile/train/optimizers/internal/matrix_optimizer_backend.h>

namespace gradtile {

struct DeviceSnapshot::Impl {};
DeviceSnapshot::DeviceSnapshot(const Context&) {
    cuda::operator_absent();
}
DeviceSnapshot::~DeviceSnapshot() = default;
void DeviceSnapshot::reserve(const std::vector<SnapshotPart>&) {}
void DeviceSnapshot::take(const std::vector<SnapshotPart>&) {}
void DeviceSnapshot::download(std::byte*, std::uint64_t) {}
double DeviceSnapshot::seconds_on_stream() const {
    return 0.0;
}

}  // namespace gradtile

namespace gradtile::cuda {

void count_update(const Context&, const Tensor&, const Tensor&) {
    operator_absent();
}
void average_weights(const Context&, const Tensor&, const Tensor&, const AverageStep&) {
    operator_absent();
}
void elementwise_step(const Context&, const ElementArrays&, const ElementBlocks&, const Tensor&,
                      const Tensor&, const ElementwiseRule&, const UpdateOptions&) {
    operator_absent();
}
void sum_of_squares(const Context&, const Tensor&, const Tensor&, const Tensor&) {
    operator_absent();
}
void global_norm(const Context&, const Tensor&, const Tensor&, const Tensor&) {
    operator_absent();
}
void square_root(const Context&, const Tensor&) {
    operator_absent();
}
void clip_scale(const Context&, const Tensor&, const Tensor&, const ClipOptions&) {
    operator_absent();
}
void matrix_momentum(const Context&, const MatrixArrays&, const MatrixGroup&, const Tensor&,
                     const MomentumRule&, const Tensor&, const Tensor&) {
    operator_absent();
}
void sums_of_squares(const Context&, const Tensor&, const Tensor&) {
    operator_absent();
}
void normalize_matrices(const Context&, const Tensor&, const Tensor&, const Tensor&) {
    operator_absent();
}
void add_lower_powers(const Context&, const Tensor&, const Tensor&, const MatrixPolynomial&) {
    operator_absent();
}
void row_factors(const Context&, const MatrixArrays&, const MatrixGroup&, const Tensor&, const Tensor&,
                 double, const RowFactors&) {
    operator_absent();
}
void matrix_apply(const Context&, const MatrixArrays&, const MatrixGroup&, const Tensor&, const RowFactors&,
                  const Tensor&, const MatrixRate&, const UpdateOptions&) {
    operator_absent();
}

}  // namespace gradtile::cuda
