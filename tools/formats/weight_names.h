#pragma once
/// How other projects store a model's parameters: the names, the tensor count and the axis order.
#include <string>
#include <vector>

#include <gradtile/core/tensor.h>
#include <gradtile/layers/transformer/model_config.h>

namespace gradtile {

enum class WeightLayout {
    /// Names like transformer.h.0.attn.c_attn.weight; four matrices are stored as [in, out].
    huggingface_gpt2,
    huggingface_llama,  ///< names like model.layers.0.self_attn.q_proj.weight
    gguf_gpt2,          ///< names like blk.0.attn_qkv.weight
    gguf_llama,         ///< names like blk.0.attn_q.weight; the two elements of a rotated pair are neighbours
};

/// A tensor in another project's model that contains a whole parameter or a part of one.
struct WeightPart {
    std::string name;
    Shape shape;              ///< the shape in the file
    bool transposed = false;  ///< true if the file stores [in, out]
    /// If not 0: the head count; the rows of each head alternate between the head's halves.
    std::int64_t rotated = 0;
};

/// A parameter of this project's model, and the tensors whose rows, one tensor after the other, are the
/// parameter's rows.
struct WeightMapping {
    std::string parameter;
    Shape shape;
    std::vector<WeightPart> parts = {};
};

/// Returns the mappings for all parameters, in model order. The config must fit the layout (see
/// huggingface_config.h).
std::vector<WeightMapping> weight_mappings(WeightLayout layout, const ModelConfig& config);

}  // namespace gradtile
