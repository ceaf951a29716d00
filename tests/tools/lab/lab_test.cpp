// Tests of attention/lab, which `gradtile lab` runs: counted loads, stores and bytes equal the numbers
// derived in this file, and the counted algorithms compute attention.
#include <fstream>

#include <gmock/gmock.h>

#include <gradtile/attention/cpu/tiled/memory.h>
#include <gradtile/core/text/formatted.h>
#include <gradtile/tools/lab/machine.h>

#include <support/error_message.h>

#include <attention/reference.h>

namespace gradtile::attention::test {
namespace {

using cpu::tiled::BlockSizes;
using cpu::tiled::FastMemory;
using cpu::tiled::SlowMatrix;
using gradtile::test::message_of;
using lab::measure_attention;
using lab::measure_softmax;
using lab::Measurement;
using testing::HasSubstr;

const Measurement& measurement(const std::vector<Measurement>& all, const std::string& name,
                               const std::string& pass) {
    for (const Measurement& m : all)
        if (m.name == name && m.pass == pass) return m;
    throw Error(concat("no ", name, ' ', pass));
}

TEST(FastMemory, CountsWhatItMovesInTheDtypeOfTheSlowMatrix) {
    std::vector<std::byte> bytes(1024);
    FastMemory fast(bytes.data(), bytes.size());
    std::vector<double> slow(6 * 5);
    for (std::size_t i = 0; i < slow.size(); ++i) slow[i] = static_cast<double>(i);
    const SlowMatrix<double> matrix(slow.data(), 6, 5, 5);
    const auto tile = fast.matrix<float>(2, 3);
    fast.load(matrix.block({1, 3}, {2, 5}), tile);
    EXPECT_EQ(tile.row(1)[2], 14);
    tile.row(1)[2] = -1;
    fast.store(tile, matrix.block({4, 6}, {0, 3}));
    EXPECT_EQ(slow[5 * 5 + 2], -1);
    EXPECT_EQ(slow[4 * 5 + 0], 7);
    EXPECT_EQ(fast.traffic().loads, 6);
    EXPECT_EQ(fast.traffic().stores, 6);
    EXPECT_EQ(fast.traffic().bytes, 12 * 8);
}

TEST(FastMemory, OverUseIsAnError) {
    std::vector<std::byte> bytes(100);
    FastMemory fast(bytes.data(), bytes.size());
    {
        const FastMemory::Scope scope(fast);
        fast.matrix<float>(5, 5);
        EXPECT_THAT(message_of([&] { fast.matrix<float>(1, 1); }), HasSubstr("0 of 100 are free"));
    }
    const auto tile = fast.matrix<float>(2, 3);  // the scope's matrices are free again
    EXPECT_EQ(fast.peak_bytes(), 100u);
    float slow[8] = {};
    EXPECT_THAT(message_of([&] { fast.load(SlowMatrix<float>(slow, 2, 4, 4), tile); }),
                HasSubstr("a matrix of 2 x 3 cannot hold 2 x 4"));
}

TEST(FastMemory, BlocksAreHalvedUntilTheyFit) {
    const auto tiles = [](FastMemory& fast, BlockSizes b) { fast.matrix<float>(b.rows, b.keys); };
    const auto blocks = [&](std::size_t bytes) {
        return cpu::tiled::fitting_blocks({.rows = 8, .keys = 16}, bytes, tiles);
    };
    EXPECT_EQ(blocks(4 * 128).rows, 8);
    EXPECT_EQ(blocks(4 * 127).rows, 4);
    EXPECT_EQ(blocks(4 * 16).rows, 1);
    EXPECT_EQ(blocks(4 * 16).keys, 16);
    EXPECT_EQ(blocks(4 * 15).keys, 8);  // not even one row of 16 keys fits
    EXPECT_THAT(message_of([&] { blocks(3); }), HasSubstr("one row and one key need 4"));
}

/// Accesses per element. By Milakov & Gimelshein 2018, naive softmax needs 3, safe softmax 4 and online
/// softmax 3. A softmax built from four operations needs 6, and a fused softmax 2.
TEST(Lab, SoftmaxesAccessWhatThePapersSay) {
    for (const std::int64_t n : {1, 37, 1000})
        for (const std::int64_t fast : {64, 1 << 12, 1 << 20}) {
            SCOPED_TRACE(::testing::Message() << n << " elements, " << fast << " bytes");
            std::vector<std::string> names;
            for (const lab::SoftmaxMeasurement& m : measure_softmax({.length = n, .fast_memory = fast})) {
                const std::map<std::string, std::pair<int, int>> accesses{
                    {"naive", {2, 1}},   {"safe", {3, 1}}, {"online", {2, 1}}, {"online_statistics", {1, 0}},
                    {"unfused", {4, 2}}, {"fused", {1, 1}}};
                const auto [loads, stores] = accesses.at(m.name);
                EXPECT_EQ(m.loads, loads * n) << m.name;
                EXPECT_EQ(m.stores, stores * n) << m.name;
                EXPECT_EQ(m.slow_bytes, 4 * (loads + stores) * n) << m.name;
                EXPECT_EQ(m.formula_bytes, static_cast<double>(m.slow_bytes)) << m.name;
                // exp(x) for x below 16 (8 roundings), a sum in partial sums, a division.
                EXPECT_LE(m.error, 0x1p-24 * (16 + 16 + static_cast<double>(n))) << m.name;
                names.push_back(m.name);
            }
            EXPECT_EQ(names.size(), 4 * n <= fast ? 6u : 5u);
        }
}

/// flash1 forward moves K and V once, and Q, O, l and m for each key block; flash2 moves Q, O and LSE once,
/// and K and V for each row block.
TEST(Lab, TheFlashAlgorithmsMoveWhatTheirLoopsSay) {
    for (const auto& [n, d, fast] : {std::tuple{96, 16, 4096}, {130, 33, 20000}, {1000, 8, 4096}}) {
        SCOPED_TRACE(::testing::Message() << n << ' ' << d << ' ' << fast);
        const auto all = measure_attention({.length = n, .head_dim = d, .fast_memory = fast});
        const Measurement& flash1 = measurement(all, "flash1", "forward");
        const std::int64_t key_blocks = ceil_div(n, flash1.block_keys);
        EXPECT_GT(key_blocks, 1);
        EXPECT_EQ(flash1.loads, 2 * n * d + key_blocks * n * (2 * d + 2) + 2 * n);
        EXPECT_EQ(flash1.stores, (key_blocks + 1) * n * (d + 2) + n);
        const Measurement& flash2 = measurement(all, "flash2", "forward");
        EXPECT_EQ(flash2.loads, n * d + ceil_div(n, flash2.block_rows) * 2 * n * d);
        EXPECT_EQ(flash2.stores, n * d + n);

        // Both backward passes move K, V, dK and dV once. For each key block, flash1 reads Q, O, dO, dQ, l
        // and m. flash2 first computes D in a separate pass, and then reads Q, dO, dQ, LSE and D for each key
        // block. dQ is set to zero first, and stored for every key block.
        const Measurement& flash1_backward = measurement(all, "flash1", "backward");
        const std::int64_t blocks1 = ceil_div(n, flash1_backward.block_keys);
        EXPECT_EQ(flash1_backward.loads, 2 * n * d + blocks1 * n * (4 * d + 2));
        EXPECT_EQ(flash1_backward.stores, 2 * n * d + (blocks1 + 1) * n * d);
        const Measurement& flash2_backward = measurement(all, "flash2", "backward");
        const std::int64_t blocks2 = ceil_div(n, flash2_backward.block_keys);
        EXPECT_EQ(flash2_backward.loads, n * (2 * d + 1) + 2 * n * d + blocks2 * n * (3 * d + 2));
        EXPECT_EQ(flash2_backward.stores, n + 2 * n * d + (blocks2 + 1) * n * d);

        // Naive attention stores S, P and O. It stores O twice, because it first sets O to 0.
        EXPECT_EQ(measurement(all, "naive", "forward").stores, 2 * n * n + 2 * n * d);
        EXPECT_GE(measurement(all, "naive", "forward").loads, 2 * n * n + 4 * n * d);
        for (const Measurement& m : all) {
            EXPECT_EQ(m.slow_bytes, 4 * (m.loads + m.stores)) << m.name;
            EXPECT_LE(m.peak_fast_bytes, fast) << m.name << ' ' << m.pass;
        }
    }
}

TEST(Lab, FlashTrafficFallsAsOneOverMUntilEveryTensorIsMovedOnce) {
    const auto traffic = [](std::int64_t fast) {
        const auto all = measure_attention({.length = 512, .head_dim = 16, .fast_memory = fast});
        return static_cast<double>(measurement(all, "flash2", "forward").slow_bytes);
    };
    // Q, O and the LSE are moved once. K and V are loaded for each row block, and four times the memory holds
    // four times the rows.
    const double once = 4 * (2 * 512 * 16 + 512);
    EXPECT_DOUBLE_EQ((traffic(1 << 12) - once) / (traffic(1 << 14) - once), 4);
    EXPECT_EQ(traffic(1 << 20), 4 * (4 * 512 * 16 + 512));  // Q, K, V, O and the LSE
    EXPECT_EQ(traffic(1 << 22), traffic(1 << 20));
}

TEST(Lab, PeakMemoryIsLinearExceptThatOfNaive) {
    const auto measure = [](std::int64_t n) { return measure_attention({.length = n, .head_dim = 8}); };
    const auto small = measure(512), large = measure(1024);
    for (std::size_t i = 0; i < small.size(); ++i) {
        const double ratio =
            static_cast<double>(large[i].peak_bytes) / static_cast<double>(small[i].peak_bytes);
        if (small[i].name == "naive") {
            EXPECT_GT(ratio, 3.8) << small[i].pass;
        } else {
            EXPECT_LE(ratio, 2.0) << small[i].name << ' ' << small[i].pass;
        }
    }
    // Q, K, V, O and LSE; Q, K, V, O, dO, dQ, dK, dV, LSE and D.
    EXPECT_EQ(measurement(large, "flash2", "forward").peak_bytes, 4 * (4 * 1024 * 8 + 1024));
    EXPECT_EQ(measurement(large, "flash2", "backward").peak_bytes, 4 * (8 * 1024 * 8 + 2 * 1024));
    EXPECT_EQ(measurement(large, "naive", "forward").peak_bytes, 4 * (4 * 1024 * 8 + 2 * 1024 * 1024));
}

/// The lab's own algorithms are tested like the operator: against float64, within a multiple of the error
/// that the operator's naive form has on the same inputs.
TEST(Lab, EveryAlgorithmComputesAttention) {
    const Context ctx(Device::cpu(), 2);
    for (const auto& [n, d, fast] :
         {std::tuple{1, 1, 4096}, {2, 3, 4096}, {96, 16, 4096}, {130, 33, 20000}, {257, 64, 1 << 16}}) {
        const Problem problem{.queries = n, .keys = n, .d_qk = d, .d_v = d};
        const Shape shape{1, n, 1, d};
        const Inputs in{.q = randn(ctx, shape, DType::f32, Seed{1}),
                        .k = randn(ctx, shape, DType::f32, Seed{2}),
                        .v = randn(ctx, shape, DType::f32, Seed{3}),
                        .d_o = randn(ctx, shape, DType::f32, Seed{4})};
        const Reference reference =
            float64_reference(ctx, problem, in, roundoff_of(DType::f32, ctx.device()));
        const Result naive = run(ctx, in, problem.options(Algorithm::naive));
        const auto bound = [&](double factor, std::vector<double> Result::*part) {
            const std::vector<double>& floor = reference.floor.*part;
            return factor * largest_difference(naive.*part, reference.value.*part) +
                   *std::max_element(floor.begin(), floor.end());
        };
        const double forward = bound(2, &Result::o);
        const double backward =
            std::max({bound(3, &Result::d_q), bound(3, &Result::d_k), bound(3, &Result::d_v)});
        const auto all = measure_attention({.length = n, .head_dim = d, .fast_memory = fast});
        ASSERT_EQ(all.size(), 8u);
        for (const Measurement& m : all)
            EXPECT_LE(m.error, m.pass == "forward" ? forward : backward)
                << m.name << ' ' << m.pass << ", length " << n << ", head_dim " << d;
    }
}

TEST(Lab, RunsInTheSmallestFastMemoryAndInNone) {
    for (const std::int64_t d : {1, 64, 256}) {
        const std::int64_t smallest = lab::smallest_fast_memory(d);
        EXPECT_EQ(measure_attention({.length = 70, .head_dim = d, .fast_memory = smallest}).size(), 8u);
        EXPECT_THAT(message_of([&] {
                        measure_attention({.length = 70, .head_dim = d, .fast_memory = smallest - 1});
                    }),
                    HasSubstr(concat("expected at least ", smallest)));
    }
}

TEST(Lab, JudgesTheClaimsByItsFigures) {
    const lab::Setup setup{.length = 512, .head_dim = 32, .fast_memory = 1 << 15};
    const auto attention = measure_attention(setup);
    const auto softmax = measure_softmax(setup);
    const auto verdict = [](const char* words, const std::vector<lab::Verdict>& verdicts) {
        for (const lab::Verdict& v : verdicts)
            if (v.claim.find(words) != std::string::npos) return v;
        throw Error(concat("no verdict on ", words));
    };
    // A machine whose roofline has its ridge between the intensities of naive and flash2, and on which flash2
    // is 3 times faster than naive.
    const double naive = measurement(attention, "naive", "forward").intensity();
    const double flash2 = measurement(attention, "flash2", "backward").intensity();
    ASSERT_LT(naive, flash2);
    const lab::Machine machine{.roofline = {.bytes_per_s = 1e9, .flops_per_s = 1e9 * flash2},
                               .speed = {.standard_ms = 3, .flash2_ms = 1}};
    const std::vector<lab::Verdict> verdicts = judge_claims(setup, attention, softmax, machine);
    EXPECT_TRUE(verdict("memory is linear", verdicts).holds);
    EXPECT_TRUE(verdict("falls as 1/M", verdicts).holds);
    EXPECT_TRUE(verdict("5 to 20 times less", verdicts).holds);
    EXPECT_TRUE(verdict("six transfers", verdicts).holds);
    EXPECT_TRUE(verdict("compute-bound", verdicts).holds);
    EXPECT_TRUE(verdict("2 to 4 times faster", verdicts).holds);
    EXPECT_THAT(verdict("2 to 4 times faster", verdicts).figures, HasSubstr("3.0 times"));
    // The largest binary16 number is 65504 and ln(65520), half a step further, is 11.0902.
    EXPECT_TRUE(verdict("binary16", verdicts).holds);
    EXPECT_THAT(verdict("binary16", verdicts).figures, HasSubstr("from x = 11.0938 on"));

    // A machine whose memory is so fast that no algorithm is memory-bound, and on which flash2 is not faster.
    const lab::Machine other{.roofline = {.bytes_per_s = 1e12, .flops_per_s = 1e9},
                             .speed = {.standard_ms = 1, .flash2_ms = 1}};
    const std::vector<lab::Verdict> others = judge_claims(setup, attention, softmax, other);
    EXPECT_FALSE(verdict("compute-bound", others).holds);
    EXPECT_FALSE(verdict("2 to 4 times faster", others).holds);
}

TEST(Lab, MeasuresThisMachine) {
    const lab::Roofline roofline = lab::measure_roofline();
    EXPECT_TRUE(std::isfinite(roofline.ridge()) && roofline.ridge() > 0);
    const lab::Speed speed = lab::measure_speed({.length = 33, .head_dim = 5});
    EXPECT_GT(speed.standard_ms, 0);
    EXPECT_GT(speed.flash2_ms, 0);
}

/// The forward pass has two N x N x d products. The backward pass has four, and a fifth for S unless the
/// forward pass kept P.
TEST(Lab, IntensityIsTheWorkOfTheProductsPerByte) {
    for (const Measurement& m : measure_attention({.length = 64, .head_dim = 16, .fast_memory = 4096})) {
        const double products = m.pass == "forward" ? 2 : m.name == "naive" ? 4 : 5;
        EXPECT_EQ(m.flops, products * 2 * 64 * 64 * 16) << m.name << ' ' << m.pass;
        EXPECT_EQ(m.intensity(), m.flops / static_cast<double>(m.slow_bytes));
    }
}

/// docs/attention_story.md prints these numbers beside `gradtile lab`, with four digits.
TEST(Lab, TheStoryHasTheFiguresOfTheLab) {
    std::ifstream file(GRADTILE_SOURCE_DIR "/docs/attention_story.md");
    const std::string story{std::istreambuf_iterator<char>(file), {}};
    for (const Measurement& m : measure_attention({})) {
        SCOPED_TRACE(m.name + ' ' + m.pass);
        const double moved = 1e-6 * static_cast<double>(m.slow_bytes);
        if (m.pass == "forward") {
            EXPECT_THAT(story, HasSubstr(formatted("| %s | %#.4g | %#.4g |", m.name.c_str(), moved,
                                                   1e-6 * static_cast<double>(m.peak_bytes))));
        } else if (m.name != "memory_efficient") {
            EXPECT_THAT(story, HasSubstr(formatted("%#.4g", moved)));
        }
        if (m.name == "naive" || m.name == "flash2") {
            EXPECT_THAT(story, HasSubstr(formatted("%.1f", m.intensity())));
        }
    }
}

TEST(Lab, SlopesAreTheExponentsOfPowerLaws) {
    EXPECT_NEAR(lab::log_log_slope({1, 2, 4, 8}, {3, 12, 48, 192}), 2, 1e-12);
    EXPECT_NEAR(lab::log_log_slope({1, 10, 100}, {5, 0.5, 0.05}), -1, 1e-12);
    EXPECT_THAT(message_of([] { lab::log_log_slope({2, 2}, {1, 3}); }), HasSubstr("two different x"));
}

}  // namespace
}  // namespace gradtile::attention::test
