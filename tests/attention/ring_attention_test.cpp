// Attention over sequences that several ranks share, compared with one call for whole sequences.
#include <gradtile/attention/ring_attention.h>

#include <algorithm>
#include <numeric>

#include <gmock/gmock.h>

#include <support/thread_ring.h>

#include "devices.h"

namespace gradtile::attention::test {
namespace {

using gradtile::test::message_of;
using gradtile::test::on_thread_ring;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct RingProblem {
    int ranks = 2;
    std::int64_t batch = 2, tokens = 16, heads = 4, kv_heads = 2, head_dim = 8, value_dim = 8;
    Options options = {};
    /// The rows that see each key of each batch, [batch][tokens]; empty: the options' mask.
    std::vector<std::vector<std::array<std::int64_t, 2>>> rows_of_keys = {};

    /// The row ranges of one call.
    Tensor whole_ranges(const Context& ctx) const {
        std::vector<std::int32_t> numbers;
        for (const auto& keys : rows_of_keys)
            for (const auto& [begin, end] : keys)
                for (const std::int64_t n : {begin, end, std::int64_t{0}, std::int64_t{0}})
                    numbers.push_back(static_cast<std::int32_t>(n));
        return from_host(ctx, numbers, {batch, 1, tokens, 4});
    }
    /// The row ranges of a rank's calls.
    Tensor ranges_of_rank(const Context& ctx, int rank) const {
        std::vector<std::int32_t> numbers;
        const std::int64_t chunk = tokens / (2 * ranks);
        for (int source = 0; source < ranks; ++source)
            for (const auto& keys : rows_of_keys)
                for (const std::int64_t first : zigzag_chunks(tokens, source, ranks))
                    for (std::int64_t key = first; key < first + chunk; ++key) {
                        const auto& [begin, end] = keys[static_cast<std::size_t>(key)];
                        for (const std::int32_t n : zigzag_row_ranges(begin, end, tokens, rank, ranks))
                            numbers.push_back(n);
                    }
        return from_host(ctx, numbers, {ranks * batch, 1, tokens / ranks, 4});
    }
};

/// Results as numbers, in the order o, lse, dq, dk, dv, d_sink.
using Results = std::array<std::vector<double>, 6>;

class RingAttention : public EveryDevice {
  protected:
    static constexpr const char* names[] = {"o", "lse", "dq", "dk", "dv", "d_sink"};

    struct Inputs {
        Tensor q, k, v, d_o;
    };
    Inputs inputs_of(const RingProblem& p) const {
        const auto random = [&](std::int64_t heads, std::int64_t dim, std::uint64_t seed) {
            return randn(ctx(), {p.batch, p.tokens, heads, dim}, dtype(), Seed{seed});
        };
        return {random(p.heads, p.head_dim, 1), random(p.kv_heads, p.head_dim, 2),
                random(p.kv_heads, p.value_dim, 3), random(p.heads, p.value_dim, 4)};
    }
    Tensor sink_gradient(const Context& context, const RingProblem& p) const {
        return p.options.sink.defined() ? empty(context, {p.heads}, DType::f32) : Tensor();
    }

    Results one_call(const RingProblem& p, DType in) const {
        Inputs x = inputs_of(p);
        for (Tensor* t : {&x.q, &x.k, &x.v, &x.d_o}) *t = cast(ctx(), *t, in);
        Saved saved;
        Options options = p.options;
        if (!p.rows_of_keys.empty()) options.row_ranges = p.whole_ranges(ctx());
        forward(ctx(), x.q, x.k, x.v, options, saved);
        const Gradients d{.q = empty_like(ctx(), x.q),
                          .k = empty_like(ctx(), x.k),
                          .v = empty_like(ctx(), x.v),
                          .sink = sink_gradient(ctx(), p)};
        backward(ctx(), x.d_o, options, saved, d);
        Results results{to_host(ctx(), saved.o), to_host(ctx(), saved.lse), to_host(ctx(), d.q),
                        to_host(ctx(), d.k), to_host(ctx(), d.v)};
        if (d.sink.defined()) results[5] = to_host(ctx(), d.sink);
        return results;
    }

