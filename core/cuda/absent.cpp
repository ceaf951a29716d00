// The CUDA runtime in a build without the CUDA toolkit.
#include <gradtile/core/check.h>
#include <gradtile/core/cuda/step_graph.h>
#include <gradtile/core/cuda_runtime.h>
#include <gradtile/core/side_stream.h>

namespace gradtile {

int cuda_device_count() {
    return 0;
}

void StepGraph::capture(const Context&, const std::function<void()>&) {
    cuda::operator_absent();
}
void StepGraph::replay(const Context&) const {
    cuda::operator_absent();
}

namespace cuda {

void operator_absent() {
    throw Error("device cuda: this gradtile was built without CUDA; use --device cpu");
}

std::byte* device_malloc(Device, std::size_t) {
    operator_absent();
}
void device_free(Device, std::byte*) noexcept {}
std::byte* page_locked_malloc(Device, std::size_t) {
    operator_absent();
}
void page_locked_free(Device, std::byte*) noexcept {}
DeviceMemory device_memory(Device) {
    operator_absent();
}
DeviceProperties device_properties(Device) {
    operator_absent();
}
std::shared_ptr<void> make_stream(Device, StreamPriority) {
    operator_absent();
}
std::shared_ptr<GemmState> make_gemm_state(Device) {
    operator_absent();
}
void synchronize(Device, void*) {
    operator_absent();
}
void copy_bytes(std::byte*, const std::byte*, std::size_t, Device, void*) {
    operator_absent();
}

Event::Event(Device) {
    operator_absent();
}
Event::~Event() = default;
void Event::record(void*) const {
    operator_absent();
}
void Event::wait_in(void*) const {
    operator_absent();
}
double Event::milliseconds_since(const Event&) const {
    operator_absent();
}

}  // namespace cuda
}  // namespace gradtile
