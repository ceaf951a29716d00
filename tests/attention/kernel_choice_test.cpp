// GPU kernel choices that replace the policy's. These tests need no GPU.
#include <algorithm>
#include <limits>

#include <gtest/gtest.h>

#include <gradtile/attention/attention.h>
#include <gradtile/attention/cuda/sm90/candidates.h>
#include <gradtile/attention/internal/result_bounds.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile::attention {
namespace {

/// Scratch bytes that one query takes against 4,096 keys on a GPU, from a dry run.
std::size_t planned_bytes(const KernelChoice& kernels) {
    const auto arena = Arena::for_planning(Device::cuda(0));
    const Context ctx = Context(Device::cpu(), 1).plan(arena);
    const Tensor q = empty(ctx, {1, 1, 2, 64}, DType::bf16), k = empty(ctx, {1, 4096, 2, 64}, DType::bf16);
    const Tensor o = empty_like(ctx, q);
    Saved saved;
    arena->reset_peak();
    forward(ctx, q, k, k, {.kernels = kernels}, saved, o);
    return arena->peak_bytes();
}

TEST(KernelChoice, ChangesWhatACallUses) {
    if (!GRADTILE_HAVE_CUDA) GTEST_SKIP() << "built without CUDA, so the scratch memory of a GPU is unknown";
    EXPECT_LT(planned_bytes({.few_queries = false}), planned_bytes({}))
        << "without splits there are no partial results";
}

TEST(KernelChoice, IsRefusedByNameWhereKernelsAreNotChosen) {
    const Context cpu(Device::cpu(), 1);
    const Tensor x = zeros(cpu, {1, 2, 1, 8}, DType::f32);
    for (const Algorithm algorithm :
         {Algorithm::flash2, Algorithm::naive, Algorithm::memory_efficient, Algorithm::flash1}) {
        Saved saved;
        try {
            forward(cpu, x, x, x, {.algorithm = algorithm, .kernels = {.pairs = true}}, saved);
            ADD_FAILURE() << "no Error with " << algorithm;
        } catch (const Error& error) {
            EXPECT_EQ(std::string(error.what())
                          .find(concat("attention: kernels is set with algorithm ", algorithm,
                                       "; expected it for flash2 on a GPU")),
                      0u)
                << error.what();
        }
    }
}

TEST(KernelCandidates, TilesFitSharedMemoryAndDifferFromThePolicys) {
    using namespace cuda;
    for (const int d : {32, 64, 96, 128, 192, 256}) {
        const auto forward = hopper_forward_candidates(d);
        EXPECT_FALSE(forward.empty());
        for (const HopperForwardTiles& tiles : forward) {
            EXPECT_LE(tiles.shared_bytes(d, d), shared_memory_limits[0]);
            // At hopper_short_head_dim the policy depends on the keys, so both tile choices are candidates.
            EXPECT_FALSE(d != hopper_short_head_dim &&
                         tiles == hopper_forward_tiles(d, HopperRule::products, /*is_packed=*/false));
            EXPECT_EQ(std::ranges::count(forward, tiles), 1);
        }
        const auto backward = hopper_backward_candidates(d);
        EXPECT_EQ(backward.empty(), d > hopper_backward_keys_max_head_dim);
        for (const HopperBackwardTiles& tiles : backward) {
            EXPECT_LE(tiles.shared_bytes(d), shared_memory_limits[0]);
            EXPECT_FALSE(tiles == hopper_backward_tiles(d, /*applies_rules=*/false));
            EXPECT_EQ(std::ranges::count(backward, tiles), 1);
        }
    }
}

/// Other kernels need the registers for rules or for a sequence's place.
TEST(KernelCandidates, OnlyPlainDenseCallsOfHeadDim128KeepQInRegisters) {
    using namespace cuda;
    for (const int d : {32, 64, 96, 128, 192, 256})
        for (const bool is_packed : {false, true})
            for (const HopperRule rule : {HopperRule::products, HopperRule::distance_terms,
                                          HopperRule::dropout, HopperRule::formula, HopperRule::row_ranges}) {
                const HopperForwardTiles tiles = hopper_forward_tiles(d, rule, is_packed);
                EXPECT_EQ(tiles.q_in_registers, d == 128 && rule == HopperRule::products && !is_packed);
                EXPECT_LE(tiles.shared_bytes(d, d), shared_memory_limits[0]);
                const int registers =
                    tiles.producer_registers() + tiles.consumers * tiles.consumer_registers();
                EXPECT_LE(128 * registers, 65536 / tiles.threads() / 8 * 8 * tiles.threads());
            }
}

TEST(KernelCandidates, SchedulesOfThePolicyKeepMultiprocessorsBusy) {
    using namespace cuda;
    constexpr bool causal = false, sees_all = true;
    EXPECT_TRUE(hopper_forward_has_pairs(66, 8, hopper_processors, causal));  // 264 pairs for 132
    EXPECT_FALSE(hopper_forward_has_pairs(65, 8, hopper_processors, causal));
    EXPECT_TRUE(
        hopper_forward_has_pairs(256, 8, hopper_processors, sees_all));  // 8 turns of pairs, 16 of blocks
    EXPECT_FALSE(
        hopper_forward_has_pairs(32, 86, hopper_processors, sees_all));  // 11 turns of pairs, 21 of blocks
    EXPECT_FALSE(hopper_forward_has_pairs(1, 8, hopper_processors, sees_all));
    EXPECT_EQ(hopper_more_slots(1, 8), 33);  // 33 heads with 8 tasks each are 264 tasks
    EXPECT_EQ(hopper_more_slots(50, 8), 50);
}

TEST(KernelCandidates, OnlyEqualTasksFollowEachOtherHeadByHead) {
    using cuda::hopper_forward_has_equal_tasks;
    constexpr bool pairs = true, single_blocks = false;
    const Mask causal{.queries = 1024, .keys = 1024, .right = 0}, full{.queries = 1024, .keys = 1024};
    EXPECT_TRUE(hopper_forward_has_equal_tasks(causal, 8, pairs));
    EXPECT_FALSE(hopper_forward_has_equal_tasks(causal, 7, pairs));  // the middle block is no pair
    EXPECT_FALSE(hopper_forward_has_equal_tasks(causal, 8, single_blocks));
    EXPECT_TRUE(hopper_forward_has_equal_tasks(full, 8, pairs));
    EXPECT_FALSE(hopper_forward_has_equal_tasks(full, 7, pairs));
    EXPECT_TRUE(hopper_forward_has_equal_tasks(full, 7, single_blocks));
    const Mask with_window{.queries = 1024, .keys = 1024, .left = 100, .right = 0},
        more_queries{.queries = 1024, .keys = 512, .offset = -512, .right = 0},
        top_left{.queries = 1024, .keys = 512, .right = 0},
        last_queries{.queries = 512, .keys = 1024, .offset = 512, .right = 0};
    EXPECT_FALSE(hopper_forward_has_equal_tasks(with_window, 8, pairs));
    EXPECT_FALSE(hopper_forward_has_equal_tasks(more_queries, 8, pairs));
    EXPECT_FALSE(hopper_forward_has_equal_tasks(top_left, 8, pairs));
    EXPECT_TRUE(hopper_forward_has_equal_tasks(last_queries, 4, pairs));
}

/// Two algorithms' results on the same numbers.
class ResultBounds : public testing::Test {
  protected:
    static constexpr std::int64_t d = 64, keys = 512;
    struct Results {
        Tensor o, lse;
        Gradients gradients;
    };
    Results run(Algorithm algorithm, DType dtype = DType::bf16) const {
        const auto numbers = [&](std::uint64_t seed) {
            return cast(cpu, randn(cpu, {2, keys, 2, d}, DType::bf16, Seed{seed}), dtype);
        };
        const Tensor q = numbers(1), k = numbers(2), v = numbers(3), d_o = numbers(4);
        const Options options{.algorithm = algorithm, .causal = true};
        Saved saved;
        const Tensor o = forward(cpu, q, k, v, options, saved);
        return {o, saved.lse, backward(cpu, d_o, options, saved)};
    }
    double fraction(const Tensor& a, const Tensor& b) const {
        return fraction_of_bound(cpu, a, b, result_bound(DType::bf16, cpu.device(), d, keys));
    }
    const Context cpu{Device::cpu(), 2};
};

TEST_F(ResultBounds, HoldForTwoAlgorithms) {
    const Results flash = run(Algorithm::flash), naive = run(Algorithm::naive);
    const double o_fraction = fraction(flash.o, naive.o);
    EXPECT_LE(o_fraction, 1);
    EXPECT_GT(o_fraction, 0.05) << "a bound that is far from the differences detects little";
    EXPECT_LE(fraction(flash.gradients.q, naive.gradients.q), 1);
    EXPECT_LE(fraction(flash.gradients.k, naive.gradients.k), 1);
    EXPECT_LE(fraction(flash.gradients.v, naive.gradients.v), 1);
    // The naive form in bfloat16 rounds its scores, so that its LSE is coarse.
    const Tensor lse = run(Algorithm::naive, DType::f32).lse;
    EXPECT_LE(fraction_of_bound(cpu, flash.lse, lse, lse_bound(DType::bf16, cpu.device(), d, keys)), 1);
    EXPECT_EQ(fraction(flash.o, flash.o), 0);
}

TEST_F(ResultBounds, DetectMissingRowsAndNan) {
    const Results naive = run(Algorithm::naive);
    const Tensor without = cast(cpu, naive.o, naive.o.dtype());
    fill(cpu, without.slice(1, keys - 1, 1), 0);
    EXPECT_GT(fraction(without, naive.o), 1);
    const Tensor with_nan = cast(cpu, naive.o, naive.o.dtype());
    fill(cpu, with_nan.slice(1, 7, 1), std::numeric_limits<double>::quiet_NaN());
    EXPECT_GT(fraction(with_nan, naive.o), 1);
    EXPECT_GT(fraction(naive.o, with_nan), 1);
}

TEST_F(ResultBounds, RefuseOtherShapes) {
    const Tensor a = zeros(cpu, {4}, DType::f32), b = zeros(cpu, {5}, DType::f32);
    EXPECT_THROW((void)fraction(a, b), Error);
}

}  // namespace
}  // namespace gradtile::attention
