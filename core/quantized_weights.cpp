#include <gradtile/core/quantized_weights.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include <gradtile/core/internal/overlap.h>
#include <gradtile/core/internal/quantized_codes.h>

namespace gradtile {
namespace {

constexpr std::int64_t bytes_per_word = sizeof(std::int32_t);

using BlockCodes = std::array<std::uint8_t, quantized_block>;

/// Calls body(block, first element, elements of the block) for all blocks.
template <class Body>
void for_blocks(const Context& ctx, std::int64_t elements, const Body& body) {
    constexpr std::int64_t grain = 512;
    parallel_ranges(ctx, ceil_div(elements, quantized_block), grain,
                    [&](std::int64_t begin, std::int64_t end) {
                        for (std::int64_t block = begin; block < end; ++block) {
                            const std::int64_t first = block * quantized_block;
                            body(block, first, std::min(quantized_block, elements - first));
                        }
                    });
}

void check_operands(const Context& ctx, const char* op, const Tensor& words, const Tensor& weights,
                    WeightFormat format) {
    check(words.defined() && weights.defined(), op, ": an operand is undefined; expected a tensor");
    check(is_floating(weights.dtype()) && weights.is_contiguous(), op, ": weights ", weights,
          "; expected a contiguous floating-point tensor");
    const std::int64_t expected = quantized_layout(format, weights.elements()).words;
    check(words.dtype() == DType::i32 && words.is_contiguous() && words.shape() == Shape{expected}, op,
          ": words ", words, " for weights ", weights, " in ", name_of(format),
          "; expected contiguous int32 [", expected, "]");
    for (const Tensor* x : {&words, &weights})
        check(x->device() == ctx.device(), op, ": ", *x, " in a context of ", ctx.device(),
              "; devices must be equal");
}

/// The largest magnitude of a block's weights. Throws Error if one is not finite.
float largest_magnitude(const float* x, std::int64_t count) {
    std::uint32_t largest = 0;
    for (std::int64_t i = 0; i < count; ++i)
        largest = std::max(largest, std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffffu);
    check(largest < 0x7f800000u,
          "quantize_weights: a weight is not finite in float32; expected finite weights");
    return std::bit_cast<float>(largest);
}

/// How many of the midpoints between neighbouring values are below x: the code of the value nearest to x.
template <std::size_t n>
void nearest_codes(const std::array<float, n>& values, const float* x, std::int64_t count,
                   std::uint8_t* codes) {
    std::fill(codes, codes + count, std::uint8_t{0});
    for (std::size_t code = 0; code + 1 < n; ++code) {
        const float midpoint = (values[code] + values[code + 1]) / 2;
        for (std::int64_t i = 0; i < count; ++i)
            codes[i] = static_cast<std::uint8_t>(codes[i] + (midpoint < x[i] ? 1 : 0));
    }
}

std::array<float, 16> nf4_values() {
    std::array<float, 16> values;
    for (std::uint32_t code = 0; code < values.size(); ++code) values[code] = nf4_value(code);
    return values;
}
const std::array<float, 256>& scale_code_values() {
    static const auto table = [] {
        std::array<float, 256> values;
        for (std::size_t code = 0; code < values.size(); ++code)
            values[code] = scale_code_value(static_cast<int>(code));
        return values;
    }();
    return table;
}

/// Writes a block's nf4 codes, two in a byte, and returns its scale.
float quantize_nf4_block(const std::array<float, 16>& values, const float* x, std::int64_t count,
                         std::uint8_t* packed) {
    const float largest = largest_magnitude(x, count);
    // As in bitsandbytes, whose float32 numbers for blocks of very small weights otherwise overflow.
    const float factor = 1.0f / std::max(largest, 1e-38f);
    std::array<float, quantized_block> scaled{};  // the rest of a short block has the code of 0
    for (std::int64_t i = 0; i < count; ++i)
        scaled[static_cast<std::size_t>(i)] = std::clamp(x[i] * factor, -1.0f, 1.0f);
    BlockCodes codes;
    nearest_codes(values, scaled.data(), quantized_block, codes.data());
    for (std::size_t i = 0; i < codes.size(); i += 2)
        packed[i / 2] = static_cast<std::uint8_t>(codes[i] << 4 | codes[i + 1]);
    return largest;
}

/// Writes a block's integers, and returns its scale.
float quantize_int8_block(const float* x, std::int64_t count, std::uint8_t* codes) {
    const float scale = largest_magnitude(x, count) / 127.0f;
    for (std::int64_t i = 0; i < count; ++i) {
        const float rounded = scale > 0.0f ? std::nearbyint(x[i] / scale) : 0.0f;
        codes[i] = static_cast<std::uint8_t>(static_cast<std::int8_t>(std::clamp(rounded, -127.0f, 127.0f)));
    }
    return scale;
}

/// Stores the scales of a matrix in nf4: their mean, and 8 bits for each difference from it.
void store_nf4_scales(std::int32_t* words, const QuantizedLayout& layout, std::vector<float>& scales) {
    const auto blocks = static_cast<std::int64_t>(scales.size());
    double sum = 0.0;
    for (const float scale : scales) sum += scale;
    const auto mean = static_cast<float>(sum / static_cast<double>(std::max<std::int64_t>(1, blocks)));
    std::memcpy(words + layout.mean, &mean, sizeof mean);
    auto* const codes = reinterpret_cast<std::uint8_t*>(words + layout.scales);
    auto* const groups = reinterpret_cast<float*>(words + layout.groups);
    for (std::int64_t begin = 0; begin < blocks; begin += quantized_group) {
        const std::int64_t count = std::min(quantized_group, blocks - begin);
        float* const differences = scales.data() + begin;
        for (std::int64_t i = 0; i < count; ++i) differences[i] -= mean;
        const float largest = largest_magnitude(differences, count);
        groups[begin / quantized_group] = largest;
        for (std::int64_t i = 0; i < count; ++i)
            differences[i] = largest > 0.0f ? differences[i] / largest : 0.0f;
        nearest_codes(scale_code_values(), differences, count, codes + begin);
    }
}

}  // namespace

QuantizedLayout quantized_layout(WeightFormat format, std::int64_t elements) {
    const std::int64_t blocks = ceil_div(elements, quantized_block);
    QuantizedLayout layout;
    switch (format) {
        case WeightFormat::same:
            break;
        case WeightFormat::nf4:
            layout.scales = blocks * (quantized_block / 2 / bytes_per_word);
            layout.groups = layout.scales + ceil_div(blocks, bytes_per_word);
            layout.mean = layout.groups + ceil_div(blocks, quantized_group);
            layout.words = layout.mean + 1;
            return layout;
        case WeightFormat::int8:
            layout.scales = blocks * (quantized_block / bytes_per_word);
            layout.groups = layout.mean = layout.words = layout.scales + blocks;
            return layout;
    }
    throw Error(concat("quantized_layout: format ", name_of(format), "; expected nf4 or int8"));
}

void quantize_weights(const Context& ctx, const Tensor& words, const Tensor& weights, WeightFormat format) {
    constexpr const char* op = "quantize_weights";
    check(ctx.device().is_cpu(), op, ": in a context of ", ctx.device(), "; expected the CPU");
    check_operands(ctx, op, words, weights, format);
    check_sharing(ctx, op, {"words", words}, {{"weights", weights}});
    if (ctx.is_planning()) return;
    const std::int64_t elements = weights.elements(), blocks = ceil_div(elements, quantized_block);
    const QuantizedLayout layout = quantized_layout(format, elements);
    auto* const to = words.data<std::int32_t>();
    std::fill(to, to + layout.words, 0);
    auto* const codes = reinterpret_cast<std::uint8_t*>(to);
    const std::int64_t bytes_per_block = layout.scales * bytes_per_word / std::max<std::int64_t>(1, blocks);
    const std::array<float, 16> values = nf4_values();
    std::vector<float> scales(static_cast<std::size_t>(blocks));
    visit_floating(weights.dtype(), [&]<class Weight>(TypeTag<Weight>) {
        const Weight* const from = weights.data<Weight>();
        for_blocks(ctx, elements, [&](std::int64_t block, std::int64_t first, std::int64_t count) {
            std::array<float, quantized_block> x{};
            for (std::int64_t i = 0; i < count; ++i)
                x[static_cast<std::size_t>(i)] = convert<float>(from[first + i]);
            std::uint8_t* const own = codes + block * bytes_per_block;
            scales[static_cast<std::size_t>(block)] = format == WeightFormat::nf4
                                                          ? quantize_nf4_block(values, x.data(), count, own)
                                                          : quantize_int8_block(x.data(), count, own);
        });
    });
    if (format == WeightFormat::nf4) {
        store_nf4_scales(to, layout, scales);
    } else {
        std::memcpy(to + layout.scales, scales.data(), scales.size() * sizeof(float));
    }
}

void dequantize_weights(const Context& ctx, const Tensor& weights, const Tensor& words, WeightFormat format) {
    constexpr const char* op = "dequantize_weights";
    check_operands(ctx, op, words, weights, format);
    check_sharing(ctx, op, {"weights", weights}, {{"words", words}});
    if (weights.elements() == 0) return;
    on_device(ctx, cpu::dequantize_weights, cuda::dequantize_weights, weights, words, format);
}

namespace cpu {
namespace {

template <class Weight>
void dequantize_nf4(const Context& ctx, Weight* weights, const std::int32_t* words, std::int64_t elements) {
    const QuantizedLayout layout = quantized_layout(WeightFormat::nf4, elements);
    const auto* const codes = reinterpret_cast<const std::uint8_t*>(words);
    const std::array<float, 256>& scale_codes = scale_code_values();
    for_blocks(ctx, elements, [&](std::int64_t block, std::int64_t first, std::int64_t count) {
        const auto code = static_cast<std::size_t>(nf4_scale_code(words, layout, block));
        const float scale = nf4_scale(words, layout, block, scale_codes[code]);
        std::array<Weight, 16> values;
        for (std::uint32_t k = 0; k < values.size(); ++k) values[k] = convert<Weight>(nf4_value(k) * scale);
        const std::uint8_t* const pairs = codes + first / 2;
        for (std::int64_t i = 0; i < count; ++i) {
            const unsigned pair = pairs[i / 2];
            weights[first + i] = values[i % 2 == 0 ? pair >> 4 : pair & 15u];
        }
    });
}

template <class Weight>
void dequantize_int8(const Context& ctx, Weight* weights, const std::int32_t* words, std::int64_t elements) {
    const QuantizedLayout layout = quantized_layout(WeightFormat::int8, elements);
    const auto* const codes = reinterpret_cast<const std::int8_t*>(words);
    const auto* const scales = reinterpret_cast<const float*>(words + layout.scales);
    for_blocks(ctx, elements, [&](std::int64_t block, std::int64_t first, std::int64_t count) {
        for (std::int64_t i = first; i < first + count; ++i)
            weights[i] = convert<Weight>(static_cast<float>(codes[i]) * scales[block]);
    });
}

}  // namespace

void dequantize_weights(const Context& ctx, const Tensor& weights, const Tensor& words, WeightFormat format) {
    visit_floating(weights.dtype(), [&]<class Weight>(TypeTag<Weight>) {
        auto* const to = weights.data<Weight>();
        const auto* const from = words.data<std::int32_t>();
        if (format == WeightFormat::nf4) {
            dequantize_nf4(ctx, to, from, weights.elements());
        } else {
            dequantize_int8(ctx, to, from, weights.elements());
        }
    });
}

}  // namespace cpu
}  // namespace gradtile
