// The CPU matrix libraries with the interface CBLAS, used when oneDNN is absent: Accelerate on macOS, else
// OpenBLAS.
#include <cstdlib>
#include <string>

#include <gradtile/core/check.h>
#include <gradtile/core/cpu/cpu_features.h>
#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/gemm/internal/gemm_library.h>
#include <gradtile/core/shared_library.h>

namespace gradtile {
namespace {

/// cblas_sgemm(); enumerations are passed as int. Both libraries use 32-bit sizes.
using Sgemm = void (*)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float* a,
                       int lda, const float* b, int ldb, float beta, float* c, int ldc);
constexpr int row_major = 101, no_trans = 111, trans = 112;

#if defined(__APPLE__)

struct Blas {
    Sgemm sgemm;
    std::string name = "Accelerate";

    Blas() {
        // Each of gradtile's threads computes a separate block. Accelerate reads the variable when it is
        // loaded.
        setenv("VECLIB_MAXIMUM_THREADS", "1", 0);
        const SharedLibrary library("gemm", {"/System/Library/Frameworks/Accelerate.framework/Accelerate"});
        library.find("cblas_sgemm", sgemm);
    }
};

#else

/// OpenBLAS, loaded at the first product. It chooses its kernels while it is loaded; releases older than the
/// processor choose SSE3 kernels, which are five times slower on AVX-512 machines. An environment variable
/// can select the kernels, but must be set before the library is loaded, so the program cannot be linked with
/// it.
struct Blas {
    Sgemm sgemm;
    std::string name;

    Blas() {
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

#endif

const Blas& blas() {
    static const Blas library;
    return library;
}

}  // namespace

const char* cpu_matrix_library() {
    return blas().name.c_str();
}

namespace cpu {

void library_gemm(const GemmBlock& block, const float* a, const float* b, float* c) {
    const auto index = [](std::int64_t value) {
        check(value <= INT32_MAX, "gemm: ", value, " is more than the matrix library's 32-bit sizes hold");
        return static_cast<int>(value);
    };
    blas().sgemm(row_major, block.trans_a ? trans : no_trans, block.trans_b ? trans : no_trans,
                 index(block.m), index(block.n), index(block.k), block.alpha, a, index(block.lda), b,
                 index(block.ldb), block.accumulate ? 1.0f : 0.0f, c, index(block.ldc));
}

bool library_has_bfloat16() {
    return false;
}

namespace {
[[noreturn]] void no_bfloat16() {
    throw Error("gemm: this matrix library has no bfloat16 product; expected float32 blocks");
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
