#include <gradtile/train/step_input.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include <gradtile/core/cuda_runtime.h>
#include <gradtile/layers/dropout.h>
#include <gradtile/train/shared_sequences.h>

namespace gradtile {
namespace {

// Offsets in a host block, in int32 words: the rate (float64), the seed, the vote and the target count
// (float64), then, aligned to 256 bytes, row ranges, tokens and so on.
constexpr std::int64_t rate_at = 0, seed_at = 2, vote_at = 4, target_count_at = 6, ranges_at = 64;

Tensor view(const Tensor& block, std::int64_t word, DType dtype, const Shape& shape) {
    return Tensor(block.buffer(), block.raw_data() + word * size_of(DType::i32), block.device(), dtype, shape,
                  contiguous_strides(shape));
}

}  // namespace

StepInput::StepInput(const Context& ctx, DataLoader loader, const StepInputOptions& options)
    : loader_(std::move(loader)),
      options_(options),
      tokens_(options.shapes.sequences.full * loader_.context()),
      ranges_(loader_.packing().has_ranges() || shares_documents() ? 4 * tokens_ : 0),
      offsets_(loader_.packing().offsets_of(options.shapes.micro_batch)),
      state_(loader_.state()) {
    const std::int64_t micro_steps = options.shapes.sequences.full / options.shapes.micro_batch;
    const Shape words{offsets_at(micro_steps)};
    const Context host = Context(Device::cpu(), 1).with_allocator(transfer_allocator(ctx.device()));
    host_[0] = empty(host, words, DType::i32);
    if (ctx.device().is_cuda()) {
        host_[1] = empty(host, words, DType::i32);
        device_ = zeros(ctx, words, DType::i32);
    } else {
        device_ = host_[1] = host_[0];
    }
    rate_ = view(device_, rate_at, DType::f64, {1});
    vote_ = view(device_, vote_at, DType::f64, {1});
    target_count_ = view(device_, target_count_at, DType::f64, {1});
    seed_tensor_ = view(device_, seed_at, DType::i32, {2});
}

bool StepInput::shares_documents() const {
    return options_.shared != nullptr && options_.shared->needs_row_ranges(loader_.packing());
}

std::int64_t StepInput::tokens_at() const {
    return ranges_at + ranges_;
}
std::int64_t StepInput::offsets_at(std::int64_t micro_step) const {
    return tokens_at() + (loader_.packing() ? 3 : 2) * tokens_ + micro_step * offsets_;
}

Batch StepInput::micro_batch(const StepShape& shape, std::int64_t i) const {
    const Shape rows{shape.micro_batch, loader_.context()};
    const std::int64_t done = i * rows.elements(), first = tokens_at() + done;
    Batch batch{view(device_, first, DType::i32, rows), view(device_, first + tokens_, DType::i32, rows)};
    const Packing& packing = loader_.packing();
    if (!packing) return batch;
    batch.documents.positions = view(device_, first + 2 * tokens_, DType::i32, rows);
    if (ranges_ > 0) {
        const std::int64_t parts = shares_documents() ? options_.shared->processes() : 1;
        batch.documents.row_ranges =
            view(device_, ranges_at + 4 * done, DType::i32, {parts * rows[0], 1, rows[1] / parts, 4});
    } else {
        batch.documents.offsets =
            view(device_, offsets_at(i), DType::i32, {packing.offsets_of(shape.micro_batch)});
    }
    return batch;
}

void StepInput::prepare(std::int64_t step) {
    if (prepared_ && prepared_->step == step) return;
    check(!prepared_, "step input: step ", prepared_ ? prepared_->step : 0, " is prepared and was not taken");
    try {
        draw(step);
    } catch (...) {
        loader_.restore(state_);  // undoes the reads before the error
        throw;
    }
    prepared_ = {step, loader_.state()};
}

void StepInput::draw(std::int64_t step) {
    std::int32_t* const words = host_[next_].data<std::int32_t>();
    const std::array<std::int32_t, 2> seed = DropoutKey::seed_words(options_.seed, step);
    std::memcpy(words + seed_at, seed.data(), sizeof seed);
    std::int64_t target_count = 0;
    // Windows without any target teach nothing, and a mean loss over no targets is NaN.
    for (const std::int64_t epoch = loader_.epoch(); target_count == 0;) {
        check(loader_.epoch() <= epoch + 1,
              "data: the windows of a whole epoch have no target to train on: all are ignored");
        target_count = draw_windows(options_.shapes.at(step));
    }
    put_target_count(static_cast<double>(target_count));
}

/// Reads the next windows for every micro-step. Returns the target count in all processes.
std::int64_t StepInput::draw_windows(const StepShape& shape) {
    std::int32_t* const words = host_[next_].data<std::int32_t>();
    const std::int64_t micro_step_tokens = shape.micro_batch * loader_.context();
    const auto count = static_cast<std::size_t>(micro_step_tokens);
    const Packing& packing = loader_.packing();
    const auto offsets = static_cast<std::size_t>(packing.offsets_of(shape.micro_batch));
    std::int64_t target_count = 0;
    for (std::int64_t i = 0; i < shape.micro_steps; ++i) {
        std::int32_t* const tokens = words + tokens_at() + i * micro_step_tokens;
        DocumentSpans documents;
        if (packing) documents = {{tokens + 2 * tokens_, count}, {words + offsets_at(i), offsets}};
        if (packing.has_ranges())
            documents.ranges = {words + ranges_at + 4 * i * micro_step_tokens, 4 * count};
        target_count += loader_.next({tokens, count}, {tokens + tokens_, count}, documents);
        if (shares_documents())
            options_.shared->write_row_ranges(documents.offsets, loader_.context(),
                                              {words + ranges_at + 4 * i * micro_step_tokens, 4 * count});
    }
    return target_count;
}

void StepInput::put_target_count(double count) {
    std::memcpy(host_[next_].data<std::int32_t>() + target_count_at, &count, sizeof count);
}

void StepInput::prepare_refusal(std::int64_t step) {
    std::int32_t* const words = host_[next_].data<std::int32_t>();
    std::fill_n(words, host_[next_].elements(), 0);
    put_target_count(
        std::numeric_limits<double>::min());  // gradients that are divided by this number overflow float32
    prepared_ = {step, state_};
}

void StepInput::upload(const Context& ctx, double rate, double vote) {
    check(prepared_.has_value(), "step input: nothing is prepared");
    std::int32_t* const words = host_[next_].data<std::int32_t>();
    std::memcpy(words + rate_at, &rate, sizeof rate);
    std::memcpy(words + vote_at, &vote, sizeof vote);
    if (ctx.device().is_cuda())
        cuda::copy_bytes(device_.raw_data(), host_[next_].raw_data(), device_.bytes(), ctx.device(),
                         ctx.stream());
    state_ = std::move(prepared_->state_after);
    prepared_.reset();
    next_ = 1 - next_;
}

void StepInput::restore(const JsonValue& state) {
    loader_.restore(state);
    state_ = loader_.state();
    prepared_.reset();
}

}  // namespace gradtile
