#include <gradtile/train/optimizers/lion.h>

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "lion_problem.h"

namespace gradtile {
namespace {

using test::AdamWProblem;
using test::expect_equal_to_scalar_lion;
using test::lion_lr;
using test::lion_rule;

TEST(Lion, EqualsItsFormulaInFloat64) {
    expect_equal_to_scalar_lion(Context(), DType::f64);
}
TEST(Lion, EqualsItsFormulaInFloat32) {
    expect_equal_to_scalar_lion(Context(), DType::f32);
}
TEST(Lion, UpdatesFloat32MastersOfBfloat16) {
    expect_equal_to_scalar_lion(Context(), DType::bf16);
}

TEST(Lion, EqualsNumbersThatWereComputedByHand) {
    // beta1 0.5, beta2 0.75, lr 0.25, decay 0.5: keep = 0.875; all numbers are exact in binary.
    const Context ctx;
    ParameterStore store;
    const Parameter matrix = store.add("matrix", {1, 3}, Init::zeros());
    store.allocate(ctx, DType::f64);
    copy(ctx, matrix.value(), from_host(ctx, std::vector{1.0, -2.0, 0.5}, {1, 3}, DType::f64));
    ElementwiseOptimizer optimizer(ctx, store, Lion{.beta1 = 0.5, .beta2 = 0.75, .weight_decay = 0.5});
    copy(ctx, matrix.grad(), from_host(ctx, std::vector{4.0, -1.0, 0.0}, {1, 3}, DType::f64));
    optimizer.step(ctx, 0.25);  // momenta become 1, -0.25, 0
    EXPECT_EQ(to_host(ctx, matrix.value()), (std::vector{0.625, -1.5, 0.4375}));
    copy(ctx, matrix.grad(), from_host(ctx, std::vector{-2.0, 0.25, 8.0}, {1, 3}, DType::f64));
    optimizer.step(ctx, 0.25);  // directions: -0.5, 0, 4
    EXPECT_EQ(to_host(ctx, matrix.value()), (std::vector{0.796875, -1.3125, 0.1328125}));
    EXPECT_EQ(to_host(ctx, optimizer.state().front().tensor), (std::vector{0.25, -0.125, 2.0}));
}

TEST(Lion, KeepsOneMomentumForEachParameter) {
    const Context ctx;
    AdamWProblem problem(ctx, DType::f32);
    const ElementwiseOptimizer optimizer(ctx, problem.store, lion_rule);
    std::vector<std::string> names;
    for (const StateTensor& part : optimizer.state()) names.push_back(part.name);
    const std::vector<std::string> expected{"momentum/embedding", "momentum/norm", "momentum/bias",
                                            "momentum/matrix",    "momentum/last", "updates"};
    EXPECT_EQ(names, expected);
}

TEST(Lion, ChangesNothingWhenTheUpdateIsRefused) {
    const Context ctx;
    AdamWProblem problem(ctx, DType::bf16);
    ElementwiseOptimizer optimizer(ctx, problem.store, lion_rule);
    test::expect_a_refused_update_changes_nothing(ctx, problem, optimizer, lion_lr);
}

}  // namespace
}  // namespace gradtile
