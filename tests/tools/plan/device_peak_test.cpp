#include <gradtile/tools/plan/device_peak.h>

#include <gtest/gtest.h>

namespace gradtile {
namespace {

TEST(DevicePeak, UsesTheMakersFigureOfAKnownName) {
    EXPECT_EQ(peak_flops({"NVIDIA H200", 9, 0, 132, 1.98e9}, DType::bf16), 989e12);
    EXPECT_EQ(peak_flops({"NVIDIA H100 80GB HBM3", 9, 0, 132, 1.98e9}, DType::f16), 989e12);
    EXPECT_EQ(peak_flops({"NVIDIA H100 PCIe", 9, 0, 114, 1.755e9}, DType::bf16), 756e12);
    EXPECT_EQ(peak_flops({"NVIDIA H200", 9, 0, 132, 1.98e9}, DType::f32), 67e12);
    EXPECT_EQ(peak_flops({"NVIDIA H200", 9, 0, 132, 1.98e9}, DType::f32, /*tf32=*/true), 494.5e12);
}

/// An A100's data sheet says 312 and 19.5 TFLOP/s.
TEST(DevicePeak, ComputesThePeakOfAnUnknownName) {
    EXPECT_NEAR(peak_flops({"an Ampere", 8, 0, 108, 1.41e9}, DType::bf16), 312e12, 1e12);
    EXPECT_NEAR(peak_flops({"an Ampere", 8, 0, 108, 1.41e9}, DType::f32), 19.5e12, 0.1e12);
    EXPECT_EQ(peak_flops({"of next year", 19, 0, 500, 3e9}, DType::bf16), 0.0);
}

TEST(DevicePeak, IsUnknownForTheCpu) {
    EXPECT_EQ(peak_flops(Device::cpu(), DType::f32), 0.0);
}

}  // namespace
}  // namespace gradtile
