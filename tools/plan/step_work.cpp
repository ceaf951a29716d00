#include <gradtile/tools/plan/step_work.h>

#include <gradtile/core/tensor.h>
#include <gradtile/layers/vocabulary.h>

namespace gradtile {
namespace {

double as_double(std::int64_t x) {
    return static_cast<double>(x);
}

double padded_vocabulary(const ModelConfig& model) {
    return as_double(rounded_up(model.vocabulary, vocabulary_multiple));
}

/// The elements that a block's memory-bound passes read and write per row.
struct BlockTraffic {
    // The norm of a branch's input with its residual sum: two tensors read, two written; a sum alone: two
    // read, one written; the norm of a branch's output: one read, one written.
    double norms_forward;
    // The input's norm reads x, dy and the residual gradient, and writes the residual gradient; without a
    // norm x is not read. The output's norm reads x and dy, and writes dx.
    double norms_backward;
    double norms_recomputed;  ///< recomputed norm outputs: read, written
    double activation;        ///< the activation's traffic beyond the products around it
    double activation_recomputed;
    double bias_gradients;  ///< the sums for bias gradients, which read every linear layer's output gradient
                            ///< once more
    double positions;       ///< rotary positions: q and k read and written, forward or backward
};

BlockTraffic block_traffic(const ModelConfig& model) {
    const BlockMatrices matrices = block_matrices(model);
    const double width = as_double(model.width), hidden = as_double(matrices.down.in);
    const double transformed =
        as_double((model.heads + model.key_value_heads()) * model.head_dim());  // queries and keys
    const bool normalises_outputs =
        model.block == BlockKind::output_norm || model.block == BlockKind::sandwich_norm;
    const double output_norms = normalises_outputs ? 2 : 0,
                 sums = model.block == BlockKind::output_norm ? 2 : 0, input_norms = 2 - sums;
    const double biases =
        model.bias ? as_double(matrices.qkv.out + matrices.proj.out + matrices.up.out + matrices.down.out)
                   : as_double(model.qkv_bias ? matrices.qkv.out : 0);
    const bool gated = traits_of(model.activation).gated;
    return {.norms_forward = (4 * input_norms + 3 * sums + 2 * output_norms) * width,
            .norms_backward = (4 * input_norms + 3 * sums + 3 * output_norms) * width,
            .norms_recomputed = 2 * input_norms * width,
            .activation = gated ? (2 + 1) * hidden : hidden,
            .activation_recomputed = gated ? (2 + 1) * hidden : 2 * hidden,
            .bias_gradients = biases,
            .positions = rotates_heads(model.positions) ? 2 * transformed : 0};
}

}  // namespace

Work& Work::operator+=(const Work& other) {
    product_flops += other.product_flops;
    attention_flops += other.attention_flops;
    bytes += other.bytes;
    blocks += other.blocks;
    return *this;
}

Work operator*(double times, const Work& work) {
    return {times * work.product_flops, times * work.attention_flops, times * work.bytes,
            times * work.blocks};
}

StepWork step_work(const ModelConfig& model, DType dtype, std::int64_t micro_batch, Recompute recompute) {
    const double rows = as_double(micro_batch * model.context);
    const double element = as_double(static_cast<std::int64_t>(size_of(dtype)));
    const double row_bytes = rows * element;
    // Multiply-adds for q.k, summed over heads: the mean over the layers, which may have windows.
    const double scores =
        rows * as_double(model.heads * model.head_dim()) * mean_visible_keys(model, model.context);
    // In a step each row is multiplied by all matrices three times: once forward, twice backward.
    const double products = 2.0 * rows * as_double(block_matrices(model).elements());
    const BlockTraffic traffic = block_traffic(model);

    const Work forward{.product_flops = products,
                       .attention_flops = 4.0 * scores,  // S and P V
                       .bytes = row_bytes * (traffic.norms_forward + traffic.activation + traffic.positions),
                       .blocks = 1.0 / 3};
    Work backward{.product_flops = 2.0 * products,
                  .attention_flops = 10.0 * scores,  // S recomputed, dP, dV, dK, dQ
                  .bytes = row_bytes * (traffic.norms_backward + traffic.activation + traffic.bias_gradients +
                                        traffic.positions),
                  .blocks = 2.0 / 3};
    switch (recompute) {
        case Recompute::none:
            break;
        case Recompute::activations:
            backward.bytes += row_bytes * (traffic.norms_recomputed + traffic.activation_recomputed);
            break;
        case Recompute::block:
            backward += forward;
            break;
    }

    const double width = as_double(model.width), vocabulary = padded_vocabulary(model);
    // The traffic, in bytes per parameter, in the measured steps to which the cost model is fitted. In these
    // steps AdamW also wrote zeros into the gradients: 4 bytes more than now.
    const double update_bytes = is_16_bit(dtype)
                                    ? 4 + 2 * (4 + 4 + 4 + 4) + 2  // norm; gradient, m, v, master; value
                                    : 4 + 2 * (4 + 4 + 4 + 4);     // norm; gradient, m, v, value
    return {.embed_forward = {.bytes = row_bytes * 2 * width},
            .block_forward = forward,
            .head = {.product_flops = 6.0 * rows * width * vocabulary,
                     .bytes = row_bytes * 2 * vocabulary},  // logits are replaced by their gradients
            .block_backward = backward,
            .embed_backward = {.bytes = row_bytes * 4 * width},
            .update_bytes_of_element = update_bytes};
}

Work generation_work(const ModelConfig& model, DType dtype, std::int64_t texts) {
    const double element = as_double(static_cast<std::int64_t>(size_of(dtype)));
    const double layers = as_double(model.layers), tokens = as_double(texts);
    const double weights = layers * as_double(block_matrices(model).elements()) +
                           as_double(model.width) * padded_vocabulary(model);
    // The keys that one token's heads see in all layers.
    const double keys = layers * mean_visible_keys(model, model.context);
    const double cached = 2 * keys * as_double(model.key_value_heads() * model.head_dim());
    return {.product_flops = 2 * tokens * weights,
            .attention_flops = 4 * tokens * keys * as_double(model.heads * model.head_dim()),
            .bytes = element * (weights + tokens * cached),
            .blocks = layers / 3};
}

}  // namespace gradtile
