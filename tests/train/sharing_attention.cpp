// Attention's operators with operands that share memory.
#include <gradtile/attention/attention.h>
#include <gradtile/attention/decode.h>
#include <gradtile/attention/ring_attention.h>
#include <gradtile/tools/lab/warp_partition.h>

#include <support/silent_pair.h>
#include <train/sharing.h>

namespace gradtile::test::sharing {

void test_attention_forward(const Context& ctx) {
    const Tensor q = numbers(ctx, {1, 3, 2, 8}), k = numbers(ctx, {1, 3, 2, 8}),
                 v = numbers(ctx, {1, 3, 2, 8});
    attention::Saved saved;
    for (const Tensor& o : {q, k, v}) expect_refused([&] { attention::forward(ctx, q, k, v, {}, saved, o); });
    const Tensor o = numbers(ctx, {1, 3, 2, 8}), logits = numbers(ctx, {2});
    attention::forward(ctx, q, k, v, {}, saved, o, logits);
    for (const Tensor& shared : {q, k, v, o})
        expect_refused([&] {
            attention::forward(ctx, q, k, v, {}, saved, o, shared.select(0, 0).select(0, 0).select(1, 0));
        });
    expect_refused([&] { attention::forward(ctx, q, k, v, {.sink = logits}, saved, o, logits); });
    // Interleaved columns in one matrix are separate.
    const Tensor packed = numbers(ctx, {1, 3, 8, 8});
    attention::forward(ctx, packed.slice(2, 0, 2), packed.slice(2, 2, 2), packed.slice(2, 4, 2), {}, saved,
                       packed.slice(2, 6, 2));
}

void test_attention_backward(const Context& ctx) {
    const Tensor q = numbers(ctx, {1, 3, 2, 8}), k = numbers(ctx, {1, 3, 2, 8}),
                 v = numbers(ctx, {1, 3, 2, 8});
    const Tensor d_o = numbers(ctx, {1, 3, 2, 8}), sink = numbers(ctx, {2});
    attention::Saved saved;
    const attention::Options options{.sink = sink};
    attention::forward(ctx, q, k, v, options, saved);
    const auto new_like = [&](const Tensor& x) { return empty_like(ctx, x); };
    const attention::Gradients good{
        .q = new_like(q), .k = new_like(k), .v = new_like(v), .sink = new_like(sink)};
    attention::backward(ctx, d_o, options, saved, good);
    for (const Tensor& shared : {q, k, v, saved.o, d_o, good.k})
        expect_refused([&] {
            attention::Gradients into = good;
            into.q = shared;
            attention::backward(ctx, d_o, options, saved, into);
        });
    expect_refused([&] {
        attention::Gradients into = good;
        into.sink = sink;
        attention::backward(ctx, d_o, options, saved, into);
    });
}

void test_merge(const Context& ctx) {
    const Tensor memory = randn(ctx, {3, 5, 3, 8}, DType::f32, Seed{1}),
                 lse = randn(ctx, {2, 3, 5}, DType::f32, Seed{2});
    const attention::PartialResult a{memory.slice(0, 0, 2), lse},
        shifted{memory.slice(0, 1, 2), empty_like(ctx, lse)};
    expect_refused([&] { attention::merge(ctx, shifted, a, a); });
    const std::vector<double> expected = to_host(ctx, attention::merge(ctx, a, a).o);
    attention::merge(ctx, a, a, a);
    EXPECT_EQ(to_host(ctx, a.o), expected);
}

void test_shift(const Context& ctx) {
    const Tensor memory = numbers(ctx, {8});
    expect_refused(
        [&] { test::SilentRing().start_shift(ctx, memory.slice(0, 0, 4), memory.slice(0, 2, 4)); });
    expect_refused(
        [&] { test::SilentRing().start_shift(ctx, memory.slice(0, 0, 4), memory.slice(0, 0, 4)); });
}

void test_ring_backward(const Context& ctx) {
    const auto heads = [&] { return numbers(ctx, {1, 4, 2, 8}); };
    const attention::Saved saved{
        .q = heads(), .k = heads(), .v = heads(), .o = heads(), .lse = numbers(ctx, {1, 2, 4})};
    const Tensor d_o = heads(), sink = numbers(ctx, {2});
    const attention::Options options{.sink = sink};
    const attention::Gradients good{.q = heads(), .k = heads(), .v = heads(), .sink = numbers(ctx, {2})};
    const auto call = [&](const attention::Gradients& into) {
        attention::ring_backward(ctx, d_o, options, test::SilentRing(), saved, into);
    };
    call(good);
    for (Tensor attention::Gradients::*const written :
         {&attention::Gradients::q, &attention::Gradients::k, &attention::Gradients::v})
        for (const Tensor& shared : {saved.q, saved.k, saved.v, saved.o, d_o})
            expect_refused([&] {
                attention::Gradients into = good;
                into.*written = shared;
                call(into);
            });
    expect_refused([&] { call({.q = good.q, .k = good.q, .v = good.v}); });
    expect_refused([&] { call({.q = good.q, .k = good.k, .v = good.k}); });
    expect_refused([&] { call({.q = good.q, .k = good.k, .v = good.q}); });
    expect_refused([&] {
        attention::Gradients into = good;
        into.sink = sink;
        call(into);
    });
}

void test_decode(const Context& ctx) {
    const auto heads = [&] { return numbers(ctx, {1, 1, 2, 8}); };
    const attention::DecodeInputs in{.q = heads(),
                                     .k = heads(),
                                     .v = heads(),
                                     .slots = zeros(ctx, {1}, DType::i32),
                                     .positions = zeros(ctx, {1}, DType::i32)};
    const attention::DecodeCache cache{numbers(ctx, {1, 4, 2, 8}), numbers(ctx, {1, 4, 2, 8})};
    const attention::DecodeScratch scratch(ctx, 1, 2, cache);
    const attention::Options causal{.causal = true};
    attention::decode(ctx, heads(), in, cache, causal, scratch);
    for (const Tensor& o : {in.q, in.k, cache.k.slice(1, 2, 1)}) {
        expect_refused([&] { attention::decode(ctx, o, in, cache, causal, scratch); });
        const Tensor lse = o.reshape({16}).slice(0, 0, 2).reshape({1, 2, 1});
        expect_refused([&] { attention::decode(ctx, heads(), in, cache, causal, scratch, lse); });
    }
    attention::DecodeInputs from_cache = in;
    from_cache.k = cache.k.slice(1, 2, 1);
    expect_refused([&] { attention::decode(ctx, heads(), from_cache, cache, causal, scratch); });
    expect_refused([&] { attention::decode(ctx, heads(), in, {cache.k, cache.k}, causal, scratch); });
    const attention::DecodeCache in_blocks{numbers(ctx, {1, 16, 2, 8}), numbers(ctx, {1, 16, 2, 8}),
                                           zeros(ctx, {1, 1}, DType::i32)};
    attention::decode(ctx, heads(), in, in_blocks, causal, scratch);
    const Tensor o = heads();
    expect_refused([&] {
        attention::decode(ctx, o, in,
                          {in_blocks.k, in_blocks.v, as_i32(o.select(2, 0).slice(2, 0, 1), {1, 1})}, causal,
                          scratch);
    });
}

void test_partitioned_forward(const Context& ctx) {
    using namespace attention::lab;
    const auto heads = [&] { return numbers(ctx, {1, 64, 1, 64}, DType::bf16); };
    const Tensor q = heads(), lse = empty(ctx, {1, 1, 64}, DType::f32);
    expect_refused(
        [&] { partitioned_forward(ctx, WarpPartition::split_q, {}, q, heads(), heads(), false, q, lse); });
}

}  // namespace gradtile::test::sharing
