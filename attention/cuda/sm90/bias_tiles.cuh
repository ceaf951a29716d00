#pragma once
/// Bias tiles in shared memory, and key biases, for the Hopper kernels.
#include <gradtile/attention/cuda/sm90/parameters.h>
#include <gradtile/attention/cuda/sm90/tiles.h>
#include <gradtile/attention/cuda/common/panel_tile.cuh>
#include <gradtile/attention/cuda/common/score_rule.cuh>
#include <gradtile/core/cuda/device/warpgroup.cuh>

namespace gradtile::attention::cuda::device {

/// A bias matrix tile with 256 bytes per row: 128 keys in 16 bits, or 64 keys in float32.
template <int rows>
using BiasTile = PanelTile<rows, 128>;
constexpr int bias_tile_keys(BiasMatrix matrix) {
    return matrix == BiasMatrix::float32 ? 64 : 128;
}

/// Starts loading a tile.
template <class Tile>
__device__ __forceinline__ void load_bias_tile(std::uint32_t to, const HopperBiases& biases, int batch,
                                               int head, int row, int key, Barrier barrier) {
    const BoxPosition box{key, row, head * biases.head_step, batch / biases.batch_divisor};
    const int panel_keys = bias_tile_keys(biases.matrix) / Tile::panels;
#pragma unroll
    for (int i = 0; i < Tile::panels; ++i)
        load_box(to + i * Tile::panel_bytes, biases.map, {key + i * panel_keys, box.row, box.head, box.batch},
                 barrier);
}

/// The key biases for one batch and head.
class KeyBiases {
  public:
    __device__ __forceinline__ KeyBiases(const HopperBiases& biases, int batch, int head)
        : first_(biases.key_biases[0].rows_of(batch, head)),
          second_(biases.key_biases[1].rows_of(batch, head)) {}

    /// The sum of a key's biases. The key must exist. T is the dtype for biases that are not float32.
    template <class T>
    __device__ __forceinline__ float sum(int key) const {
        float sum = 0;
        if (first_.data != nullptr) sum += bias_at<T, float>(first_, 0, key);
        if (second_.data != nullptr) sum += bias_at<T, float>(second_, 0, key);
        return sum;
    }

    /// sums[i] = the sum for key + 32 i, or 0 for keys >= end. `end` is positive. All loads from a bias are
    /// in flight together, because one after the other they would take as long as a stage's products.
    template <class T, int count>
    __device__ __forceinline__ void sum(float (&sums)[count], int key, int end) const {
#pragma unroll
        for (float& sum : sums) sum = 0;
        for (const BiasRows* bias : {&first_, &second_}) {
            if (bias->data == nullptr) continue;
            if (bias->dtype == DType::f32) {
                add<float>(sums, *bias, key, end);
            } else {
                add<T>(sums, *bias, key, end);
            }
        }
    }

  private:
    template <class Element, int count>
    __device__ __forceinline__ static void add(float (&sums)[count], const BiasRows& bias, int key, int end) {
        Element elements[count];
#pragma unroll
        for (int i = 0; i < count; ++i) elements[i] = bias.element<Element>(0, min(key + i * 32, end - 1));
#pragma unroll
        for (int i = 0; i < count; ++i)
            sums[i] += key + i * 32 < end ? gradtile::cuda::device::convert<float>(elements[i]) : 0.0f;
    }

    BiasRows first_, second_;
};

__device__ __forceinline__ float2 load_two_floats(std::uint32_t from) {
    float2 two;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(two.x), "=f"(two.y) : "r"(from) : "memory");
    return two;
}

}  // namespace gradtile::attention::cuda::device
