#include <gradtile/tools/generation/token_step.h>

#include <cstdlib>
#include <iostream>
#include <string_view>

#include <gradtile/core/cuda_runtime.h>
#include <gradtile/layers/most_likely.h>

namespace gradtile {
namespace {

std::string_view graph_setting() {
    const char* const value = std::getenv("GRADTILE_GENERATION_GRAPH");
    return value == nullptr ? "" : value;
}

/// Returns `rows` rows with `texts` columns each, stored one after the other, in the memory for a tensor [3,
/// slots].
Tensor rows_of(const Tensor& input, std::int64_t texts, std::int64_t row, std::int64_t rows) {
    return input.reshape({input.elements()}).slice(0, row * texts, rows * texts);
}

}  // namespace

bool TokenStep::exists_for(const LanguageModel& model) {
    return model.ctx.device().is_cuda() && graph_setting() != "passes" &&
           model.transformer.can_step(model.ctx);
}

void TokenStep::plan(const Context& dry, const LanguageModel& model, const KeyValueCache& cache,
                     std::int64_t slots) {
    // Logits and inputs are not allocated from the arena, so the arena's dry run does not count them.
    const Context elsewhere = dry.plan(Arena::for_planning(dry.device()));
    const Tensor ids = empty(elsewhere, {slots}, DType::i32);
    const attention::DecodeScratch scratch = model.transformer.step_scratch(elsewhere, cache, slots);
    model.transformer.next_logits(dry,
                                  empty(elsewhere, {slots, model.transformer.config.vocabulary}, DType::f32),
                                  ids, {.positions = ids, .slots = ids, .cache = cache, .scratch = scratch});
}

TokenStep::TokenStep(const Context& ctx, const LanguageModel& model, const KeyValueCache& cache,
                     std::int64_t slots)
    : ctx_(ctx),
      model_(model),
      cache_(cache),
      slots_(slots),
      uses_graphs_(graph_setting() != "off"),
      scratch_(model.transformer.step_scratch(model.ctx, cache, slots)) {
    const std::int64_t vocabulary = model.transformer.config.vocabulary;
    const Context locked = host_of(ctx).with_allocator(transfer_allocator(ctx.device()));
    const auto in_both = [&](Tensor& on_device, Tensor& on_host, const Shape& shape, DType dtype) {
        on_device = zeros(model.ctx, shape, dtype);
        on_host = empty(locked, shape, dtype);
    };
    in_both(input_, host_input_, {3, slots}, DType::i32);
    in_both(logits_, host_logits_, {slots, vocabulary}, DType::f32);
    in_both(most_likely_, host_most_likely_, {slots}, DType::i32);
}

/// Enqueues a step for `texts` texts on ctx_'s stream, with its input and token copies.
void TokenStep::enqueue(std::int64_t texts) {
    const auto copy = [&](const Tensor& to, const Tensor& from) {
        cuda::copy_bytes(to.raw_data(), from.raw_data(), from.bytes(), ctx_.device(), ctx_.stream());
    };
    copy(rows_of(input_, texts, 0, 3), rows_of(host_input_, texts, 0, 3));
    const Tensor logits = logits_.slice(0, 0, texts), most_likely = most_likely_.slice(0, 0, texts);
    model_.transformer.next_logits(ctx_, logits, rows_of(input_, texts, 0, 1),
                                   {.positions = rows_of(input_, texts, 1, 1),
                                    .slots = rows_of(input_, texts, 2, 1),
                                    .cache = cache_,
                                    .scratch = scratch_});
    most_likely_tokens(ctx_, most_likely, logits);
    copy(host_most_likely_.slice(0, 0, texts), most_likely);
}

/// Starts a step. Its results exist after the next wait for the stream.
void TokenStep::run(std::span<const Input> inputs) {
    const auto texts = std::ssize(inputs);
    check(texts >= 1 && texts <= slots_, "token step: ", texts, " texts; expected 1 to ", slots_);
    auto* const host = host_input_.data<std::int32_t>();
    for (std::int64_t i = 0; i < texts; ++i) {
        const Input& in = inputs[static_cast<std::size_t>(i)];
        host[i] = in.token;
        host[texts + i] = static_cast<std::int32_t>(in.position);
        host[2 * texts + i] = static_cast<std::int32_t>(in.slot);
    }
    Step& step = steps_[texts];
    if (step.has_run && step.may_be_captured && uses_graphs_ && !step.graph.captured()) {
        try {
            step.graph.capture(ctx_, [&] { enqueue(texts); });
        } catch (const Error& error) {
            step.may_be_captured = false;
            std::cerr << concat("a token is not replayed as a CUDA graph: ", error.what()) << std::endl;
        }
    }
    if (step.graph.captured()) {
        step.graph.replay(ctx_);
    } else {
        enqueue(texts);
    }
    step.has_run = true;
}

std::vector<std::vector<double>> TokenStep::logits(std::span<const Input> inputs) {
    run(inputs);
    const auto texts = std::ssize(inputs);
    const Tensor logits = logits_.slice(0, 0, texts);
    cuda::copy_bytes(host_logits_.raw_data(), logits.raw_data(), logits.bytes(), ctx_.device(),
                     ctx_.stream());
    cuda::synchronize(ctx_.device(), ctx_.stream());
    std::vector<std::vector<double>> all;
    const std::int64_t vocabulary = logits.size(1);
    for (std::int64_t i = 0; i < texts; ++i) {
        const float* const row = host_logits_.data<float>() + i * vocabulary;
        all.emplace_back(row, row + vocabulary);
    }
    return all;
}

std::vector<std::int32_t> TokenStep::most_likely(std::span<const Input> inputs) {
    run(inputs);
    cuda::synchronize(ctx_.device(), ctx_.stream());
    const auto* const tokens = host_most_likely_.data<std::int32_t>();
    for (std::size_t i = 0; i < inputs.size(); ++i)
        check(tokens[i] >= 0, "token step: a logit after token ", inputs[i].position, " of text ",
              inputs[i].slot, " is not finite");
    return {tokens, tokens + inputs.size()};
}

}  // namespace gradtile
