#include <gradtile/core/side_stream.h>

#include <gradtile/core/internal/cuda_check.h>

namespace gradtile::cuda {

Event::Event(Device device) {
    use_device(device);
    cudaEvent_t event = nullptr;
    cuda_check(cudaEventCreate(&event));
    event_ = event;
}

Event::~Event() {
    (void)cudaEventDestroy(static_cast<cudaEvent_t>(event_));
}

void Event::record(void* stream) const {
    cuda_check(cudaEventRecord(static_cast<cudaEvent_t>(event_), static_cast<cudaStream_t>(stream)));
}

void Event::wait_in(void* stream) const {
    cuda_check(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), static_cast<cudaEvent_t>(event_)));
}

double Event::milliseconds_since(const Event& start) const {
    const auto begin = static_cast<cudaEvent_t>(start.event_), end = static_cast<cudaEvent_t>(event_);
    float milliseconds = 0;
    cuda_check(cudaEventSynchronize(end));
    cuda_check(cudaEventElapsedTime(&milliseconds, begin, end));
    return static_cast<double>(milliseconds);
}

}  // namespace gradtile::cuda
