// Operands that are missing, for every public operator: an undefined tensor, a tensor without axes, and the
// saved values of no forward pass. The operators are found in the installed headers, so that a new operator
// without a row in the table (operand_rows.h) fails the first test.
#include "operand_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/attention/attention.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/activation.h>

#include <support/public_operators.h>

namespace gradtile {
namespace {

using testing::AnyOf;
using testing::Not;
using testing::StartsWith;

std::string error_with(const OperandRow& row, const Operands& operands) {
    try {
        row.call(operands);
    } catch (const Error& error) {
        return error.what();
    } catch (const std::exception& error) {
        return concat("no gradtile::Error: ", error.what());
    }
    return "no error";
}

/// Expects an error of the operator, and not of the tensor functions that it calls.
void expect_refused(const OperandRow& row, const Operands& operands, const std::string& what) {
    const std::string message = error_with(row, operands);
    EXPECT_THAT(message, StartsWith(row.prefix)) << row.name << ", " << what;
    EXPECT_THAT(message, Not(AnyOf(StartsWith("shape: "), StartsWith("tensor: "), StartsWith("no "))))
        << row.name << ", " << what;
}

TEST(UndefinedOperands, AreRefusedByTheOperator) {
    const Operators operators;
    for (const OperandRow& row : operators.rows()) {
        EXPECT_EQ(error_with(row, row.operands), "no error") << row.name;
        for (std::size_t i = 0; i < row.operands.size(); ++i) {
            Operands operands = row.operands;
            operands[i] = {};
            if (!row.optional.contains(i)) expect_refused(row, operands, concat("without operand ", i));
            // A tensor without axes has one element, which some operators accept.
            operands[i] = zeros(operators.ctx, {}, row.operands[i].dtype());
            if (error_with(row, operands) != "no error")
                expect_refused(row, operands, concat("without axes of operand ", i));
        }
    }
}

TEST(UndefinedOperands, EveryPublicOperatorHasARow) {
    // These take no tensor from the caller but parameters, optimizer states or what another row checks.
    const std::set<std::string> without{
        "layers/transformer/multi_head_attention.h: differentiate_queries_and_keys",
        "tools/lab/warp_partition.h: partitioned_forward",
        "train/optimizers/elementwise_optimizer.h: step",
        "train/optimizers/matrix_optimizer.h: step",
        "train/optimizers/optimizer.h: step",
        "train/parallel/data_parallel.h: sum"};
    std::set<std::string> rows = without;
    const Operators operators;
    for (const OperandRow& row : operators.rows()) {
        const std::string name = row.name;
        rows.insert(name.substr(0, name.find(' ', name.find(": ") + 2)));
    }
    for (const std::string& name : test::public_operators())
        EXPECT_TRUE(rows.contains(name)) << name << " has no row";
}

template <class Call>
std::string message_of_saved(const Call& call) {
    return error_with({"", "", {}, [&](const Operands&) { call(); }}, {});
}

TEST(UndefinedOperands, BackwardRefusesTheSavedValuesOfNoForwardPass) {
    const Operators o;
    const Tensor dy = o.numbers({1, 3, 4}), wide = o.numbers({1, 3, 8});
    const std::pair<const char*, std::function<void()>> calls[] = {
        {"attention: ",
         [&] {
             attention::backward(o.ctx, o.numbers({1, 3, 2, 8}), {}, {});
         }},
        {"gelu-tanh: ", [&] { ActivationLayer().backward(o.ctx, dy, {}); }},
        {"cross_entropy: ", [&] { o.head.backward(o.ctx, {}); }},
        {"dropout: ", [&] { o.dropout.backward(o.ctx, dy, {}); }},
        {"dropout: ", [&] { Dropout().backward(o.ctx, SummedGradient(dy), {}); }},
        {"embedding: ", [&] { o.embedding.backward(o.ctx, dy, {}); }},
        {"position_embedding: ", [&] { o.positions.backward(o.ctx, dy, {}); }},
        {"weighted_sum: ",
         [&] {
             std::vector<Tensor> others(1);
             o.weighted_sum.backward(o.ctx, dy, {}, others);
         }},
        {"head_gate: ",
         [&] {
             const Tensor heads = o.numbers({1, 3, 2, 4});
             o.gate.backward_heads(o.ctx, heads, heads, heads, {});
         }},
        {"layer_norm: ", [&] { o.layer_norm.backward(o.ctx, dy, {}); }},
        {"rms_norm: ", [&] { o.rms_norm.backward(o.ctx, dy, {}); }},
        {"linear ",
         [&] {
             o.linear.backward(o.ctx, o.numbers({1, 3, 6}), {});
         }},
        {"gelu-tanh: ", [&] { o.block.mlp.backward(o.ctx, wide, {}); }},
        {"linear ", [&] { o.block.attn.backward(o.ctx, wide, {}); }},
        {"transformer: ", [&] { o.model.backward(o.ctx, {}); }}};
    for (const auto& [prefix, call] : calls) {
        const std::string message = message_of_saved(call);
        EXPECT_THAT(message, StartsWith(prefix));
        EXPECT_THAT(message, Not(AnyOf(StartsWith("shape: "), StartsWith("no ")))) << prefix;
    }
}

TEST(UndefinedOperands, UnknownActivationsAndPositionsAreNamed) {
    const Operators o;
    ActivationLayer::Saved saved;
    EXPECT_EQ(message_of_saved([&] {
                  ActivationLayer{static_cast<Activation>(99)}.forward(o.ctx, o.numbers({3, 4}), saved);
              }),
              "activation: unknown activation 99; expected gelu-tanh, gelu, swiglu, relu2 or geglu-tanh");
    const Tensor outside = from_host(o.ctx, std::vector<std::int32_t>{0, 8, 1}, {1, 3});
    EXPECT_EQ(message_of_saved([&] { o.rope.angles_at(o.ctx, outside, DType::f32); }),
              "rope: position 8 is outside 0 to 7");
    PositionEmbedding::Saved saved_positions;
    EXPECT_EQ(message_of_saved([&] {
                  o.positions.forward_at(o.ctx, o.numbers({1, 3, 4}), outside, saved_positions);
              }),
              "position_embedding: position 8 is outside 0 to 7");
}

}  // namespace
}  // namespace gradtile
