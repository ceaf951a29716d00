// The CPU matrix library OpenBLAS, used when oneDNN is absent.
#include <cblas.h>

#include <cstdlib>
#include <string>

#include <gradtile/core/check.h>
#include <gradtile/core/cpu/cpu_features.h>
#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/gemm/internal/gemm_library.h>
#include <gradtile/core/shared_library.h>

namespace gradtile {
namespace {

/// OpenBLAS, loaded at the first product. It chooses its kernels while it is loaded; releases older than the
/// processor choose SSE3 kernels, which are five times slower on AVX-512 machines. An environment variable
/// can select the kernels, but must be set before the library is loaded, so the program cannot be linked with
/// it.
struct OpenBlas {
    decltype(&cblas_sgemm) sgemm;
    std::string name;

    OpenBlas() {
        constexpr const char* core_type = "OPENBLAS_CORETYPE";
        const bool name_kernels = std::getenv(core_type) == nullptr && cpu_has_avx512();
        if (name_kernels) setenv(core_type, "SkylakeX", 0);
        const SharedLibrary library("gemm", {"libopenblas.so.0", "libopenblas.so"},
                                    "apt-get install libopenblas0");
        if (name_kernels) unsetenv(core_type);
        library.find("cblas_sgemm", sgemm);
        void (*set_num_threads)(int) = nullptr;
        library.find("openblas_set_num_threads", set_num_threads);
        // OpenBLAS uses one thread, because each of gradtile's threads computes a separate block.
        set_num_threads(1);
        const char* (*get_config)() = nullptr;
        library.find("openblas_get_config", get_config);
        name = get_config();
        name = name.substr(0, name.find(' ', name.find(' ') + 1));
    }
};

const OpenBlas& openblas() {
    static const OpenBlas library;
    return library;
}

}  // namespace

const char* cpu_matrix_library() {
    return openblas().name.c_str();
}

namespace cpu {

void library_gemm(const GemmBlock& block, const float* a, const float* b, float* c) {
    const auto index = [](std::int64_t value) {
        check(value <= INT32_MAX, "gemm: ", value, " is more than OpenBLAS's 32-bit sizes hold");
        return static_cast<blasint>(value);
    };
    openblas().sgemm(CblasRowMajor, block.trans_a ? CblasTrans : CblasNoTrans,
                     block.trans_b ? CblasTrans : CblasNoTrans, index(block.m), index(block.n),
                     index(block.k), block.alpha, a, index(block.lda), b, index(block.ldb),
                     block.accumulate ? 1.0f : 0.0f, c, index(block.ldc));
}

bool library_has_bfloat16() {
    return false;
}

namespace {
[[noreturn]] void no_bfloat16() {
    throw Error("gemm: OpenBLAS has no bfloat16 product; expected float32 blocks");
}
}  // namespace

void library_gemm(const GemmBlock&, const bfloat16*, const bfloat16*, float*) {
    no_bfloat16();
}

void library_gemm(const GemmBlock&, const bfloat16*, const bfloat16*, const float*, bfloat16*) {
    no_bfloat16();
}

}  // namespace cpu
}  // namespace gradtile