    /// Divides the problem, computes it on a ring, and puts the results together. Checks that a second
    /// computation has the same bits.
    Results on_ring(const RingProblem& p) const {
        const Inputs x = inputs_of(p);
        const Tensor o = empty_like(ctx(), x.d_o), d_q = empty_like(ctx(), x.q), d_k = empty_like(ctx(), x.k),
                     d_v = empty_like(ctx(), x.v),
                     lse = empty(ctx(), {p.batch, p.heads, p.tokens}, accumulator_of(dtype())),
                     d_sink = zeros(ctx(), {p.heads}, DType::f32);
        std::mutex mutex;
        std::vector<Tensor> sinks(static_cast<std::size_t>(p.ranks));
        on_thread_ring(p.ranks, [&](const Ring& ring) {
            const Context own(ctx().device(), 1);
            const auto chunks = zigzag_chunks(p.tokens, ring.rank(), p.ranks);
            const std::int64_t chunk = p.tokens / (2 * p.ranks);
            const auto for_chunks = [&](int axis, const Tensor& full, const Tensor& part, auto&& body) {
                for (std::size_t i = 0; i < 2; ++i)
                    body(full.slice(axis, chunks[i], chunk),
                         part.slice(axis, static_cast<std::int64_t>(i) * chunk, chunk));
            };
            const auto part_of = [&](const Tensor& full) {
                const Tensor part =
                    empty(own, {full.size(0), 2 * chunk, full.size(2), full.size(3)}, full.dtype());
                for_chunks(1, full, part, [&](const Tensor& from, const Tensor& to) { copy(own, to, from); });
                return part;
            };
            const Tensor q = part_of(x.q), k = part_of(x.k), v = part_of(x.v), d = part_of(x.d_o);
            Saved saved;
            Options options = p.options;
            if (!p.rows_of_keys.empty()) options.row_ranges = p.ranges_of_rank(own, ring.rank());
            ring_forward(own, q, k, v, options, ring, saved);
            const auto gradients = [&] {
                const Gradients into{.q = empty_like(own, q),
                                     .k = empty_like(own, k),
                                     .v = empty_like(own, v),
                                     .sink = sink_gradient(own, p)};
                ring_backward(own, d, options, ring, saved, into);
                return into;
            };
            const Gradients into = gradients();
            if (ctx().device().is_cpu() || p.options.deterministic) {
                const Gradients again = gradients();
                EXPECT_EQ(to_host(own, again.q), to_host(own, into.q));
                EXPECT_EQ(to_host(own, again.k), to_host(own, into.k));
            }
            const auto put = [&](int axis, const Tensor& full, const Tensor& part) {
                for_chunks(axis, full, part,
                           [&](const Tensor& to, const Tensor& from) { copy(own, to, from); });
            };
            put(1, o, saved.o);
            put(2, lse, saved.lse);
            put(1, d_q, into.q);
            put(1, d_k, into.k);
            put(1, d_v, into.v);
            (void)to_host(own, d_q);  // waits for the device
            const std::lock_guard lock(mutex);
            sinks[static_cast<std::size_t>(ring.rank())] = into.sink;
        });
        Results results{to_host(ctx(), o), to_host(ctx(), lse), to_host(ctx(), d_q), to_host(ctx(), d_k),
                        to_host(ctx(), d_v)};
        if (!p.options.sink.defined()) return results;
        for (const Tensor& sink : sinks) axpy(ctx(), d_sink, 1.0, sink);
        results[5] = to_host(ctx(), d_sink);
        return results;
    }

    static double largest(const std::vector<double>& x) {
        double result = 0;
        for (const double value : x)
            if (std::isfinite(value)) result = std::max(result, std::abs(value));
        return result;
    }

