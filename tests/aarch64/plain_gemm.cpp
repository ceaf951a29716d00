// Products by three loops, in place of the matrix library that a cross-compiled test would need.
#include <utility>

#include <gradtile/core/check.h>
#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/gemm/internal/gemm_library.h>

namespace gradtile {

const char* cpu_matrix_library() {
    return "three loops";
}

namespace cpu {

void library_gemm(const GemmBlock& block, const float* a, const float* b, float* c) {
    const auto strides = [](bool transposed, std::int64_t ld) {
        return transposed ? std::pair<std::int64_t, std::int64_t>{1, ld} : std::pair{ld, std::int64_t{1}};
    };
    const auto [a_row, a_column] = strides(block.trans_a, block.lda);
    const auto [b_row, b_column] = strides(block.trans_b, block.ldb);
    for (std::int64_t i = 0; i < block.m; ++i)
        for (std::int64_t j = 0; j < block.n; ++j) {
            float sum = 0;
            for (std::int64_t p = 0; p < block.k; ++p)
                sum += a[i * a_row + p * a_column] * b[p * b_row + j * b_column];
            float& element = c[i * block.ldc + j];
            element = block.alpha * sum + (block.accumulate ? element : 0.0f);
        }
}

bool library_has_bfloat16() {
    return false;
}
void library_gemm(const GemmBlock&, const bfloat16*, const bfloat16*, float*) {
    throw Error("gemm: three loops have no bfloat16 product; expected float32 blocks");
}
void library_gemm(const GemmBlock&, const bfloat16*, const bfloat16*, const float*, bfloat16*) {
    throw Error("gemm: three loops have no bfloat16 product; expected float32 blocks");
}

}  // namespace cpu
}  // namespace gradtile
