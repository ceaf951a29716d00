#include <gradtile/core/cpu/cpu_features.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif
#if defined(__APPLE__)
#include <sys/sysctl.h>

#include <cstddef>
#endif

namespace gradtile {

#if defined(__x86_64__)

// __builtin_cpu_supports also tests whether the operating system saves the registers. Some supported
// compilers do not accept the names for F16C, bf16 and AMX there, so these features are read with CPUID.
namespace {

struct CpuidLeaf {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    CpuidLeaf(unsigned leaf, unsigned subleaf) { __get_cpuid_count(leaf, subleaf, &eax, &ebx, &ecx, &edx); }
};

bool has_bit(unsigned word, int bit) {
    return (word >> bit & 1u) != 0;
}

/// Whether the operating system saves the tile registers (bits 17 and 18 in XCR0). Requires the instruction
/// XGETBV.
bool operating_system_saves_tiles() {
    constexpr unsigned tile_state = 0b11u << 17;
    unsigned low = 0, high = 0;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & tile_state) == tile_state;
}

}  // namespace

bool cpu_has_avx2_fma() {
    constexpr int f16c = 29;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           has_bit(CpuidLeaf(1, 0).ecx, f16c);
}

bool cpu_has_avx512() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool cpu_has_avx512_bf16() {
    return cpu_has_avx512() && has_bit(CpuidLeaf(7, 1).eax, 5);
}

bool cpu_has_amx_bf16() {
#if defined(__linux__)
    constexpr int request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    const CpuidLeaf features(7, 0);
    const bool bf16 = has_bit(features.edx, 22), tile = has_bit(features.edx, 24);
    return cpu_has_avx512_bf16() && bf16 && tile && operating_system_saves_tiles() &&
           syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
    return false;
#endif
}

#else

bool cpu_has_avx2_fma() {
    return false;
}
bool cpu_has_avx512() {
    return false;
}
bool cpu_has_avx512_bf16() {
    return false;
}
bool cpu_has_amx_bf16() {
    return false;
}

#endif

bool cpu_has_neon() {
#if defined(__aarch64__)
    return true;
#else
    return false;
#endif
}

bool cpu_has_neon_bf16() {
#if defined(__aarch64__) && defined(__linux__)
    return (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0;
#elif defined(__aarch64__) && defined(__APPLE__)
    int has = 0;
    std::size_t bytes = sizeof has;
    return sysctlbyname("hw.optional.arm.FEAT_BF16", &has, &bytes, nullptr, 0) == 0 && has != 0;
#else
    return false;
#endif
}

}  // namespace gradtile
