#pragma once
/// INTERNAL; include only in sources compiled for one instruction set. Applies the score rule to transposed
/// tiles. A transposed tile's rows are keys, and its vector lanes are queries.
#include <gradtile/attention/cpu/f32/tiles.h>
#include <gradtile/attention/cpu/score_rows.h>

namespace gradtile::attention::cpu {
namespace {

/// A part of a transposed tile [keys, tile_tokens]: the pairs between `keys` and the `lanes` queries from
/// first_query on. Lanes for queries at or after end_query are padding.
struct TransposedBlock {
    float* s;  ///< the address of the pair (first key, first query)
    IndexRange keys;
    std::int64_t first_query, lanes, end_query;

    float* row(std::int64_t key) const { return s + (key - keys.begin) * tile_tokens; }
};

/// Loads row i's bias for n keys into the first n lanes, n > 0. The other lanes become 0.
template <class V, class T>
typename V::Vector load_bias(const BiasRows& bias, std::int64_t i, std::int64_t first_key, std::int64_t n) {
    const T* const row = reinterpret_cast<const T*>(bias.data) + i * bias.row_stride;
    if (bias.column_stride == 1) return V::load_first(row + first_key, n);
    alignas(64) float elements[V::lanes] = {};
    for (std::int64_t j = 0; j < smaller(n, V::lanes); ++j)
        elements[j] = convert<float>(row[(first_key + j) * bias.column_stride]);
    return V::load(elements);
}

template <class V, class T>
void add_bias(const BiasRows& bias, const TransposedBlock& block) {
    if (bias.row_stride == 0) {
        const T* const row = reinterpret_cast<const T*>(bias.data);
        for (std::int64_t key = block.keys.begin; key < block.keys.end; ++key) {
            const typename V::Vector term = V::broadcast(convert<float>(row[key * bias.column_stride]));
            float* const s = block.row(key);
            for (std::int64_t l = 0; l < block.lanes; l += V::lanes)
                V::store(s + l, V::add(V::load(s + l), term));
        }
        return;
    }
    for (std::int64_t l = 0; l < block.lanes; l += V::lanes)
        for (std::int64_t key = block.keys.begin; key < block.keys.end; key += V::lanes) {
            const std::int64_t n = block.keys.end - key;
            typename V::Vector square[V::lanes];
#pragma GCC unroll 16
            for (int r = 0; r < V::lanes; ++r) {
                const std::int64_t i = block.first_query + l + r;
                square[r] = i < block.end_query ? load_bias<V, T>(bias, i, key, n) : V::zero();
            }
            V::transpose(square);
            for (int j = 0; j < smaller(n, V::lanes); ++j) {
                float* const s = block.row(key + j) + l;
                V::store(s, V::add(V::load(s), square[j]));
            }
        }
}

/// Replaces dot products by scores. The rule's input is the product, scale * dot product.
template <class V, class T>
void apply_rule(const ScoreRule<float>& rule, float scale, const TransposedBlock& block) {
    for (std::int64_t key = block.keys.begin; key < block.keys.end; ++key) {
        float* const s = block.row(key);
        for (std::int64_t l = 0; l < block.lanes; ++l) s[l] *= scale;
        if (rule.formula.changes_products()) apply_to_products(rule.formula, block.lanes, s);
        if (rule.formula.has_distance_terms())
            add_distance_terms(rule.formula, block.first_query + rule.offset - key, 1, block.lanes, s);
    }
    for (const BiasRows& bias : rule.biases) {
        if (bias.data == nullptr) continue;
        // A bias is float32 or has q's dtype.
        if (bias.dtype == dtype_of<T>) {
            add_bias<V, T>(bias, block);
        } else {
            add_bias<V, float>(bias, block);
        }
    }
}

/// Multiplies P by the dropout factors. One random draw serves eight neighbouring keys of one query, and a
/// vector holds the draws for V::lanes queries.
template <class V>
void apply_dropout(const ScoreRule<float>& rule, const TransposedBlock& block) {
    if (!rule.drops()) return;
    constexpr std::int64_t keys_per_draw = ScoreRule<float>::columns_per_draw;
    const int threshold = static_cast<int>(rule.dropout_threshold);
    const typename V::Vector scale = V::broadcast(rule.dropout_scale);
    for (std::int64_t l = 0; l < block.lanes; l += V::lanes)
        for (std::int64_t group = block.keys.begin / keys_per_draw; group * keys_per_draw < block.keys.end;
             ++group) {
            alignas(64) std::uint32_t words[4][V::lanes];
            Philox::draw_rows(words, rule.counter_of(block.first_query + l, group), rule.key);
            const IndexRange keys =
                intersection({group * keys_per_draw, (group + 1) * keys_per_draw}, block.keys);
            for (std::int64_t key = keys.begin; key < keys.end; ++key) {
                const std::uint32_t* const word = words[key % keys_per_draw / 2];
                const int shift = 16 * static_cast<int>(key % 2);
                float* const p = block.row(key) + l;
                V::store(p, V::mul(V::load(p), V::if_half_at_least(threshold, word, shift, scale)));
            }
        }
}

}  // namespace
}  // namespace gradtile::attention::cpu