    /// The bound on |ring - one call| for each result.
    ///
    /// u is the unit roundoff of the sums, w that of the dtype. A score is a sum of D products, at most s in
    /// magnitude, with an absolute error of at most (D + 2) u s. LSE and P = exp(score - LSE) then have the
    /// relative error e = 2 (D + 2) u s + (S + 8) u, where S + 8 are the roundings in the row's sum, exp, and
    /// the merges (three for each part, and there are fewer parts than keys). O is a mean of values with
    /// weights P: its error is 2 e max|v|, and w max|v| for each rounding of a part to the dtype. dV is a sum
    /// of at most G S products P dO, for G query heads of a K/V head, and dS = P (dP - D) with |dP| and |D|
    /// at most Dv max|do| max|v|, so dQ and dK are sums of at most G S products of dS and an input. A sum of
    /// n terms adds n u, and every part's 16-bit gradient w. Both results have such errors, hence the
    /// factor 2.
    std::array<double, 6> bounds(const RingProblem& p, const Results& whole) const {
        const Inputs x = inputs_of(p);
        const double u = dtype() == DType::f64 ? 0x1p-53 : 0x1p-24;
        // float32's kernels on a GPU split a value in two binary16 numbers, with 2^-21 of its size.
        const double product = dtype() == DType::f32 && ctx().device().is_cuda() ? 0x1p-21 : u;
        const double w = dtype() == DType::bf16 ? 0x1p-9 : dtype() == DType::f16 ? 0x1p-12 : 0;
        const double q = largest(to_host(ctx(), x.q)), k = largest(to_host(ctx(), x.k)),
                     v = largest(to_host(ctx(), x.v)), d_o = largest(to_host(ctx(), x.d_o));
        const auto width = static_cast<double>(p.head_dim), keys = static_cast<double>(p.tokens),
                   terms = keys * static_cast<double>(p.heads / p.kv_heads);
        const double scale = p.options.scale.value_or(1 / std::sqrt(width)), s = width * q * k * scale;
        // 16-bit kernels round P and dS to the dtype.
        const double e = 2 * (width + 2) * product * s + (keys + 8) * u + w;
        const double d_s = 2 * static_cast<double>(p.value_dim) * d_o * v,
                     d_error = 3 * e + terms * u + 3 * w;
        return {2 * (2 * e + w) * v,
                2 * (e + u * (largest(whole[1]) + 1)),
                2 * keys * d_error * d_s * scale * k,
                2 * terms * d_error * d_s * scale * q,
                2 * terms * (e + terms * u + 2 * w) * d_o,
                2 * static_cast<double>(p.batch) * keys * (d_error + 0x1p-24) * d_s};
    }

