// The choice between the GPU kernels. These tests need no GPU.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/attention/cuda/plan.h>
#include <gradtile/core/check.h>

namespace gradtile::attention::cuda::plans_of_calls {
namespace {

const GpuLimits h100{}, a100{.processors = 108, .shared_bytes = 163 * 1024, .why_no_sm90 = "sm_80"},
    rtx_4090{.processors = 128, .shared_bytes = 99 * 1024, .why_no_sm90 = "sm_89"},
    b200{.processors = 148, .why_no_sm90 = "sm_100"},
    rtx_5090{.processors = 170, .shared_bytes = 99 * 1024, .why_no_sm90 = "sm_120"},
    unknown{.is_known = false, .why_no_sm90 = "a dry run"};

/// A call: numbers of its tensors, and options.
struct Call {
    FlashProblem problem;
    ResolvedOptions options;

    Call with(auto&& change) const {
        Call call = *this;
        change(call);
        call.options.scores.set_summary();
        return call;
    }
    Call backward() const {
        return with([](Call& call) { call.problem.pass = Pass::backward; });
    }
};
Call dense(DType dtype, std::int64_t batch, std::int64_t heads, std::int64_t queries, std::int64_t keys,
           std::int64_t head_dim) {
    Call call;
    call.problem = {.dtype = dtype,
                    .batch = batch,
                    .queries = queries,
                    .keys = keys,
                    .heads = heads,
                    .key_heads = heads,
                    .qk_dim = head_dim,
                    .v_dim = head_dim};
    call.options.scale = 0.125;
    call.options.mask = {.queries = queries, .keys = keys, .offset = keys - queries, .right = 0};
    return call;
}
Call bf16(std::int64_t batch, std::int64_t heads, std::int64_t length, std::int64_t head_dim) {
    return dense(DType::bf16, batch, heads, length, length, head_dim);
}
/// A tensor that is never read.
Tensor described(const Shape& shape, DType dtype) {
    alignas(16) static std::byte memory;
    return Tensor::from_blob(&memory, shape, dtype);
}
void pack(Call& call) {
    call.problem.batch = 1;
    call.options.packed = {
        .q_offsets = described({5}, DType::i32), .k_offsets = described({5}, DType::i32), .count = 4};
}
/// Row ranges that all heads share, or each head's own.
template <bool of_each_head>
void add_row_ranges(Call& call) {
    call.options.row_ranges = {.data = reinterpret_cast<const std::int32_t*>(std::uintptr_t{1024}),
                               .batch_stride = 0,
                               .head_stride = of_each_head ? 4 * call.problem.keys : 0,
                               .key_stride = 4};
}
void drop(Call& call) {
    call.options.scores.dropout.threshold = 6553;
}
/// A bias [1, heads, queries, keys] in q's dtype at an aligned address, and its gradient.
void add_pair_bias(Call& call) {
    const FlashProblem& p = call.problem;
    call.options.scores.biases[1] = {.data = reinterpret_cast<const std::byte*>(std::uintptr_t{1024}),
                                     .dtype = p.dtype,
                                     .strides = {0, p.queries * p.keys, p.keys, 1}};
    call.problem.d_biases[1] = described({1, p.heads, p.queries, p.keys}, p.dtype);
}
template <Algorithm algorithm>
void use(Call& call) {
    call.options.algorithm = algorithm;
}
template <bool hopper>
void force(Call& call) {
    call.options.kernels.hopper = hopper;
}

const Call gpt2 = bf16(16, 12, 1024, 64), llama = bf16(4, 32, 4096, 128), wide = bf16(2, 8, 1000, 192),
           one_token = dense(DType::bf16, 1, 32, 1, 8192, 128),
           forty_tokens = dense(DType::bf16, 2, 2, 40, 9000, 128),
           f32 = dense(DType::f32, 2, 4, 100, 100, 64), f64 = dense(DType::f64, 2, 4, 100, 100, 64),
           short_heads = bf16(32, 12, 128, 64), evoformer = bf16(256, 8, 512, 32).with(add_pair_bias);

struct Row {
    Call call;
    const GpuLimits& gpu;
    Family family;
    const char* line;
};
const Row table[] = {
    {gpt2, h100, Family::sm90,
     "long queries: Hopper's asynchronous products and copies; head dim 64, consumers 4, rows 256, keys 64, "
     "stages 2, stages of Q 2, in turns, pairs of row blocks, heads in a set 1, scratch bytes 0; the GPU "
     "has wgmma and TMA"},
    {gpt2.backward(), h100, Family::sm90,
     "Hopper's asynchronous products and copies; head dim 64, consumers 2, rows 128, keys 128, stages 1, "
     "heads in a set 48, dQ added by ring, slots 96, scratch bytes 26751748; the GPU has wgmma and TMA"},
    {gpt2, a100, Family::sm80,
     "long queries: a thread block for each block of rows; head dim 64, rows 128, keys 128, stages 2, "
     "scratch bytes 0; no Hopper kernels, because sm_80"},
    {gpt2.backward(), a100, Family::sm80,
     "a thread block for each block of keys; head dim 64, rows 128, keys 128, dQ added by threads, scratch "
     "bytes 51917572; no Hopper kernels, because sm_80"},
    {gpt2, rtx_4090, Family::sm80,
     "long queries: a thread block for each block of rows; head dim 64, rows 128, keys 128, stages 2, "
     "scratch bytes 0; no Hopper kernels, because sm_89"},
    {gpt2.with(force<false>).backward(), h100, Family::sm80,
     "a thread block for each block of keys; head dim 64, rows 128, keys 128, dQ added by threads, scratch "
     "bytes 51917572; no Hopper kernels, because other kernels are forced"},
    {bf16(1, 16, 16384, 64), h100, Family::sm90,
     "long queries: Hopper's asynchronous products and copies; head dim 64, consumers 3, rows 192, keys 128, "
     "stages 2, stages of Q 2, in turns, pairs of row blocks, heads in a set 1, scratch bytes 0; the GPU has "
     "wgmma and TMA"},
    {bf16(1, 16, 16384, 64).backward(), h100, Family::sm90,
     "Hopper's asynchronous products and copies; head dim 64, consumers 2, rows 128, keys 128, stages 1, "
     "heads in a set 3, dQ added by bulk, scratch bytes 69222468; the GPU has wgmma and TMA"},
    {llama, h100, Family::sm90,
     "long queries: Hopper's asynchronous products and copies; head dim 128, consumers 2, rows 128, keys "
     "128, stages 2, stages of Q 1, Q in registers, in turns, pairs of row blocks, heads in a set 1, scratch "
     "bytes 0; the GPU has wgmma and TMA"},
    {llama.backward(), h100, Family::sm90,
     "Hopper's asynchronous products and copies; head dim 128, consumers 2, rows 64, keys 128, stages 2, "
     "heads in a set 6, dQ added by bulk, scratch bytes 272663044; the GPU has wgmma and TMA"},
    {wide, h100, Family::sm90,
     "long queries: Hopper's asynchronous products and copies; head dim 192, consumers 2, rows 128, keys "
     "112, stages 2, stages of Q 1, not in turns, single row blocks, heads in a set 16, scratch bytes 0; the "
     "GPU has wgmma and TMA"},
    {wide.backward(), h100, Family::sm90,
     "Hopper's asynchronous products and copies; head dim 192, consumers 2, rows 64, keys 64, heads in a set "
     "16, dQ added by threads, scratch bytes 12715076; the GPU has wgmma and TMA"},
    {wide.backward(), b200, Family::sm80,
     "a thread block for each block of keys; head dim 192, rows 64, keys 64, dQ added by threads, scratch "
     "bytes 12715076; no Hopper kernels, because sm_100"},
    {wide.backward(), a100, Family::sm80,
     "a thread block for each block of keys; head dim 192, rows 64, keys 64, dQ added by threads, scratch "
     "bytes 12715076; no Hopper kernels, because sm_80"},
    {wide.backward(), rtx_5090, Family::sm80,
     "a thread block for each block of keys; head dim 192, rows 32, keys 32, dQ added by threads, scratch "
     "bytes 12715076; no Hopper kernels, because sm_120"},
    {wide, b200, Family::sm80,
     "long queries: a thread block for each block of rows; head dim 192, rows 128, keys 64, stages 2, "
     "scratch bytes 0; no Hopper kernels, because sm_100"},
    {wide, rtx_5090, Family::sm80,
     "long queries: a thread block for each block of rows; head dim 192, rows 128, keys 32, stages 2, "
     "scratch bytes 0; no Hopper kernels, because sm_120"},
    {gpt2.with(drop), h100, Family::sm90,
     "long queries: Hopper's asynchronous products and copies; head dim 64, with dropout, consumers 2, rows "
     "128, keys 128, stages 2, stages of Q 2, in turns, pairs of row blocks, heads in a set 1, scratch "
     "bytes 0; the GPU has wgmma and TMA"},
    {gpt2.with(drop).backward(), a100, Family::sm80,
     "a thread block for each block of keys; head dim 64, with dropout, rows 64, keys 128, dQ added by "
     "threads, scratch bytes 51917572; no Hopper kernels, because sm_80"},
    {gpt2.with(pack), h100, Family::sm90,
     "long queries: Hopper's asynchronous products and copies; head dim 64, packed sequences, consumers 3, "
     "rows 192, keys 128, stages 2, stages of Q 2, in turns, heads in a set 12, scratch bytes 2240; the GPU "
     "has wgmma and TMA"},
    {gpt2.with(pack).backward(), h100, Family::sm90,
     "Hopper's asynchronous products and copies; head dim 64, packed sequences, consumers 2, rows 128, keys "
     "128, stages 1, heads in a set 12, dQ added by bulk, scratch bytes 5681540; the GPU has wgmma and TMA"},
    {bf16(1, 12, 1024, 128).with([](Call& c) {
         pack(c);
         c.problem.qk_dim = 32;
     }),
     h100, Family::sm80,
     "long queries: a thread block for each block of rows; head dim 128, packed sequences, rows 128, keys "
     "64, stages 2, scratch bytes 2240; no Hopper kernels, because the head dims of packed sequences leave "
     "whole panels of a tile empty"},
    {short_heads, h100, Family::sm90,
     "long queries: Hopper's asynchronous products and copies; head dim 64, consumers 4, rows 256, keys 64, "
     "stages 2, stages of Q 2, in turns, pairs of row blocks, heads in a set 384, scratch bytes 0; the GPU "
     "has wgmma and TMA"},
    {short_heads.backward(), h100, Family::sm80,
     "a thread block for each block of keys; head dim 64, rows 128, keys 128, dQ added by shared, scratch "
     "bytes 12980740; no Hopper kernels, because many short heads have a kernel that keeps dQ in shared "
     "memory"},
    {short_heads.backward(), a100, Family::sm80,
     "a thread block for each block of keys; head dim 64, rows 128, keys 128, dQ added by threads, scratch "
     "bytes 12980740; no Hopper kernels, because sm_80"},
    {evoformer, h100, Family::sm80,
     "long queries: a thread block for each block of rows; head dim 32, with a bias in tiles, rows 128, keys "
     "64, stages 2, scratch bytes 0; no Hopper kernels, because with biases the kernel for all GPUs is as "
     "fast"},
    {evoformer.backward(), h100, Family::sm90,
     "Hopper's asynchronous products and copies; head dim 32, with biases, consumers 2, rows 128, keys 128, "
     "stages 2, heads in a set 187, dQ added by ring, slots 374, scratch bytes 32972804; the GPU has wgmma "
     "and TMA"},
    {evoformer.backward(), a100, Family::sm80,
     "a thread block for each block of keys; head dim 32, with a bias in tiles, rows 64, keys 128, dQ added "
     "by threads, launches 3, scratch bytes 53551108; no Hopper kernels, because sm_80"},
    {gpt2.with([](Call& c) { c.options.deterministic = true; }).backward(), h100, Family::sm90,
     "Hopper's asynchronous products and copies; head dim 64, consumers 2, rows 128, keys 128, stages 1, "
     "heads in a set 48, dQ added by bulk, scratch bytes 52101124; the GPU has wgmma and TMA"},
    {gpt2.with(add_row_ranges<false>), h100, Family::sm90,
     "long queries: Hopper's asynchronous products and copies; head dim 64, with row ranges, consumers 3, "
     "rows 192, keys 128, stages 2, stages of Q 2, in turns, single row blocks, heads in a set 192, scratch "
     "bytes 26760; the GPU has wgmma and TMA"},
    {gpt2.with(add_row_ranges<true>).backward(), h100, Family::sm90,
     "Hopper's asynchronous products and copies; head dim 64, with row ranges, consumers 2, rows 128, keys "
     "128, stages 1, heads in a set 48, dQ added by bulk, scratch bytes 52238648; the GPU has wgmma and TMA"},
    {llama.with(add_row_ranges<false>), h100, Family::sm90,
     "long queries: Hopper's asynchronous products and copies; head dim 128, with row ranges, consumers 2, "
     "rows 128, keys 128, stages 2, stages of Q 2, in turns, single row blocks, heads in a set 24, scratch "
     "bytes 82248; the GPU has wgmma and TMA"},
    {llama.with(add_row_ranges<false>).backward(), h100, Family::sm90,
     "Hopper's asynchronous products and copies; head dim 128, with row ranges, consumers 2, rows 64, keys "
     "128, stages 2, heads in a set 6, dQ added by bulk, scratch bytes 272745292; the GPU has wgmma and TMA"},
    {llama.with(add_row_ranges<false>), a100, Family::sm80,
     "long queries: a thread block for each block of rows; head dim 128, with row ranges, rows 128, keys 32, "
     "stages 2, scratch bytes 82248; no Hopper kernels, because sm_80"},
    {wide.with(add_row_ranges<false>).backward(), h100, Family::sm80,
     "a thread block for each block of keys; head dim 192, with row ranges, rows 64, keys 64, dQ added by "
     "threads, scratch bytes 12737672; no Hopper kernels, because row ranges have no kernels for the head "
     "dim"},
    {gpt2.with(add_row_ranges<false>).with(drop), h100, Family::sm80,
     "long queries: a thread block for each block of rows; head dim 64, with row ranges and score rules, "
     "rows 128, keys 64, stages 2, scratch bytes 26760; no Hopper kernels, because the call has row ranges "
     "and score rules"},
    {gpt2.with(add_row_ranges<false>).with(pack), h100, Family::sm80,
     "long queries: a thread block for each block of rows; head dim 64, with row ranges, packed sequences, "
     "rows 128, keys 64, stages 2, scratch bytes 29128; no Hopper kernels, because the call has row ranges "
     "and packed sequences"},
    {gpt2.with(add_row_ranges<false>).with([](Call& c) { c.options.deterministic = true; }).backward(), h100,
     Family::sm80,
     "a thread block for each block of keys; head dim 64, with row ranges, rows 64, keys 128, dQ added by "
     "threads, scratch bytes 52127884; no Hopper kernels, because the call has row ranges and a fixed order "
     "of sums"},
    {short_heads.with(add_row_ranges<false>).backward(), h100, Family::sm90,
     "Hopper's asynchronous products and copies; head dim 64, with row ranges, consumers 2, rows 128, keys "
     "128, stages 1, heads in a set 384, dQ added by bulk, scratch bytes 12989268; the GPU has wgmma and "
     "TMA"},
    {one_token.with(add_row_ranges<false>), h100, Family::sm90,
     "long queries: Hopper's asynchronous products and copies; head dim 128, with row ranges, consumers 2, "
     "rows 128, keys 128, stages 2, stages of Q 2, in turns, single row blocks, heads in a set 12, scratch "
     "bytes 156232; the GPU has wgmma and TMA"},
    {evoformer.with(add_row_ranges<false>).backward(), h100, Family::sm80,
     "a thread block for each block of keys; head dim 32, with row ranges and score rules, rows 64, keys "
     "128, dQ added by threads, launches 3, scratch bytes 53568620; no Hopper kernels, because the call has "
     "row ranges and score rules"},
    {f32.with(add_row_ranges<true>), h100, Family::f32,
     "long queries: a thread block for each block of rows; head dim 64, with row ranges, rows 128, keys 32, "
     "scratch bytes 33924; float32"},
    {f32.with(add_row_ranges<false>).backward(), rtx_4090, Family::f32,
     "a thread block for each block of keys; head dim 64, with row ranges, rows 32, keys 128, scratch bytes "
     "14988; float32"},
    {dense(DType::f32, 1, 8, 2, 4096, 64).with(add_row_ranges<false>), h100, Family::f32,
     "long queries: a thread block for each block of rows; head dim 64, with row ranges, rows 128, keys 32, "
     "scratch bytes 82344; float32"},
    {f64.with(add_row_ranges<false>), h100, Family::pairwise,
     "float64: pair by pair; head dim 64, with row ranges, scratch bytes 0; tensor cores are too coarse for "
     "float64"},
    {gpt2.with([](Call& c) { c.problem.why_no_maps = "TMA cannot read the strides"; }), h100, Family::sm80,
     "long queries: a thread block for each block of rows; head dim 64, rows 128, keys 128, stages 2, "
     "scratch bytes 0; no Hopper kernels, because TMA cannot read the strides"},
    {gpt2.with([](Call& c) { c.options.scale = -1; }), h100, Family::sm80,
     "long queries: a thread block for each block of rows; head dim 64, rows 128, keys 128, stages 2, "
     "scratch bytes 0; no Hopper kernels, because the scale is not positive"},
    {one_token, h100, Family::few_sm80,
     "few queries: 1 rows of 1 heads together, 8 splits of 1024 keys, 256 thread blocks, at most 264 at the "
     "same time; head dim 128, scratch bytes 133120; no Hopper kernels, because there are at most 32 rows"},
    {one_token.with(force<true>), h100, Family::few_sm90,
     "few queries: 1 rows of 1 heads together, 8 splits of 1024 keys, 256 thread blocks, at most 264 at the "
     "same time; head dim 128, scratch bytes 133120; Hopper's asynchronous products and copies, because they "
     "are forced"},
    {one_token, unknown, Family::few_sm80,
     "few queries: 1 rows of 1 heads together, 48 splits of 8192 keys, 1536 thread blocks, at most 2 at the "
     "same time; head dim 128, scratch bytes 798720; no Hopper kernels, because there are at most 32 rows"},
    {one_token.with([](Call& c) { c.options.kernels.splits = 3; }), h100, Family::few_sm80,
     "few queries: 1 rows of 1 heads together, 3 splits of 2752 keys, 96 thread blocks, at most 264 at the "
     "same time; head dim 128, scratch bytes 49920; no Hopper kernels, because there are at most 32 rows"},
    {one_token.with([](Call& c) { c.options.kernels.few_queries = false; }), h100, Family::sm90,
     "long queries: Hopper's asynchronous products and copies; head dim 128, consumers 2, rows 128, keys "
     "128, stages 2, stages of Q 1, Q in registers, in turns, single row blocks, heads in a set 6, scratch "
     "bytes 0; the GPU has wgmma and TMA"},
    {forty_tokens, h100, Family::few_sm90,
     "few queries: 40 rows of 1 heads together, 47 splits of 192 keys, 188 thread blocks, at most 264 at the "
     "same time; head dim 128, scratch bytes 3910400; Hopper's asynchronous products and copies, because "
     "there are more than 32 rows"},
    {forty_tokens, rtx_4090, Family::sm80,
     "long queries: a thread block for each block of rows; head dim 128, rows 128, keys 64, stages 2, "
     "scratch bytes 0; no Hopper kernels, because sm_89"},
    {gpt2.backward(), unknown, Family::sm80,
     "a thread block for each block of keys; head dim 64, rows 128, keys 128, dQ added by threads, scratch "
     "bytes 51917572; no Hopper kernels, because a dry run"},
    {f32, h100, Family::f32,
     "long queries: a thread block for each block of rows; head dim 64, rows 128, keys 32, scratch bytes 96; "
     "float32"},
    {f32.backward(), rtx_4090, Family::f32,
     "a thread block for each block of keys; head dim 64, rows 32, keys 128, scratch bytes 6528; float32"},
    {f32.with(add_pair_bias).backward(), h100, Family::f32,
     "a thread block for each block of keys; head dim 64, with score rules, rows 32, keys 128, scratch bytes "
     "6528; float32"},
    {dense(DType::f32, 1, 8, 2, 4096, 64), h100, Family::few_f32,
     "few queries: 2 rows of 1 heads together, 32 splits of 128 keys, 256 thread blocks, at most 264 at the "
     "same time; head dim 64, scratch bytes 135168; float32, few queries"},
    {f64, h100, Family::pairwise,
     "float64: pair by pair; head dim 64, scratch bytes 0; tensor cores are too coarse for float64"},
    {f64.with([](Call& c) { c.problem.writes_d_sink = true; }).backward(), h100, Family::pairwise,
     "float64: pair by pair; head dim 64, scratch bytes 12800; tensor cores are too coarse for float64"},
    {gpt2.with(use<Algorithm::naive>), h100, Family::naive,
     "naive: matrix products; head dim 64, scratch bytes 402653184; the option algorithm is naive"},
    {gpt2.with(use<Algorithm::naive>).backward(), h100, Family::naive,
     "naive: matrix products; head dim 64, scratch bytes 805306368; the option algorithm is naive"},
    {gpt2.with(use<Algorithm::memory_efficient>), h100, Family::memory_efficient,
     "memory_efficient: a thread block for each block of rows; head dim 64, scratch bytes 0; the option "
     "algorithm is memory_efficient"},
    {gpt2.with(use<Algorithm::memory_efficient>).backward(), h100, Family::memory_efficient,
     "memory_efficient: a thread block for each block of rows; head dim 64, scratch bytes 1572864; the "
     "option algorithm is memory_efficient"},
    {bf16(1, 2, 2048, 64).with(use<Algorithm::flash1>).backward(), h100, Family::flash1,
     "flash1: a thread block for each head, or several for a part of it each; head dim 64, splits 4, scratch "
     "bytes 4227072; the option algorithm is flash1"},
};

TEST(FlashPlan, IsTheOneInTheTable) {
    for (const Row& row : table) {
        const FlashPlan made = plan(row.call.problem, row.call.options, row.gpu);
        EXPECT_EQ(made.family, row.family) << made;
        EXPECT_EQ(concat(made), row.line);
    }
}

/// Only these kernels find the biases of a packed sequence, and no kernel reads them in tiles.
TEST(FlashPlan, OfPackedSequencesWithBiasesHasTheKernelsOfAllGpusForAnyRule) {
    for (const Call& base : {evoformer, gpt2.with(add_pair_bias), gpt2.with(add_pair_bias).with(drop)})
        for (const Call& call : {base.with(pack), base.with(pack).backward()})
            for (const GpuLimits* gpu : {&h100, &a100, &rtx_4090, &b200, &rtx_5090, &unknown}) {
                const FlashPlan made = plan(call.problem, call.options, *gpu);
                EXPECT_EQ(made.family, Family::sm80) << made;
                EXPECT_EQ(made.rule, RuleKind::any) << made;
                EXPECT_EQ(made.schedule.pair_bias, -1) << made;
                EXPECT_EQ(made.schedule.pair_bias_parts, 1) << made;
            }
}

/// A dry run knows no GPU, so its plan needs at least as much scratch memory as the plan for any GPU.
TEST(FlashPlan, OfADryRunHasEnoughScratchMemoryForEveryGpu) {
    for (const Row& row : table) {
        const auto bytes = [&](const GpuLimits& gpu) {
            return plan(row.call.problem, row.call.options, gpu).scratch_bytes();
        };
        for (const GpuLimits* gpu : {&h100, &a100, &rtx_4090})
            EXPECT_LE(bytes(*gpu), bytes(unknown)) << row.line;
    }
}

TEST(FlashPlan, LaunchesComputeEachBatchOnce) {
    for (const Row& row : table) {
        const FlashPlan made = plan(row.call.problem, row.call.options, row.gpu);
        std::int64_t next = 0;
        for (const Schedule::Launch& launch : made.schedule.launches) {
            EXPECT_EQ(launch.first_batch, next) << made;
            next += launch.batches;
        }
        const bool has_launches = made.family == Family::sm90 || !made.schedule.launches.empty();
        EXPECT_EQ(next, has_launches ? row.call.problem.batch : 0) << made;
    }
}

/// The tuner's plans: the first is the chosen one, all run differently, and each follows from its choice.
TEST(FlashPlan, OfTheTunerFollowFromTheirChoices) {
    for (const Row& row : table) {
        if (row.call.options.algorithm != Algorithm::flash2 || row.call.options.kernels != KernelChoice{})
            continue;
        const std::vector<FlashPlan> list = plans(row.call.problem, row.call.options, row.gpu);
        EXPECT_EQ(list.front().choice, KernelChoice{});
        EXPECT_EQ(concat(list.front()), row.line);
        for (std::size_t i = 0; i < list.size(); ++i) {
            ResolvedOptions options = row.call.options;
            options.kernels = list[i].choice;
            EXPECT_TRUE(plan(row.call.problem, options, row.gpu).runs_like(list[i])) << list[i];
            for (std::size_t j = 0; j < i; ++j) EXPECT_FALSE(list[i].runs_like(list[j])) << list[i];
        }
    }
    EXPECT_GE(plans(gpt2.problem, gpt2.options, h100).size(), 5u);
}

TEST(FlashPlan, TilesWithoutAKernelAreRefused) {
    const auto refusal = [](const Call& base, KernelChoice kernels, GpuLimits gpu) -> std::string {
        const Call call = base.with([&](Call& c) { c.options.kernels = kernels; });
        try {
            (void)plan(call.problem, call.options, gpu);
        } catch (const Error& error) {
            return error.what();
        }
        return "no error";
    };
    using testing::HasSubstr;
    GpuLimits tuned = h100;
    tuned.has_candidates = true;
    EXPECT_THAT(refusal(gpt2, {.forward_tiles = 0}, h100),
                HasSubstr("expected a build with -DGRADTILE_TUNE=ON"));
    EXPECT_EQ(refusal(gpt2, {.forward_tiles = 0}, tuned), "no error");
    EXPECT_THAT(refusal(gpt2, {.forward_tiles = 1000}, tuned),
                HasSubstr("attention: tiles 1000; expected 0 to"));
    EXPECT_THAT(refusal(gpt2.with(pack), {.forward_tiles = 0}, tuned), HasSubstr("dense bf16 calls"));
    EXPECT_THAT(refusal(wide.backward(), {.backward_tiles = 0}, tuned), HasSubstr("expected at most 128"));
    EXPECT_EQ(refusal(gpt2, {.forward_tiles = 0}, a100), "no error") << "does not apply";
}

}  // namespace
}  // namespace gradtile::attention::cuda::plans_of_calls
