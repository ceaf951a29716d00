// CUDA calls from the host, with the statically linked runtime. The runtime loads the driver at the first
// call, so a program that was built with CUDA also starts, and trains on the CPU, on machines without a
// driver.
#include <gradtile/core/cuda_runtime.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include <gradtile/core/allocator.h>

#include <gradtile/core/internal/cuda_check.h>
#include <gradtile/core/internal/missing_gpu_code.h>

namespace gradtile {

int cuda_device_count() {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

namespace cuda {
namespace {

struct Version {  // CUDA's encoding: 13000 is 13.0
    int number;
    friend std::ostream& operator<<(std::ostream& out, Version version) {
        return out << version.number / 1000 << '.' << version.number % 1000 / 10;
    }
};

[[noreturn]] void explain(Device device, cudaError_t status) {
    int driver = 0;
    (void)cudaDriverGetVersion(&driver);
    if (driver == 0)
        throw Error(concat("device ", device, ": no NVIDIA driver on this machine; use --device cpu"));
    if (status == cudaErrorInsufficientDriver)
        throw Error(concat("device ", device, ": the NVIDIA driver supports CUDA ", Version{driver},
                           " and gradtile was built with ", Version{CUDART_VERSION},
                           "; update the driver or use --device cpu"));
    const int count = cuda_device_count();
    if (count == 0)
        throw Error(concat("device ", device, ": no usable NVIDIA GPU (", cudaGetErrorString(status),
                           "); use --device cpu"));
    if (device.index() >= count || device.index() < 0)
        throw Error(concat("device ", device, ": this machine has ", count, " CUDA device",
                           count > 1 ? "s" : "", ", numbered from 0"));
    throw Error(concat("device ", device, ": ", cudaGetErrorString(status)));
}

struct ComputeCapability {
    int major = 0, minor = 0;

    explicit ComputeCapability(Device device) {
        cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index()));
        cuda_check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device.index()));
    }
};

/// Machine code exists only for the architectures in CMAKE_CUDA_ARCHITECTURES. On another GPU the first
/// kernel would fail, with a message that does not say what to do.
void check_kernels_run(Device device) {
    if (kernels_run_here()) return;
    const ComputeCapability gpu(device);
    throw Error(concat("device ", device, ": has compute capability ", gpu.major, '.', gpu.minor,
                       ", and gradtile was built for " GRADTILE_CUDA_ARCHITECTURES "; ",
                       way_out_of_missing_code(gpu.major, gpu.minor)));
}

}  // namespace

void operator_absent() {
    throw Error("device cuda: this operator has no CUDA kernel in this build; use --device cpu");
}

void use_device(Device device) {
    const cudaError_t status = cudaSetDevice(device.index());
    if (status != cudaSuccess) [[unlikely]] {
        (void)cudaGetLastError();  // clears the error, which the next check would report
        explain(device, status);
    }
}

bool is_hopper(Device device) {
    const ComputeCapability gpu(device);
    return gpu.major == 9 && gpu.minor == 0;
}

bool is_off(const char* variable) {
    const char* const value = std::getenv(variable);
    return value != nullptr && value == std::string_view("off");
}

int shared_memory_of_a_block() {
    int device = 0, bytes = 0;
    cuda_check(cudaGetDevice(&device));
    cuda_check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    const char* const limit = std::getenv("GRADTILE_SHARED_MEMORY");
    return limit == nullptr ? bytes : std::clamp(std::atoi(limit), 48 * 1024, bytes);
}

void throw_out_of_memory(Device device, std::size_t bytes) {
    const DeviceMemory memory = device_memory(device);
    throw OutOfMemory(concat("out of memory: ", bytes, " bytes asked for on ", device, "; ",
                             memory.free_bytes, " of ", memory.total_bytes, " are free"));
}

std::byte* device_malloc(Device device, std::size_t bytes) {
    use_device(device);
    void* data = nullptr;
    const cudaError_t status = cudaMalloc(&data, bytes);
    if (status == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        throw_out_of_memory(device, bytes);
    }
    cuda_check(status);
    return static_cast<std::byte*>(data);
}

void device_free(Device device, std::byte* data) noexcept {
    // cudaFree waits for the work that uses the memory. Nothing useful can be done about an error here: the
    // next checked call reports it.
    if (cudaSetDevice(device.index()) == cudaSuccess) (void)cudaFree(data);
}

std::byte* page_locked_malloc(Device device, std::size_t bytes) {
    use_device(device);
    void* data = nullptr;
    const cudaError_t status = cudaHostAlloc(&data, bytes, cudaHostAllocDefault);
    if (status == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        throw OutOfMemory(
            concat("out of memory: ", bytes, " bytes of page-locked memory asked for on the CPU"));
    }
    cuda_check(status);
    return static_cast<std::byte*>(data);
}

void page_locked_free(Device device, std::byte* data) noexcept {
    if (cudaSetDevice(device.index()) == cudaSuccess) (void)cudaFreeHost(data);
}

DeviceMemory device_memory(Device device) {
    use_device(device);
    DeviceMemory memory{};
    cuda_check(cudaMemGetInfo(&memory.free_bytes, &memory.total_bytes));
    return memory;
}

DeviceProperties device_properties(Device device) {
    use_device(device);
    cudaDeviceProp properties{};
    cuda_check(cudaGetDeviceProperties(&properties, device.index()));
    int kilohertz = 0;
    cuda_check(cudaDeviceGetAttribute(&kilohertz, cudaDevAttrClockRate, device.index()));
    return {.name = properties.name,
            .major = properties.major,
            .minor = properties.minor,
            .multiprocessors = properties.multiProcessorCount,
            .clock_hz = 1e3 * kilohertz};
}

std::shared_ptr<void> make_stream(Device device, StreamPriority priority) {
    use_device(device);
    check_kernels_run(device);
    int lowest = 0, highest = 0;
    cuda_check(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    cudaStream_t stream = nullptr;
    cuda_check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                            priority == StreamPriority::high ? highest : lowest));
    return {stream, [](void* s) { (void)cudaStreamDestroy(static_cast<cudaStream_t>(s)); }};
}

void synchronize(Device device, void* stream) {
    use_device(device);
    cuda_check(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)));
}

void copy_bytes(std::byte* destination, const std::byte* source, std::size_t bytes, Device device,
                void* stream) {
    use_device(device);
    cuda_check(
        cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream)));
}

}  // namespace cuda
}  // namespace gradtile
