// Snapshots of a GPU's memory in a build without the CUDA toolkit.
#include <gradtile/core/cuda_runtime.h>
#include <gradtile/train/checkpoint/device_snapshot.h>

namespace gradtile {

struct DeviceSnapshot::Impl {};
DeviceSnapshot::DeviceSnapshot(const Context&) {
    cuda::operator_absent();
}
DeviceSnapshot::~DeviceSnapshot() = default;
void DeviceSnapshot::reserve(const std::vector<SnapshotPart>&, std::byte*) {}
void DeviceSnapshot::take(const std::vector<SnapshotPart>&, std::byte*) {}
void DeviceSnapshot::download(std::byte*, std::uint64_t) {}
double DeviceSnapshot::seconds_on_stream() const {
    return 0.0;
}

}  // namespace gradtile