    void expect_equal(const RingProblem& p) const {
        SCOPED_TRACE(::testing::Message() << p.ranks << " ranks, " << p.tokens << " tokens, heads " << p.heads
                                          << '/' << p.kv_heads << ", dims " << p.head_dim << '/'
                                          << p.value_dim << (p.options.causal ? ", causal" : ""));
        const Results whole = one_call(p, dtype()), ring = on_ring(p);
        const std::array<double, 6> bound = bounds(p, whole);
        for (std::size_t n = 0; n < whole.size(); ++n) {
            ASSERT_EQ(ring[n].size(), whole[n].size()) << names[n];
            double error = 0;
            for (std::size_t i = 0; i < whole[n].size(); ++i)
                if (ring[n][i] != whole[n][i])  // an LSE of -inf is equal
                    error = std::max(error, std::abs(ring[n][i] - whole[n][i]));
            EXPECT_LE(error, bound[n]) << names[n];
            // The bound does not accept a result that lacks a part; the sink's gradient is in float32.
            if (dtype() == DType::f64 && n < 5) {
                EXPECT_LT(bound[n], 1e-6) << names[n];
            }
        }
    }
};
INSTANTIATE_TEST_SUITE_P(Devices, RingAttention, ::testing::ValuesIn(devices_and_dtypes()), name_of_place);

TEST_P(RingAttention, EqualsOneCall) {
    for (const bool causal : {true, false})
        for (const int ranks : {1, 2, 3, 4})
            expect_equal(
                {.ranks = ranks, .tokens = 24, .options = {.causal = causal, .deterministic = true}});
}

TEST_P(RingAttention, EqualsOneCallForManyShapes) {
    const Options causal{.causal = true, .deterministic = true};
    for (const auto& [dim, value_dim] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {24, 40}, {64, 64}})
        expect_equal({.head_dim = dim, .value_dim = value_dim, .options = causal});
    for (const std::int64_t kv_heads : {1, 4}) expect_equal({.kv_heads = kv_heads, .options = causal});
    expect_equal({.ranks = 4, .tokens = 8, .options = causal});  // chunks of one token
    expect_equal({.ranks = 2, .batch = 1, .tokens = 260, .heads = 2, .options = causal});
}

TEST_P(RingAttention, EqualsOneCallWithOptionsOfTheScores) {
    const Tensor sink = from_host(ctx(), std::vector<float>{0.5f, -1.0f, 2.0f, 0.0f}, {4});
    for (const bool causal : {true, false}) {
        expect_equal({.options = {.causal = causal, .deterministic = true, .sink = sink}});
        expect_equal({.ranks = 3, .tokens = 18, .options = {.scale = 0.4, .causal = causal, .softcap = 2.0}});
    }
}

/// Packed documents: a key is seen up to the end of its document.
TEST_P(RingAttention, EqualsOneCallOfPackedDocuments) {
    for (const int ranks : {1, 2, 3}) {
        RingProblem p{.ranks = ranks, .tokens = 48, .options = {.deterministic = true}};
        const std::vector<std::vector<std::int64_t>> ends{{5, 6, 30, 48}, {48}};
        for (const auto& documents : ends) {
            auto& keys = p.rows_of_keys.emplace_back();
            std::size_t document = 0;
            for (std::int64_t key = 0; key < p.tokens; ++key) {
                if (key == documents[document]) ++document;
                keys.push_back({key, documents[document]});
            }
        }
        expect_equal(p);
    }
}

/// Rows from any begin to any end; some keys and some rows see nothing, in one part or in all.
TEST_P(RingAttention, EqualsOneCallOfIntervalMasks) {
    std::uint32_t state = 3;
    const auto random = [&](std::int64_t n) {
        return static_cast<std::int64_t>(((state = 1664525u * state + 1013904223u) >> 16) %
                                         static_cast<std::uint32_t>(n));
    };
    for (const int ranks : {2, 4}) {
        RingProblem p{.ranks = ranks, .tokens = 32, .options = {.softcap = 3}};
        for (std::int64_t b = 0; b < p.batch; ++b) {
            auto& keys = p.rows_of_keys.emplace_back();
            for (std::int64_t key = 0; key < p.tokens; ++key) {
                const std::int64_t begin = random(p.tokens);
                keys.push_back({begin, begin + random(6)});
            }
        }
        expect_equal(p);
    }
}

TEST_P(RingAttention, OfNoTokensIsEmpty) {
    expect_equal({.tokens = 0, .options = {.causal = true}});
    expect_equal({.batch = 0, .options = {.causal = true}});
}

/// A row whose partial LSE is -inf (its scores underflow) does not change the other parts' result.
TEST(RingAttentionParts, WithoutAFiniteScoreCountNothing) {
    const Context ctx(Device::cpu(), 1);
    const Tensor q = randn(ctx, {1, 4, 1, 8}, DType::f64, Seed{1}),
                 k = randn(ctx, {1, 4, 1, 8}, DType::f64, Seed{2}),
                 v = randn(ctx, {1, 4, 1, 8}, DType::f64, Seed{3});
    // Rank 1's keys have scores of -inf with every query.
    const double infinite = std::numeric_limits<double>::infinity();
    fill(ctx, q.slice(3, 0, 1), 1.0);
    const Tensor hidden = cast(ctx, k, DType::f64);
    fill(ctx, hidden.slice(3, 0, 1), -infinite);
    Saved alone;
    forward(ctx, q, k, v, {}, alone);
    on_thread_ring(2, [&](const Ring& ring) {
        const Context own(Device::cpu(), 1);
        Saved saved;
        ring_forward(own, q, ring.rank() == 0 ? k : hidden, v, {}, ring, saved);
        EXPECT_EQ(to_host(own, saved.o), to_host(own, alone.o)) << "rank " << ring.rank();
        EXPECT_EQ(to_host(own, saved.lse), to_host(own, alone.lse)) << "rank " << ring.rank();
    });
}

TEST(RingAttentionOptions, AreRefusedByName) {
    const Context ctx(Device::cpu(), 1);
    const Tensor x = randn(ctx, {1, 4, 2, 8}, DType::f32, Seed{1}), offsets = zeros(ctx, {2}, DType::i32);
    std::vector<std::pair<std::string, Options>> refused = {
        {"window", {.window = {.left = 3}}},
        {"window", {.window = {.right = 3}}},
        {"row_ranges", {.row_ranges = zeros(ctx, {1, 1, 4, 4}, DType::i32)}},  // of one rank only
        {"causal", {.causal = true, .row_ranges = zeros(ctx, {2, 1, 4, 4}, DType::i32)}},
        {"alibi_slopes", {.alibi_slopes = zeros(ctx, {2}, DType::f32)}},
        {"biases", {.biases = {zeros(ctx, {1, 1, 1, 1}, DType::f32)}}},
        {"dropout_p", {.dropout_p = 0.5, .dropout_key = {.training = true}}},
        {"cumulative_q", {.cumulative_q = offsets, .cumulative_k = offsets}},
        {"algorithm", {.algorithm = Algorithm::naive}},
        {"algorithm", {.algorithm = Algorithm::memory_efficient}},
        {"algorithm", {.algorithm = Algorithm::flash1}}};
    on_thread_ring(2, [&](const Ring& ring) {
        for (const std::pair<std::string, Options>& refusal : refused) {
            const std::string& name = refusal.first;
            const Options& options = refusal.second;
            Saved saved;
            EXPECT_THAT(message_of([&] { ring_forward(ctx, x, x, x, options, ring, saved); }),
                        StartsWith("ring_forward: " + name));
            saved = {.q = x, .k = x, .v = x, .o = x, .lse = zeros(ctx, {1, 2, 4}, DType::f32)};
            EXPECT_THAT(message_of([&] { ring_backward(ctx, x, options, ring, saved, {}); }),
                        StartsWith("ring_backward: " + name));
        }
        Saved saved;
        const Tensor odd = x.slice(1, 0, 3);
        EXPECT_THAT(message_of([&] { ring_forward(ctx, odd, odd, odd, {.causal = true}, ring, saved); }),
                    AllOf(HasSubstr("3 rows"), HasSubstr("two chunks")));
        EXPECT_THAT(message_of([&] { ring_forward(ctx, x, odd, odd, {}, ring, saved); }),
                    HasSubstr("ring_forward: k is"));
    });
}

TEST(Zigzag, ChunksCoverEverySequenceOnce) {
    for (const int ranks : {1, 2, 3, 8}) {
        std::vector<int> holders(static_cast<std::size_t>(6 * ranks));
        for (int rank = 0; rank < ranks; ++rank) {
            const auto chunks = zigzag_chunks(6 * ranks, rank, ranks);
            // The pairs of a query and a key that it sees are as many on every rank.
            std::int64_t pairs = 0;
            for (const std::int64_t chunk : chunks)
                for (std::int64_t i = chunk; i < chunk + 3; ++i) {
                    ++holders[static_cast<std::size_t>(i)];
                    pairs += i + 1;
                }
            EXPECT_EQ(pairs, 3 * (6 * ranks + 1));
        }
        EXPECT_THAT(holders, ::testing::Each(1));
    }
    EXPECT_THAT(message_of([] { zigzag_chunks(10, 0, 2); }), HasSubstr("expected a multiple of 4"));
    EXPECT_THAT(message_of([] { zigzag_chunks(8, 2, 2); }), HasSubstr("rank 2 of 2"));
}

TEST(Zigzag, RowRangesAreTheRowsOfEachRank) {
    for (const int ranks : {1, 2, 3})
        for (std::int64_t begin = 0; begin <= 12; ++begin)
            for (std::int64_t end = begin; end <= 12; ++end) {
                std::vector<std::int64_t> seen;
                for (int rank = 0; rank < ranks; ++rank) {
                    const auto chunks = zigzag_chunks(12, rank, ranks);
                    const auto r = zigzag_row_ranges(begin, end, 12, rank, ranks);
                    const std::int64_t chunk = 12 / (2 * ranks);
                    for (std::int64_t row = 0; row < 2 * chunk; ++row)
                        if ((r[0] <= row && row < r[1]) || (r[2] <= row && row < r[3]))
                            seen.push_back(chunks[row < chunk ? 0 : 1] + row % chunk);
                }
                std::ranges::sort(seen);
                std::vector<std::int64_t> expected(static_cast<std::size_t>(end - begin));
                std::iota(expected.begin(), expected.end(), begin);
                EXPECT_EQ(seen, expected) << ranks << ' ' << begin << ' ' << end;
            }
}

TEST(Rings, RefuseTensorsThatDiffer) {
    const Context ctx(Device::cpu(), 1);
    const Tensor x = zeros(ctx, {4}, DType::f32);
    on_thread_ring(1, [&](const Ring& ring) {
        EXPECT_THAT(message_of([&] { ring.start_shift(ctx, x, zeros(ctx, {3}, DType::f32)); }),
                    HasSubstr("same dtype and number of elements"));
        EXPECT_THAT(message_of([&] { ring.start_shift(ctx, x, zeros(ctx, {4}, DType::f64)); }),
                    HasSubstr("same dtype and number of elements"));
        const Tensor full = zeros(ctx, {4, 2}, DType::f32);
        EXPECT_THAT(message_of([&] { ring.start_shift(ctx, full.slice(1, 0, 1), x); }),
                    HasSubstr("contiguous"));
        const Tensor ones = zeros(ctx, {4}, DType::f32);
        fill(ctx, ones, 1.0);
        ring.start_shift(ctx, ones, x);  // to itself
        ring.finish_shifts(ctx);
        EXPECT_THAT(to_host(ctx, x), ::testing::Each(1.0));
    });
}

}  // namespace
}  // namespace gradtile::attention::test
