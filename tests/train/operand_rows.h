#pragma once
/// A row for every public operator, with operands that it accepts: the table behind
/// undefined_operands_test.cpp.
#include <functional>
#include <set>
#include <vector>

#include <gradtile/core/random.h>
#include <gradtile/layers/embedding.h>
#include <gradtile/layers/learned_factors.h>
#include <gradtile/layers/norm.h>
#include <gradtile/layers/transformer/transformer.h>
#include <gradtile/train/parallel/data_parallel.h>

#include <support/silent_pair.h>

namespace gradtile {

using Operands = std::vector<Tensor>;

struct OperandRow {
    const char* name;    // "header: function", and after a space what distinguishes two rows
    const char* prefix;  // what the operator's errors begin with
    Operands operands;   // that the operator accepts
    std::function<void(const Operands&)> call;
    std::set<std::size_t> optional = {};  // operands that may be undefined
};

/// The rows' operators, with parameters that live as long as the rows.
struct Operators {
    const Context ctx{Device::cpu(), 1};
    ParameterStore store;
    const ModelConfig config{.layers = 1, .heads = 2, .width = 8, .context = 4, .vocabulary = 16};
    const Embedding embedding{store, "e", 8, 4};
    const PositionEmbedding positions{store, "p", 8, 4};
    const LayerNorm layer_norm{store, "ln", 4, /*bias=*/true};
    const RMSNorm rms_norm{store, "rn", 4};
    const Linear linear{store, "l", 4, 6};
    const LowRankAdapter adapter{store, "a", 4, 6, {.rank = 2, .alpha = 2}};
    const CrossEntropyHead head{store, "head", 8, 4};
    const WeightedSum weighted_sum{store, "s", std::vector<WeightedSum::Term>{{"a", 1.0}, {"b", 1.0}}};
    const HeadGate gate{store, "g", 8, 2, 1.0};
    const ValueEmbedding value{store, "v", 8, 8, 2, 4, 0.02};
    const Transformer model{config, store};
    const TransformerBlock& block = model.blocks.front();
    const Dropout dropout{0.5};
    const DropoutKey key = DropoutKey{.training = true};
    const Rope rope{4, 8};
    const test::SilentPair pair;
    const KeyValueCache cache{ctx, config, DType::f32, 1};

    Operators() {
        store.allocate(ctx, DType::f32);
        store.initialize(ctx, Seed{1});
    }
    Tensor numbers(const Shape& shape, DType dtype = DType::f32) const {
        return randn(ctx, shape, dtype, Seed{3});
    }
    Tensor ids(const Shape& shape) const { return zeros(ctx, shape, DType::i32); }

    std::vector<OperandRow> rows() const;
    void add_core(std::vector<OperandRow>& all) const;
    void add_attention(std::vector<OperandRow>& all) const;
    void add_layers(std::vector<OperandRow>& all) const;
    void add_norms_and_fused_layers(std::vector<OperandRow>& all) const;
    void add_linear_layers(std::vector<OperandRow>& all) const;
    void add_learned_factors(std::vector<OperandRow>& all) const;
    void add_transformer(std::vector<OperandRow>& all) const;
    void add_training(std::vector<OperandRow>& all) const;
};

}  // namespace gradtile
