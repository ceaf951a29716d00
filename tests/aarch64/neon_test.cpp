// Without these kernels the other tests would pass as well, by the portable ones or by skipping.
#include <gtest/gtest.h>

#include <gradtile/attention/cpu/selection.h>
#include <gradtile/core/cpu/cpu_features.h>
#include <gradtile/core/gemm/internal/few_rows.h>

namespace gradtile {
namespace {

using attention::cpu::usable_few_queries_kernels, attention::cpu::usable_kernels;

void expect_neon_attention() {
    EXPECT_EQ(usable_kernels<float>().front(), &attention::cpu::neon_f32_kernels);
    EXPECT_EQ(usable_kernels<bfloat16>().front(), &attention::cpu::neon_bf16_kernels);
    EXPECT_EQ(usable_kernels<float16>().front(), &attention::cpu::neon_f16_kernels);
    EXPECT_FALSE(usable_few_queries_kernels<float>().empty());
    EXPECT_FALSE(usable_few_queries_kernels<bfloat16>().empty());
    EXPECT_FALSE(usable_few_queries_kernels<float16>().empty());
}

TEST(NeonKernels, AreUsedOnProcessorsWithBfloat16) {
    expect_neon_attention();
    EXPECT_EQ(cpu::usable_few_rows_kernels(),
              (std::vector<const cpu::FewRowsKernels*>{&cpu::neon_bf16_few_rows, &cpu::neon_few_rows}));
}

TEST(NeonKernels, AreUsedOnProcessorsWithoutBfloat16) {
    expect_neon_attention();
    EXPECT_EQ(cpu::usable_few_rows_kernels(), std::vector<const cpu::FewRowsKernels*>{&cpu::neon_few_rows});
}

}  // namespace
}  // namespace gradtile
