#pragma once
/// Checks and device selection for sources that include CUDA's headers.
#include <cuda_runtime_api.h>

#include <source_location>

#include <gradtile/core/allocator.h>
#include <gradtile/core/check.h>

namespace gradtile::cuda {

/// Throws Error with CUDA's description and the caller's file and line, unless `status` is success.
inline void cuda_check(cudaError_t status, std::source_location where = std::source_location::current()) {
    if (status != cudaSuccess) [[unlikely]]
        throw Error(concat("cuda: ", cudaGetErrorName(status), ": ", cudaGetErrorString(status), " (",
                           where.file_name(), ':', where.line(), ')'),
                    where);
}

/// Makes `device` the calling thread's current device. Throws one line that distinguishes a missing driver,
/// an old driver, a missing GPU and a device number out of range.
void use_device(Device device);

/// Whether this build holds machine code for the current device.
bool kernels_run_here();

/// Whether the GPU has compute capability 9.0. Code for sm_90a runs only on these GPUs.
bool is_hopper(Device device);

/// Whether this environment variable is "off". Such variables turn kernels off, for comparisons.
bool is_off(const char* variable);

/// Returns how much shared memory a block can have on the current device, in bytes. GRADTILE_SHARED_MEMORY
/// lowers the number: with 101376 and GRADTILE_HOPPER_ATTENTION=off, a Hopper GPU runs the kernels that GPUs
/// of compute capability 8.6, 8.9 and 12.x run, if the build has them.
int shared_memory_of_a_block();

/// While this object exists, the thread may allocate memory during a graph capture; the allocation does not
/// become part of the graph. Needed by state that is created at its first use, because this use may be during
/// a capture.
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
