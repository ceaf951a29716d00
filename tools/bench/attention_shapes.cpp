#include <gradtile/tools/bench/attention_shapes.h>

namespace gradtile::cli {
namespace {

/// Counts the pairs (row, key) in which the row sees the key. Causal rows are aligned with the last key;
/// for equal lengths the number is taken as k^2 / 2, as in published figures.
double pairs_of(std::int64_t queries, std::int64_t keys, bool causal) {
    const double q = static_cast<double>(queries), k = static_cast<double>(keys);
    if (!causal) return q * k;
    return queries == keys ? k * k / 2 : q <= k ? q * (k - (q - 1) / 2) : k * (k + 1) / 2;
}

}  // namespace

double Shapes::pairs() const {
    if (packed.empty()) return static_cast<double>(batch) * pairs_of(queries, length, causal);
    double sum = 0;
    for (const std::int64_t tokens : packed) sum += pairs_of(tokens, tokens, causal);
    return sum;
}

std::vector<Shapes> default_shapes(Device device) {
    if (device.is_cuda())
        return {{16, 12, 12, 1024, 1024, 64}, {16, 16, 16, 1024, 1024, 128}, {4, 16, 16, 4096, 4096, 64},
                {4, 16, 16, 4096, 4096, 128}, {4, 32, 8, 4096, 4096, 128},   {1, 16, 16, 16384, 16384, 128}};
    return {{12, 4, 4, 64, 64, 32},
            {16, 6, 6, 256, 256, 64},
            {1, 12, 12, 1024, 1024, 64},
            {1, 12, 4, 1024, 1024, 64}};
}

std::vector<Shapes> anchored_shapes(const std::string& path) {
    std::vector<Shapes> list;
    for (const AnchoredCall& call : read_anchors(path))
        list.push_back({.batch = call.batch,
                        .heads = call.heads,
                        .kv_heads = call.heads,
                        .queries = call.length,
                        .length = call.length,
                        .head_dim = call.head_dim,
                        .causal = call.causal,
                        .anchors = call.times});
    return list;
}

}  // namespace gradtile::cli
