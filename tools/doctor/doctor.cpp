#include <gradtile/tools/doctor/doctor.h>

#include <algorithm>
#include <limits>

#include <gradtile/core/available_memory.h>
#include <gradtile/core/context.h>
#include <gradtile/core/cpu/cpu_features.h>
#include <gradtile/core/cuda_runtime.h>
#include <gradtile/core/text/formatted.h>

namespace gradtile {
namespace {

using State = Finding::State;

std::string gibibytes(std::size_t bytes) {
    return formatted("%.1f GiB", static_cast<double>(bytes) / (1 << 30));
}

/// The kernels of each set are chosen at run time by the same functions.
std::string instruction_sets() {
    std::string sets;
    if (cpu_has_avx2_fma()) sets += ", AVX2";
    if (cpu_has_avx512()) sets += ", AVX-512";
    if (cpu_has_avx512_bf16()) sets += ", AVX-512 BF16";
    if (cpu_has_amx_bf16()) sets += ", AMX BF16";
    if (cpu_has_neon()) sets += ", NEON";
    if (cpu_has_neon_bf16()) sets += ", NEON BF16";
    return sets.empty() ? ", no instruction set that gradtile has kernels for: slow" : sets;
}

Finding examine_gpu(Device device) {
    try {
        const cuda::DeviceProperties properties = cuda::device_properties(device);
        cuda::make_stream(device);  // throws if the build has no code for this GPU
        return {.item = concat("GPU ", device.index()),
                .detail = concat(properties.name, ", compute capability ", properties.major, '.',
                                 properties.minor, ", ", gibibytes(cuda::device_memory(device).total_bytes))};
    } catch (const Error& error) {
        return {concat("GPU ", device.index()), State::missing, error.what(), /*stops_every_run=*/true};
    }
}

std::string absent_gpu_reason() {
    try {
        cuda::device_memory(Device::cuda());
    } catch (const Error& error) {
        return error.what();
    }
    return "no usable NVIDIA GPU";
}

bool is_used(RunLibrary::Need need, int gpus) {
    return need == RunLibrary::Need::gpu ? gpus >= 1 : need != RunLibrary::Need::several_gpus || gpus >= 2;
}

Finding examine_library(const RunLibrary& library) {
    try {
        const std::string version = library.load();
        return {.item = library.name,
                .detail = version.empty() ? library.purpose : concat(version, ": ", library.purpose)};
    } catch (const Error& error) {
        const bool is_optional =
            library.need == RunLibrary::Need::some_runs || library.need == RunLibrary::Need::several_gpus;
        return {library.name, State::missing, concat("needed for ", library.purpose, ": ", error.what()),
                !is_optional};
    }
}

}  // namespace

std::vector<Finding> examine_machine() {
    const int cores = usable_cores();
    const std::size_t memory = available_memory(Device::cpu());
    const bool is_known = memory != std::numeric_limits<std::size_t>::max();
    return {
        {.item = "CPU", .detail = concat(cores, cores == 1 ? " core" : " cores", instruction_sets())},
        {.item = "memory", .detail = is_known ? gibibytes(memory) + " available" : "no limit known"},
    };
}

std::vector<Finding> examine_gpus() {
    std::vector<Finding> findings;
    for (int i = 0; i < cuda_device_count(); ++i) findings.push_back(examine_gpu(Device::cuda(i)));
    if (findings.empty()) findings.push_back({"GPU", State::unused, absent_gpu_reason()});
    return findings;
}

std::vector<Finding> examine_libraries(const std::vector<RunLibrary>& libraries, int gpus) {
    std::vector<Finding> findings;
    for (const RunLibrary& library : libraries)
        findings.push_back(is_used(library.need, gpus)
                               ? examine_library(library)
                               : Finding{library.name, State::unused,
                                         concat("needed for ", library.purpose,
                                                library.need == RunLibrary::Need::gpu
                                                    ? "; this machine has no usable GPU"
                                                    : "; this machine has fewer than two usable GPUs")});
    return findings;
}

bool can_run(const std::vector<Finding>& findings) {
    return std::none_of(findings.begin(), findings.end(),
                        [](const Finding& finding) { return finding.stops_every_run; });
}

}  // namespace gradtile
