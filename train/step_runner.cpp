#include <gradtile/train/step_runner.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include <gradtile/core/cuda_runtime.h>
#include <gradtile/core/internal/offload_stream.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/memory_request.h>
#include <gradtile/train/optimizers/global_norm.h>

namespace gradtile {
namespace {

// All processes' votes are added up. vote_of_failure exceeds any number of processes, so a sum that reaches
// it means that a process failed.
constexpr double vote_to_stop = 1.0, vote_of_failure = 1 << 20;

DataLoader training_data(Dataset& dataset, const TrainConfig& config, const SharedSequences& shared,
                         const Packing& packing) {
    const DataLoaderOptions options{.context = config.model.context,
                                    .seed = Seed{config.seed},
                                    .rank = shared.group(),
                                    .ranks = shared.groups(),
                                    .ignore_token = config.ignore_token,
                                    .packing = packing};
    if (dataset.stream) return DataLoader(dataset.stream, options);
    return DataLoader(std::move(dataset.train), options);
}

std::unique_ptr<EvaluationData> validation_data(const Context& ctx, const TokenSequence& tokens,
                                                const TrainConfig& config, std::int64_t ranks,
                                                const SharedSequences& shared, const Packing& packing) {
    if (tokens.size() == 0) return nullptr;
    SequentialLoader loader(tokens, config.model.context,
                            {.ignore_token = config.ignore_token, .packing = packing});
    const std::int64_t windows = std::min(config.micro_batch_size(ranks), loader.windows());
    Batch batch =
        empty_batch(host_of(ctx), windows, shared.row_length(loader.longest_window()), loader.packing());
    return std::make_unique<EvaluationData>(EvaluationData{std::move(loader), std::move(batch)});
}

}  // namespace

StepRunner::StepRunner(const Context& ctx, const TrainConfig& config, Dataset dataset,
                       std::unique_ptr<Communicator> communicator, ProcessGroup& group,
                       const RunCallbacks& callbacks, MessageHandler on_message)
    : config_(config),
      callbacks_(callbacks),
      on_message_(std::move(on_message)),
      group_(group),
      communicator_(std::move(communicator)),
      shared_(ctx, *communicator_, config.context_parallel, config.model.context),
      replica_(ctx, config, std::move(dataset.tokenizer), *communicator_),
      schedule_(Schedule::of(config)),
      shapes_(StepShapes::of(config, group.size())),
      input_(ctx, training_data(dataset, config, shared_, packing()),
             {.shapes = shapes_, .seed = config.seed, .shared = &shared_}),
      validation_(validation_data(ctx, dataset.validation, config, group.size(), shared_, packing())),
      result_(zeros(ctx, {3}, DType::f64)),
      host_result_(
          ctx.device().is_cpu()
              ? result_
              : zeros(host_of(ctx).with_allocator(transfer_allocator(ctx.device())), {3}, DType::f64)) {
    plan_arena();
}

void StepRunner::plan_arena() {
    const Context& ctx = replica_.model.ctx;
    const auto counting = Arena::for_planning(ctx.device());
    const Context dry = ctx.plan(counting);
    if (has_part(config_.offload, Offload::residuals)) offload_ = std::make_shared<OffloadStream>(dry);
    for (const StepShape& shape : shapes_.all()) compute_step(dry, shape);
    if (validation_) {
        const Batch batch =
            shared_.part_of(dry, upload(dry, shared_.with_row_ranges(dry, validation_->batch)));
        replica_.model.transformer.evaluate(dry, batch.tokens, batch.targets, batch.documents,
                                            replica_.parallel.overlap_gather_with_forward(dry));
    }
    activation_bytes_ = counting->peak_bytes();
    if (config_.sample_every > 0)
        activation_bytes_ = std::max(activation_bytes_, replica_.parallel.bytes_to_gather_values());
    arena_ctx_ = std::make_unique<Context>(
        ctx.with_allocator(std::make_shared<Arena>(ctx.device(), activation_bytes_)));
    residual_bytes_ = offload_ ? offload_->host().peak_bytes() : 0;
    if (offload_) offload_ = std::make_shared<OffloadStream>(ctx, residual_bytes_);
}

/// Enqueues all device work of a step, from the current input to result_; under a planning context, allocates
/// all its memory. Reads no values that only the host has, so the step can be captured and replayed. A step
/// that is abandoned between micro-steps has changed neither the weights nor the optimizer's state.
StepRunner::Outcome StepRunner::compute_step(const Context& ctx, const StepShape& shape) {
    DataParallel& parallel = replica_.parallel;
    LanguageModel& model = replica_.model;
    const std::int64_t micro_steps = shape.micro_steps;
    const Tensor loss = result_.slice(0, 0, 1), votes = result_.slice(0, 1, 1),
                 grad_norm = result_.slice(0, 2, 1);
    fill(ctx, loss, 0.0);
    const ForwardHooks gather = parallel.overlap_gather_with_forward(ctx);
    for (std::int64_t micro_step = 0; micro_step < micro_steps; ++micro_step) {
        const Batch batch = shared_.part_of(ctx, input_.micro_batch(shape, micro_step));
        const std::int64_t first_sample =
            (micro_step * shared_.groups() + shared_.group()) * batch.tokens.size(0);
        const BackwardHooks sums = parallel.start_micro_step(
            ctx, micro_step, micro_steps, DropoutKey::from_seed_tensor(input_.seed_tensor()));
        Transformer::Saved saved;
        const Tensor micro_batch_loss = model.transformer.forward(
            ctx, batch.tokens, batch.targets, saved,
            {.target_count = input_.target_count(),
             .dropout = DropoutKey::from_seed_tensor(input_.seed_tensor(), first_sample),
             .hooks = gather,
             .documents = batch.documents,
             .max_window = shape.max_window,
             .offload = offload_.get()});
        model.transformer.backward(ctx, std::move(saved), sums);
        axpy(ctx, loss, 1.0, micro_batch_loss);
        if (micro_step + 1 == micro_steps || ctx.is_planning() || ctx.device().is_cuda()) continue;
        report_part(
            {.step = step_, .kind = StepPart::Kind::micro_steps, .done = micro_step + 1, .all = micro_steps});
        if (vote_on_stopping(ctx) == Outcome::abandoned) {
            dropped_micro_steps_ = micro_step + 1;
            return Outcome::abandoned;
        }
    }
    model.parameters.zero_unwritten_gradients(ctx);
    if (communicator_->size() > 1) copy(ctx, votes, input_.vote());
    parallel.finish_gradients(ctx);
    parallel.sum(ctx, result_.slice(0, 0, 2));
    ClipOptions clipping{
        .max_norm = config_.clip, .loss = loss, .interruption = communicator_->interruption()};
    if (parallel.is_sharded())
        clipping.add_other_parts = [&](const Tensor& sum_of_squares) { parallel.sum(ctx, sum_of_squares); };
    const Clip clip = clip_global_norm(ctx, parallel.gradients(), clipping);
    replica_.optimizer->step(ctx, input_.rate(), {.gradient_scale = clip.scale});
    copy(ctx, grad_norm, clip.norm);
    if (ctx.device().is_cuda() && !ctx.is_planning())
        cuda::copy_bytes(host_result_.raw_data(), result_.raw_data(), result_.bytes(), ctx.device(),
                         ctx.stream());
    return Outcome::completed;
}

void StepRunner::try_to_capture(const Context& ctx, const StepShape& shape) {
    capture_next_ = false;
    try {
        check_step_graph(config_, shape, communicator_->size());
        graph_.capture(ctx, [&] { compute_step(ctx, shape); });
    } catch (const RankLost&) {
        throw;
    } catch (const Error& error) {
        replica_.parallel.forget_frozen();
        on_message_(concat("the step is not replayed as a CUDA graph: ", error.what()));
    }
}

StepRunner::Outcome StepRunner::enqueue_step(const Context& ctx, const StepShape& shape) {
    if (shape != enqueued_shape_) {
        graph_ = {};
        steps_enqueued_ = capture_next_ = false;
        enqueued_shape_ = shape;
    }
    if (capture_next_ || graph_.captured()) replica_.parallel.hold_frozen(ctx, held_between_steps_);
    if (capture_next_) try_to_capture(ctx, shape);
    if (graph_.captured()) {
        graph_.replay(ctx);
        return Outcome::completed;
    }
    const Outcome outcome = compute_step(ctx, shape);
    held_between_steps_ = replica_.parallel.held_frozen();
    capture_next_ = !std::exchange(steps_enqueued_, true) && ctx.device().is_cuda() && config_.cuda_graph;
    return outcome;
}

std::optional<StepReport> StepRunner::run_step(std::int64_t step, bool prepares_next, double used) {
    const auto start = std::chrono::steady_clock::now();
    const Context& ctx = *arena_ctx_;
    step_ = step;
    data_before_ = input_.state();
    group_.report_step(step);
    prepare_input(step);
    if (stopping_) return std::nullopt;
    const double rate = schedule_(step, used);
    input_.upload(ctx, rate, group_.is_alone() ? 0.0 : own_vote());
    const Outcome outcome = enqueue_step(ctx, shapes_.at(step));
    if (ctx.device().is_cuda()) {
        if (prepares_next) prepare_ahead(step + 1);  // while the device computes
        const auto waiting = group_.waiting("the sums of a step");
        cuda::synchronize(ctx.device(), ctx.stream());
    }
    const double* const result = host_result_.data<double>();
    // A finite norm means that all sums of the step were complete: the step counts, even after a loss.
    if (!std::isfinite(result[2])) communicator_->synchronize(ctx);
    if (outcome == Outcome::completed) count_votes(result[1]);
    if (outcome == Outcome::abandoned || failed_) {
        drop_input();
        return std::nullopt;
    }
    const double ms =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    StepReport report{.step = step,
                      .loss = result[0],
                      .lr = rate,
                      .grad_norm = result[2],
                      .tokens_per_s = static_cast<double>(tokens_at(step) - tokens_at(step - 1)) / ms * 1e3,
                      .ms = ms};
    if (!std::isfinite(report.loss) || !std::isfinite(report.grad_norm)) {
        report.not_finite = replica_.first_non_finite_gradient(ctx, group_);
        if (report.not_finite.empty()) report.not_finite = "loss";
    }
    return report;
}

void StepRunner::draw_input(std::int64_t step) {
    if (callbacks_.on_prepare) callbacks_.on_prepare(step);
    input_.prepare(step);
}

/// If the data cannot be read, a single process abandons the step. One of several processes takes part in the
/// step, with an input that makes all processes refuse the update; in this way the others learn of the
/// failure.
void StepRunner::prepare_input(std::int64_t step) {
    try {
        draw_input(step);
    } catch (const std::exception& error) {
        failure_ = error.what();
        if (group_.is_alone()) {
            count_votes(own_vote());
        } else {
            input_.prepare_refusal(step);
        }
    }
}

/// Prepares the next step's input. Ignores a read error, which the next step meets again and reports.
void StepRunner::prepare_ahead(std::int64_t step) {
    try {
        draw_input(step);
    } catch (const std::exception&) {
    }
}

std::optional<double> StepRunner::evaluate(std::int64_t step) {
    const ForwardHooks gather = replica_.parallel.overlap_gather_with_forward(*arena_ctx_);
    const std::int64_t windows = validation_->loader.windows();
    bool is_reading = true;
    const auto go_on = [&](std::int64_t done) {
        is_reading = false;
        report_part({.step = step, .kind = StepPart::Kind::evaluation_windows, .done = done, .all = windows});
        return is_reading = vote_on_stopping(*arena_ctx_) == Outcome::completed;
    };
    try {
        return mean_loss(*arena_ctx_, replica_.model.transformer, *validation_, *communicator_, shared_,
                         go_on, gather);
    } catch (const RankLost&) {
        throw;
    } catch (const std::exception& error) {
        if (!is_reading) throw;  // a callback's, unchanged as from a step
        failure_ = error.what();
        vote_on_stopping(*arena_ctx_);  // the other processes wait for this process's vote after the batch
        return std::nullopt;
    }
}

double StepRunner::own_vote() const {
    if (!failure_.empty()) return vote_of_failure;
    return wants_to_stop() ? vote_to_stop : 0.0;
}

void StepRunner::count_votes(double sum) {
    stopping_ = stopping_ || sum > 0.0;
    failed_ = failed_ || sum >= vote_of_failure;
}

/// Called by all processes between two parts of a step or an evaluation.
StepRunner::Outcome StepRunner::vote_on_stopping(const Context& ctx) {
    double votes = own_vote();
    communicator_->sum(ctx, {&votes, 1});
    count_votes(votes);
    return stopping_ ? Outcome::abandoned : Outcome::completed;
}

void StepRunner::report_part(const StepPart& part) const {
    for (const auto& callback : callbacks_.on_part) callback(part);
}

}  // namespace gradtile
