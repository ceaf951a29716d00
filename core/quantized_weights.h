#pragma once
/// Weights in 4 or 8 bits, for matrices that training does not change. They are read through
/// dequantize_weights().
///
/// nf4: Dettmers et al. 2023, "QLoRA: efficient finetuning of quantized LLMs", section 3, with the numbers of
/// bitsandbytes. A block of 64 neighbours has a scale, its largest magnitude; a weight is the scale times one
/// of 16 values: quantiles of a normal distribution, so that normally distributed weights use all codes
/// equally often. Scales are stored in 8 bits (double quantisation): the matrix's mean scale is subtracted,
/// and 256 differences share a float32, their largest magnitude, times one of 256 values of Dettmers' dynamic
/// code. 4.127 bits a weight.
///
/// int8: a weight is an integer from -127 to 127 times its block's float32 scale, the block's largest
/// magnitude / 127. 8.5 bits a weight. The scales are not quantised further: their error would exceed that of
/// the integers. bitsandbytes' dynamic code and the moments' (MomentFormat::int8) are for numbers with many
/// magnitudes. In a weight block most are near the largest, where the integers are nearer: within
/// 1/254 of the largest, and those codes within 1/142 and 1/32.
#include <gradtile/core/enum_names.h>
#include <gradtile/core/tensor.h>

namespace gradtile {

/// How frozen weights are kept. same: in the other weights' dtype.
enum class WeightFormat { same, nf4, int8 };

/// Neighbours, in row-major order, that share a scale. The last block of a matrix may be shorter.
inline constexpr std::int64_t quantized_block = 64;
/// Scales of nf4 that share a float32.
inline constexpr std::int64_t quantized_group = 256;

/// Where the parts of quantised weights begin, in int32 words. The codes begin at word 0.
///   nf4: codes, two in a byte, the first one in its upper half; scale codes, one in a byte; float32 group
///        scales; the float32 mean scale.
///   int8: codes, one in a byte; float32 scales. `groups` and `mean` are the end.
/// Parts are padded with zeros to whole words.
struct QuantizedLayout {
    std::int64_t scales = 0, groups = 0, mean = 0;
    std::int64_t words = 0;  ///< how many in all
};
/// Throws Error for WeightFormat::same.
QuantizedLayout quantized_layout(WeightFormat format, std::int64_t elements);

/// Rounds weights, in any floating dtype (read as float32) and contiguous, to the nearest codes. words is
/// int32 [quantized_layout().words] and is overwritten. Computes on the host: both tensors are on the CPU.
/// Throws Error if a weight is not finite as float32.
void quantize_weights(const Context& ctx, const Tensor& words, const Tensor& weights, WeightFormat format);
/// Overwrites weights, in any floating dtype and contiguous, by what words hold: products in float32, rounded
/// to the dtype.
void dequantize_weights(const Context& ctx, const Tensor& weights, const Tensor& words, WeightFormat format);

template <>
struct EnumNames<WeightFormat> {
    static constexpr std::array names = {std::pair{WeightFormat::same, std::string_view("same")},
                                         std::pair{WeightFormat::nf4, std::string_view("nf4")},
                                         std::pair{WeightFormat::int8, std::string_view("int8")}};
};

}  // namespace gradtile
