#include <gradtile/train/optimizers/muon.h>

#include <cmath>
#include <map>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/transformer/transformer.h>
#include <gradtile/train/optimizers/global_norm.h>
#include <gradtile/train/parallel/data_parallel.h>

#include <support/overfit_batch.h>

#include "optimizer_problems.h"

namespace gradtile {
namespace {

using test::distance;
using test::expect_near;
using test::in_blocks;
using test::muon_lr;
using test::muon_options;
using test::MuonProblem;
using test::normuon_options;
using test::packed_in_blocks;

TEST(Muon, UpdatesMatricesByOrthogonalisedNesterovMomentum) {
    const Context ctx;
    MuonProblem problem(ctx, DType::f64);
    Muon optimizer(ctx, problem.store, in_blocks, muon_options);
    const double rate = muon_lr * muon_options.matrix.lr_ratio;
    for (const auto& [name, factor] : {std::pair{"blocks.0.tall", 2.0}, std::pair{"blocks.0.wide", 1.0},
                                       std::pair{"blocks.1.tall", 2.0}}) {
        const Parameter w = problem.store.find(name);
        const Tensor momentum = zeros(ctx, w.shape(), DType::f64);
        const Tensor expected = cast(ctx, w.value(), DType::f64);
        for (std::uint64_t t = 1; t <= 3; ++t) {
            problem.set_gradients(ctx, t);
            // momentum = 0.95 momentum + 0.05 g; update = 0.95 momentum + 0.05 g
            const Tensor update = zeros(ctx, w.shape(), DType::f64);
            for (std::int64_t i = 0; i < w.shape().elements(); ++i) {
                double& m = momentum.data<double>()[i];
                const double g = w.grad().data<double>()[i];
                m = 0.95 * m + 0.05 * g;
                update.data<double>()[i] = 0.95 * m + 0.05 * g;
            }
            newton_schulz(ctx, update, update.dtype());
            for (std::int64_t i = 0; i < w.shape().elements(); ++i) {
                double& value = expected.data<double>()[i];
                value = (1.0 - rate * 0.1) * value - rate * factor * update.data<double>()[i];
            }
        }
        MuonProblem fresh(ctx, DType::f64);
        Muon muon(ctx, fresh.store, in_blocks, muon_options);
        for (std::uint64_t t = 1; t <= 3; ++t) {
            fresh.set_gradients(ctx, t);
            muon.step(ctx, muon_lr);
        }
        // The bound: the momentum's rounding (eps) times the quintic's slope (below 500), in three steps.
        expect_near(ctx, fresh.store.find(name).value(), expected,
                    3 * 500.0 * 5 * 3 * 32 * std::numeric_limits<double>::epsilon());
    }
}

/// One matrix under normuon_options, computed element by element in float64. Only the direction comes from
/// newton_schulz(), which the tests of NewtonSchulz compare with its polynomials.
struct ReferenceMatrix {
    ReferenceMatrix(const Context& ctx, const Tensor& start)
        : weights(cast(ctx, start, DType::f64)),
          momentum(zeros(ctx, start.shape(), DType::f64)),
          second_moment(static_cast<std::size_t>(start.size(0)), 0.0) {}

    void step(const Context& ctx, const Tensor& gradient, const MuonOptions& options, double lr) {
        const MomentumRule& rule = options.matrix.momentum;
        const double decay = updates < rule.warmup ? 0.85 + (rule.decay - 0.85) * updates / 2.0 : rule.decay;
        ++updates;
        const Tensor direction = zeros(ctx, weights.shape(), DType::f64);
        const std::int64_t rows = weights.size(0), cols = weights.size(1);
        for (std::int64_t i = 0; i < rows * cols; ++i) {
            double& m = momentum.data<double>()[i];
            m = decay * m + (1.0 - decay) * gradient.data<double>()[i];
            direction.data<double>()[i] = m;
        }
        newton_schulz(ctx, direction, DType::f64, options.coefficients);
        double before = 0.0, after = 0.0;
        for (std::int64_t r = 0; r < rows; ++r) {
            double squares = 0.0;
            double* const row = direction.data<double>() + r * cols;
            for (std::int64_t c = 0; c < cols; ++c) squares += row[c] * row[c];
            double& v = second_moment[static_cast<std::size_t>(r)];
            v = options.matrix.beta2 * v + (1.0 - options.matrix.beta2) * squares / static_cast<double>(cols);
            for (std::int64_t c = 0; c < cols; ++c) row[c] /= std::sqrt(v);
            before += squares;
            after += squares / v;
        }
        const double rate = lr * options.matrix.lr_ratio;
        const double length =
            0.2 * std::sqrt(static_cast<double>(std::max(rows, cols))) * std::sqrt(before / after);
        for (std::int64_t i = 0; i < rows * cols; ++i) {
            double& w = weights.data<double>()[i];
            const double change = direction.data<double>()[i];
            if (change * w >= 0.0) w *= 1.0 - rate * options.matrix.weight_decay;
            w -= rate * length * change;
        }
    }

