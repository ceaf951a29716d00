// Which bf16 kernels run here, decided at run time.
#include <gradtile/attention/flash_bf16.h>

#include <atomic>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace gradtile::attention::cpu {
namespace {

bool has_bit(std::uint64_t word, int bit) {
    return (word >> bit & 1) != 0;
}

#if defined(__x86_64__)
struct CpuidLeaf {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    CpuidLeaf(unsigned leaf, unsigned subleaf) { __get_cpuid_count(leaf, subleaf, &eax, &ebx, &ecx, &edx); }
};

/// Whether the operating system saves all the given parts of the register state (bits of XCR0).
bool operating_system_saves(std::uint64_t state) {
    if (!has_bit(CpuidLeaf(1, 0).ecx, 27)) return false;  // OSXSAVE
    std::uint32_t low = 0, high = 0;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return ((std::uint64_t{high} << 32 | low) & state) == state;
}
#endif

}  // namespace

bool cpu_has_avx512_bf16() {
#if defined(__x86_64__)
    constexpr std::uint64_t sse_avx_and_avx512_state = 0b1110'0110;
    const CpuidLeaf features(7, 0), more_features(7, 1);
    const bool f = has_bit(features.ebx, 16), dq = has_bit(features.ebx, 17), bw = has_bit(features.ebx, 30),
               vl = has_bit(features.ebx, 31), bf16 = has_bit(more_features.eax, 5);
    return f && dq && bw && vl && bf16 && operating_system_saves(sse_avx_and_avx512_state);
#else
    return false;
#endif
}

bool cpu_has_amx_bf16() {
#if defined(__x86_64__) && defined(__linux__)
    constexpr std::uint64_t tile_state = 0b11 << 17;
    constexpr int request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    const CpuidLeaf features(7, 0);
    const bool bf16 = has_bit(features.edx, 22), tile = has_bit(features.edx, 24);
    return cpu_has_avx512_bf16() && bf16 && tile && operating_system_saves(tile_state) &&
           syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
    return false;
#endif
}

const std::vector<const FlashKernels<bfloat16>*>& usable_bfloat16_kernels() {
    static const auto usable = [] {
        std::vector<const FlashKernels<bfloat16>*> found;
#if defined(GRADTILE_HAVE_AMX_BF16)
        if (cpu_has_amx_bf16()) found.push_back(&amx_bf16_kernels);
#endif
#if defined(GRADTILE_HAVE_AVX512_BF16)
        if (cpu_has_avx512_bf16()) found.push_back(&avx512_bf16_kernels);
#endif
        found.push_back(&generic_kernels<bfloat16>());
        return found;
    }();
    return usable;
}

namespace {
std::atomic<const FlashKernels<bfloat16>*> forced_kernels{nullptr};
}

void force_bfloat16_kernels(const FlashKernels<bfloat16>* kernels) {
    forced_kernels = kernels;
}

const FlashKernels<bfloat16>& bfloat16_kernels() {
    const FlashKernels<bfloat16>* const forced = forced_kernels;
    return forced != nullptr ? *forced : *usable_bfloat16_kernels().front();
}

}  // namespace gradtile::attention::cpu
