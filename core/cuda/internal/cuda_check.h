#pragma once
/// For the sources that include CUDA's headers: every runtime call is checked, and runs on its device.
#include <cuda_runtime_api.h>

#include <source_location>

#include <gradtile/core/check.h>
#include <gradtile/core/device.h>

namespace gradtile::cuda {

/// Throws Error naming the failure and the place that met it.
inline void cuda_check(cudaError_t status, std::source_location where = std::source_location::current()) {
    if (status != cudaSuccess) [[unlikely]]
        throw Error(concat("cuda: ", cudaGetErrorName(status), ": ", cudaGetErrorString(status), " (",
                           where.file_name(), ':', where.line(), ')'),
                    where);
}

/// Makes a device the calling thread's. Throws one line that tells a machine without a driver, with one that
/// is too old, without a GPU, and a device number out of range apart.
void use_device(Device device);

/// Whether this build holds machine code for the current device.
bool kernels_run_here();

/// Bytes of shared memory that a block of the current device may ask for.
int shared_memory_of_a_block();

/// While it lives, this thread may allocate although a stream is being captured into a graph: what is made
/// belongs to no graph. For what is made once, should the first use lie inside a capture.
class RelaxedCapture {
  public:
    RelaxedCapture() { cuda_check(cudaThreadExchangeStreamCaptureMode(&mode_)); }
    ~RelaxedCapture() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
    RelaxedCapture(const RelaxedCapture&) = delete;
    RelaxedCapture& operator=(const RelaxedCapture&) = delete;

  private:
    cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace gradtile::cuda