    Tensor weights, momentum;
    std::vector<double> second_moment;
    int updates = 0;
};

TEST(Muon, FollowsItsFormulaWithEveryVariation) {
    const Context ctx;
    MuonProblem problem(ctx, DType::f64);
    Muon optimizer(ctx, problem.store, in_blocks, normuon_options);
    std::map<std::string, ReferenceMatrix> reference;
    for (const char* name : {"blocks.0.tall", "blocks.0.wide", "blocks.1.tall"})
        reference.emplace(name, ReferenceMatrix(ctx, problem.store.find(name).value()));
    for (std::uint64_t t = 1; t <= 4; ++t) {
        problem.set_gradients(ctx, t);
        for (auto& [name, matrix] : reference)
            matrix.step(ctx, problem.store.find(name).grad(), normuon_options, muon_lr);
        optimizer.step(ctx, muon_lr);
    }
    // As in UpdatesMatricesByOrthogonalisedNesterovMomentum, with the slope of Polar Express.
    for (const auto& [name, matrix] : reference)
        expect_near(ctx, problem.store.find(name).value(), matrix.weights,
                    4 * 967.0 * 5 * 3 * 32 * std::numeric_limits<double>::epsilon());
}

TEST(Muon, UpdatesPackedMatricesLikeSeparateParameters) {
    const Context ctx(Device::cpu(), 2);
    for (const MuonOptions& options : {muon_options, normuon_options}) {
        MuonProblem packed(ctx, DType::f64);
        ParameterStore separate;
        for (const char* name : {"blocks.0.a", "blocks.0.b", "blocks.0.c"})
            separate.add(name, {std::string_view(name).ends_with('a') ? 16 : 8, 8}, Init::zeros());
        separate.allocate(ctx, DType::f64);
        const auto copy_rows = [&](bool values) {
            const Parameter tall = packed.store.find("blocks.0.tall");
            std::int64_t row = 0;
            for (const Parameter& part : separate.parameters()) {
                const Tensor& from = values ? tall.value() : tall.grad();
                copy(ctx, values ? part.value() : part.grad(), from.slice(0, row, part.shape()[0]));
                row += part.shape()[0];
            }
        };
        copy_rows(/*values=*/true);
        Muon of_packed(ctx, packed.store, packed_in_blocks, options),
            of_separate(ctx, separate, in_blocks, options);
        for (std::uint64_t t = 1; t <= 3; ++t) {
            packed.set_gradients(ctx, t);
            copy_rows(/*values=*/false);
            of_packed.step(ctx, muon_lr);
            of_separate.step(ctx, muon_lr);
        }
        const std::vector<double> together = to_host(ctx, packed.store.find("blocks.0.tall").value());
        std::vector<double> apart;
        for (const Parameter& part : separate.parameters())
            for (const double value : to_host(ctx, part.value())) apart.push_back(value);
        // A library may sum in another order when it multiplies another number of matrices.
        const double bound = 3 * 967.0 * 5 * 3 * 32 * std::numeric_limits<double>::epsilon();
        ASSERT_EQ(together.size(), apart.size());
        for (std::size_t i = 0; i < apart.size(); ++i) ASSERT_NEAR(together[i], apart[i], bound) << i;
    }
}

TEST(Muon, PackedMatricesHaveTheStateOfTheirParameter) {
    const Context ctx;
    MuonProblem problem(ctx, DType::f32);
    const Muon whole(ctx, problem.store, in_blocks, normuon_options),
        packed(ctx, problem.store, packed_in_blocks, normuon_options);
    const std::vector<StateTensor> a = whole.state(), b = packed.state();
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
        EXPECT_EQ(a[i].name, b[i].name);
        EXPECT_EQ(a[i].tensor.shape(), b[i].tensor.shape());
    }
    EXPECT_EQ(a[0].name, "momentum/blocks.0.tall");
    EXPECT_EQ(a[3].name, "second_moment/blocks.0.tall");
    EXPECT_EQ(a[3].tensor.shape(), (Shape{32}));
}

TEST(Muon, RefusesMatricesThatDoNotFillTheirParameter) {
    const Context ctx(Device::cpu(), 1);
    MuonProblem problem(ctx, DType::f32);
    const auto rows = [](const Parameter& parameter) {
        return in_blocks(parameter).empty() ? std::vector<std::int64_t>() : std::vector<std::int64_t>{4};
    };
    EXPECT_THAT(
        [&] { Muon(ctx, problem.store, rows, muon_options); },
        testing::ThrowsMessage<Error>(testing::HasSubstr("'blocks.0.tall' have 4 rows; expected 32")));
}

/// With MuonScale::rms, an orthogonal update has the root mean square 0.2 for every shape.
TEST(Muon, CanScaleUpdatesToOneRootMeanSquare) {
    const Context ctx;
    MuonProblem problem(ctx, DType::f64);
    MuonOptions options{.matrix = {.lr_ratio = 1.0}, .scale = MuonScale::rms};
    Muon optimizer(ctx, problem.store, in_blocks, options);
    problem.set_gradients(ctx, 1);
    const Tensor before = cast(ctx, problem.store.values(), DType::f64);
    optimizer.step(ctx, muon_lr);
    for (const char* name : {"blocks.0.tall", "blocks.0.wide"}) {
        const Parameter w = problem.store.find(name);
        const Tensor old = before.slice(0, w.offset(), w.shape().elements()).reshape(w.shape());
        const double rms = distance(ctx, w.value(), old) / std::sqrt(w.shape().elements()) / muon_lr;
        // Newton-Schulz brings singular values between 0.68 and 1.14.
        EXPECT_GT(rms, 0.68 * 0.2) << name;
        EXPECT_LT(rms, 1.14 * 0.2) << name;
    }
}

TEST(Muon, LeavesEmbeddingsAndVectorsToAdamW) {
    const Context ctx;
    MuonProblem with_muon(ctx, DType::f32), with_adamw(ctx, DType::f32);
    Muon muon(ctx, with_muon.store, in_blocks, muon_options);
    ElementwiseOptimizer adamw(ctx, with_adamw.store, muon_options.matrix.adamw);
    for (std::uint64_t t = 1; t <= 3; ++t) {
        with_muon.set_gradients(ctx, t);
        with_adamw.set_gradients(ctx, t);
        muon.step(ctx, muon_lr);
        adamw.step(ctx, muon_lr);
    }
    for (const char* name : {"embedding", "blocks.0.bias"})
        EXPECT_EQ(to_host(ctx, with_muon.store.find(name).value()),
                  to_host(ctx, with_adamw.store.find(name).value()));
    EXPECT_NE(to_host(ctx, with_muon.store.find("blocks.0.tall").value()),
              to_host(ctx, with_adamw.store.find("blocks.0.tall").value()));
}

TEST(Muon, ChangesNothingWhenTheUpdateIsRefused) {
    const Context ctx;
    MuonProblem problem(ctx, DType::bf16);
    Muon optimizer(ctx, problem.store, in_blocks, muon_options);
    test::expect_a_refused_update_changes_nothing(ctx, problem, optimizer, muon_lr);
}

TEST(Muon, DoesNotDependOnTheNumberOfThreads) {
    for (const DType products : {DType::f32, DType::bf16}) {
        std::vector<std::vector<double>> results;
        for (const int threads : {1, 3}) {
            const Context ctx(Device::cpu(), threads);
            MuonProblem problem(ctx, DType::f32);
            MuonOptions options = muon_options;
            options.newton_schulz = products;
            Muon optimizer(ctx, problem.store, in_blocks, options);
            for (std::uint64_t t = 1; t <= 3; ++t) {
                problem.set_gradients(ctx, t);
                optimizer.step(ctx, muon_lr);
            }
            results.push_back(to_host(ctx, problem.store.values()));
        }
        EXPECT_EQ(results[0], results[1]) << products;
    }
}

/// Groups compute the same products at any group size.
TEST(Muon, ResultsDoNotDependOnTheGroupSize) {
    const Context ctx(Device::cpu(), 2);
    std::vector<std::vector<double>> results;
    for (const std::int64_t group_elements : {0, 1}) {
        MuonProblem problem(ctx, DType::f64);
        MuonOptions options = muon_options;
        options.matrix.group_elements = group_elements;
        Muon optimizer(ctx, problem.store, in_blocks, options);
        problem.set_gradients(ctx, 1);
        optimizer.step(ctx, muon_lr);
        results.push_back(to_host(ctx, problem.store.values()));
    }
    // A library may add in another order when it multiplies several matrices in one call. The bound is a
    // product's rounding error times the largest slope of the Newton-Schulz polynomial.
    const double bound = 500.0 * 5 * 3 * 32 * std::numeric_limits<double>::epsilon();
    for (std::size_t i = 0; i < results[0].size(); ++i) ASSERT_NEAR(results[0][i], results[1][i], bound);
}

TEST(Muon, NamesItsStateByParameter) {
    const Context ctx;
    MuonProblem problem(ctx, DType::f32);
    const Muon optimizer(ctx, problem.store, in_blocks, muon_options);
    std::vector<std::string> names;
    for (const StateTensor& part : optimizer.state()) names.push_back(part.name);
    const std::vector<std::string> expected{"momentum/blocks.0.tall", "momentum/blocks.0.wide",
                                            "momentum/blocks.1.tall", "m/embedding",
                                            "m/blocks.0.bias",        "v/embedding",
                                            "v/blocks.0.bias",        "updates"};
    EXPECT_EQ(names, expected);
}

/// packed = the concatenated slices `ranges` of full.
void pack(const Context& ctx, const Tensor& full, const std::vector<FlatRange>& ranges,
          const Tensor& packed) {
    std::int64_t begin = 0;
    for (const FlatRange& range : ranges) {
        copy(ctx, packed.slice(0, begin, range.length), full.slice(0, range.begin, range.length));
        begin += range.length;
    }
}

/// One process's shard, as DataParallel assigns it.
struct MuonShard {
    MuonShard(const Context& ctx, DType dtype, int rank, int processes, const PackedRows& rows,
              const MuonOptions& options)
        : problem(ctx, dtype) {
        const auto cost = [](const Parameter& parameter) {
            return !in_blocks(parameter).empty() ? newton_schulz_flops(parameter.shape()) : 0.0;
        };
        const ParameterStore& store = problem.store;
        std::int64_t packed = 0;
        for (const ShardBucket& bucket :
             shard_buckets(store.parameters(), store.flat_elements(), {.min_elements = 300}, processes, cost))
            for (const OwnedRange& part : bucket.parts)
                if (part.owner == rank) {
                    shard.ranges.push_back(part.range);
                    packed += part.range.length;
                }
        shard.gradients = zeros(ctx, {packed}, store.gradients().dtype());
        if (is_16_bit(dtype)) {
            shard.masters = zeros(ctx, {packed}, DType::f32);
            pack(ctx, store.master(), shard.ranges, shard.masters);
        }
        optimizer = std::make_unique<Muon>(ctx, store, rows, options, shard);
    }
    void step(const Context& ctx, std::uint64_t t) {
        problem.set_gradients(ctx, t);
        pack(ctx, problem.store.gradients(), shard.ranges, shard.gradients);
        optimizer->step(ctx, muon_lr);
    }
    MuonProblem problem;
    OptimizerShard shard;
    std::unique_ptr<Muon> optimizer;
};

void expect_shards_equal_the_unsharded_update(const PackedRows& rows, const MuonOptions& any_options) {
    const Context ctx(Device::cpu(), 2);
    const bool has_second_moment = any_options.matrix.beta2 > 0.0;
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
        for (const int processes : {2, 3, 5}) {
            MuonOptions options = any_options;
            // Moments of float32 gradients are in bfloat16 for some processes.
            if (dtype != DType::f64 && processes > 2)
                options.matrix.moments = {.format = MomentFormat::bf16, .seed = Seed{7}};
            MuonProblem full(ctx, dtype);
            Muon optimizer(ctx, full.store, rows, options);
            for (std::uint64_t t = 1; t <= 3; ++t) {
                full.set_gradients(ctx, t);
                optimizer.step(ctx, muon_lr);
            }
            std::map<std::string, Tensor> state;
            for (const StateTensor& part : optimizer.state()) state[part.name] = part.tensor;
            std::size_t matrices = 0, row_moments = 0, moments = 0;
            for (int rank = 0; rank < processes; ++rank) {
                MuonShard mine(ctx, dtype, rank, processes, rows, options);
                for (std::uint64_t t = 1; t <= 3; ++t) mine.step(ctx, t);
                for (const FlatRange& range : mine.shard.ranges)
                    EXPECT_EQ(to_host(ctx, mine.problem.store.values().slice(0, range.begin, range.length)),
                              to_host(ctx, full.store.values().slice(0, range.begin, range.length)))
                        << dtype << ", rank " << rank << " of " << processes;
                for (const StateTensor& part : mine.optimizer->state()) {
                    std::int64_t offset = 0;
                    for (const FlatRange& range : part.ranges) {
                        const auto holds = [&](const Parameter& parameter) {
                            return parameter.offset() <= range.begin &&
                                   parameter.offset() + rounded_up(parameter.shape().elements(), 64) >=
                                       range.end();
                        };
                        const auto held = std::ranges::find_if(part.parameters, holds);
                        ASSERT_NE(held, part.parameters.end());
                        const Tensor expected = state.at(part.name + '/' + held->name());
                        const std::int64_t begin = range.begin - held->offset();
                        const std::int64_t length = std::min(range.length, expected.elements() - begin);
                        EXPECT_EQ(
                            to_host(ctx, part.tensor.slice(0, offset, length)),
                            to_host(ctx, expected.reshape({expected.elements()}).slice(0, begin, length)))
                            << part.name << '/' << held->name();
                        offset += range.length;
                        (part.name == "momentum"        ? matrices
                         : part.name == "second_moment" ? row_moments
                                                        : moments) += static_cast<std::size_t>(length);
                    }
                    EXPECT_EQ(offset, part.parameters.empty() ? 0 : part.tensor.elements());
                }
            }
            // All shards together hold each moment's elements exactly once.
            EXPECT_EQ(matrices, 3u * 32 * 8);
            EXPECT_EQ(row_moments, has_second_moment ? 32u + 8 + 32 : 0u);
            EXPECT_EQ(moments, 2u * (20 * 8 + 32));
        }
}

TEST(Muon, ShardsTogetherEqualTheUnshardedUpdateToTheBit) {
    expect_shards_equal_the_unsharded_update(in_blocks, muon_options);
}

TEST(Muon, ShardsOfPackedMatricesEqualTheUnshardedUpdateToTheBit) {
    expect_shards_equal_the_unsharded_update(packed_in_blocks, normuon_options);
}

TEST(Muon, RefusesAShardThatCutsAMatrix) {
    const Context ctx(Device::cpu(), 1);
    MuonProblem problem(ctx, DType::f32);
    const Parameter matrix = problem.store.find("blocks.0.wide");
    const OptimizerShard shard{.ranges = {{matrix.offset(), 64}}, .gradients = zeros(ctx, {64}, DType::f32)};
    EXPECT_THAT(
        [&] { Muon(ctx, problem.store, in_blocks, muon_options, shard); },
        testing::ThrowsMessage<Error>(testing::HasSubstr("64 of the 256 elements of 'blocks.0.wide'")));
}

/// As in overfit_test.cpp, targets are random, so that the model can only learn the batch itself.
TEST(Muon, AModelMemorisesOneBatch) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
        const Context ctx(Device::cpu(), 2);
        ParameterStore parameters;
        const Transformer model({.layers = 2, .heads = 2, .width = 32, .context = 16, .vocabulary = 64},
                                parameters);
        parameters.allocate(ctx, dtype);
        parameters.initialize(ctx, Seed{1});
        Muon optimizer(ctx, parameters,
                       [&](const Parameter& parameter) { return block_matrix_rows(parameter, model.config); },
                       {.matrix = {.lr_ratio = 0.02 / 3e-3, .adamw = {.beta2 = 0.99}}});
        const test::OverfitBatch batch(ctx);
        double loss = 0.0;
        for (int step = 1; step <= 150; ++step) {
            parameters.reset_gradients();
            Transformer::Saved saved;
            loss = item(ctx, model.forward(ctx, batch.tokens, batch.targets, saved));
            model.backward(ctx, saved);
            optimizer.step(ctx, 3e-3);
        }
        EXPECT_LT(loss, 0.01 * std::log(64.0)) << dtype;
    }
}

}  // namespace
}  // namespace gradtile
