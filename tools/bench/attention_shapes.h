#pragma once
/// The calls that `gradtile bench attention` times: their shapes, FLOPs and elements.
#include <cstdint>
#include <string>
#include <vector>

#include <gradtile/core/allocator.h>
#include <gradtile/tools/bench/attention_anchor.h>

namespace gradtile::cli {

struct Shapes {
    std::int64_t batch, heads, kv_heads, queries, length, head_dim;
    std::vector<std::int64_t> packed = {};  ///< sequence lengths of a packed batch, which replace batch and
                                            ///< length
    bool causal = true;
    std::vector<AnchorTimes> anchors = {};  ///< with these, heads lie before tokens in memory, as in PyTorch

    /// Visible pairs (row, key).
    double pairs() const;
    double forward_flops() const { return 4.0 * static_cast<double>(heads * head_dim) * pairs(); }
    /// Element count: q, k, v and o.
    double forward_elements() const {
        return static_cast<double>(batch * head_dim) *
               static_cast<double>(2 * heads * queries + 2 * kv_heads * length);
    }
};

/// GPT-2 shapes, long contexts and grouped queries.
std::vector<Shapes> default_shapes(Device device);
/// The calls in a file of bench/attention_anchor.py.
std::vector<Shapes> anchored_shapes(const std::string& path);

}  // namespace gradtile::cli
