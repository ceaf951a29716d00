#include <gradtile/train/trainer.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include <gradtile/core/cuda_runtime.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/core/text/json_reader.h>
#include <gradtile/core/text/json_value.h>
#include <gradtile/tools/evaluation/evaluate.h>
#include <gradtile/tools/generation/sampler.h>
#include <gradtile/tools/observers/loss_svg.h>
#include <gradtile/train/checkpoint/snapshot_writer.h>
#include <gradtile/train/config/optional_json.h>
#include <gradtile/train/run/metrics_file.h>
#include <gradtile/train/run/run_directory.h>
#include <gradtile/train/step_input.h>
#include <gradtile/train/validation_loss.h>

namespace gradtile {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// The votes of all processes are added up. A sum of at least vote_of_failure, which exceeds any number of
// processes, means that a process failed.
constexpr double vote_to_stop = 1.0, vote_of_failure = 1 << 20;

}  // namespace

// ---- Steps ----

/// Enqueues all device work of a step, from the current input to result_; under a planning context, allocates
/// all its memory. Reads no values that only the host has, so the step can be captured and replayed. A step
/// that is abandoned between micro-steps has changed neither the weights nor the optimizer's state.
Trainer::Outcome Trainer::compute_step(const Context& ctx) {
    DataParallel& parallel = replica_->parallel;
    const std::int64_t ranks = communicator_->size(), micro_steps = config_.accumulation_steps(ranks);
    const Tensor loss = result_.slice(0, 0, 1), votes = result_.slice(0, 1, 1),
                 grad_norm = result_.slice(0, 2, 1);
    fill(ctx, loss, 0.0);
    model().parameters.reset_gradients();
    const ForwardHooks gather = parallel.overlap_gather_with_forward(ctx);
    for (std::int64_t micro_step = 0; micro_step < micro_steps; ++micro_step) {
        const Batch& batch = input_->micro_batch(micro_step);
        const std::int64_t first_sample = (micro_step * ranks + communicator_->rank()) * batch.tokens.size(0);
        const bool last = micro_step + 1 == micro_steps;
        Transformer::Saved saved;
        const Tensor of_micro_batch = model().transformer.forward(
            ctx, batch.tokens, batch.targets, saved,
            {.target_count = input_->target_count(),
             .dropout = DropoutKey::of_seed_tensor(input_->seed_tensor(), first_sample),
             .hooks = gather,
             .documents = batch.documents});
        model().transformer.backward(ctx, saved,
                                     last ? parallel.overlap_sums_with_backward(ctx) : BackwardHooks());
        axpy(ctx, loss, 1.0, of_micro_batch);
        if (last || ctx.is_planning() || ctx.device().is_cuda()) continue;
        report_part(StepPart::Kind::micro_steps, micro_step + 1, micro_steps);
        if (vote_on_stopping(ctx) == Outcome::abandoned) {
            dropped_micro_steps_ = micro_step + 1;
            return Outcome::abandoned;
        }
    }
    model().parameters.zero_unwritten_gradients(ctx);
    if (ranks > 1) copy(ctx, votes, input_->vote());
    parallel.finish_gradients(ctx);
    parallel.sum(ctx, result_.slice(0, 0, 2));
    ClipOptions clipping{.max_norm = config_.clip, .loss = loss};
    if (parallel.is_sharded())
        clipping.add_other_parts = [&](const Tensor& sum_of_squares) { parallel.sum(ctx, sum_of_squares); };
    const Clip clip = clip_global_norm(ctx, parallel.gradients(), clipping);
    replica_->optimizer->step(ctx, input_->rate(), {.gradient_scale = clip.scale});
    copy(ctx, grad_norm, clip.norm);
    if (ctx.device().is_cuda() && !ctx.is_planning())
        cuda::copy_bytes(host_result_.raw_data(), result_.raw_data(), result_.bytes(), ctx.device(),
                         ctx.stream());
    return Outcome::completed;
}

void Trainer::try_to_capture(const Context& ctx) {
    capture_next_ = false;
    try {
        graph_.capture(ctx, [&] { compute_step(ctx); });
    } catch (const Error& error) {
        on_message_(concat("the step is not replayed as a CUDA graph: ", error.what()));
    }
}

Trainer::Outcome Trainer::enqueue_step(const Context& ctx) {
    if (capture_next_) try_to_capture(ctx);
    if (graph_.captured()) {
        graph_.replay(ctx);
        return Outcome::completed;
    }
    const Outcome outcome = compute_step(ctx);
    const bool first = !steps_enqueued_;
    steps_enqueued_ = true;
    capture_next_ = first && ctx.device().is_cuda() && config_.cuda_graph;
    return outcome;
}

/// Returns an empty result when the step was dropped; the state is then as before the step.
std::optional<StepReport> Trainer::train_step() {
    const Clock::time_point start = Clock::now();
    const Context& ctx = *arena_ctx_;
    const std::int64_t step = step_ + 1;
    group_->report_step(step);
    const JsonValue data_before = input_->state();
    prepare_input(step);
    if (stopping_) return std::nullopt;
    input_->upload(ctx, group_->is_alone() ? 0.0 : own_vote());
    const Outcome outcome = enqueue_step(ctx);
    if (ctx.device().is_cuda()) {
        if (step < end_) prepare_ahead(step + 1);  // while the device computes
        const auto waiting = group_->waiting("the sums of a step");
        cuda::synchronize(ctx.device(), ctx.stream());
    }
    const double* const result = host_result_.data<double>();
    if (outcome == Outcome::completed) count_votes(result[1]);
    if (outcome == Outcome::abandoned || failed_) {
        input_->restore(data_before);
        return std::nullopt;
    }
    step_ = step;
    StepReport report{.step = step,
                      .loss = result[0],
                      .lr = schedule_(step),
                      .grad_norm = result[2],
                      .ms = milliseconds_since(start)};
    report.tokens_per_s = static_cast<double>(config_.batch * config_.model.context) / report.ms * 1e3;
    if (std::isfinite(report.loss) && std::isfinite(report.grad_norm)) {
        bad_steps_in_a_row_ = 0;
    } else {
        handle_bad_step(report);
    }
    return report;
}

void Trainer::draw_input(std::int64_t step) {
    if (on_prepare_) on_prepare_(step);
    input_->prepare(step);
}

/// If the data cannot be read, a single process abandons the step. One of several processes takes part in the
/// step, with an input that makes all processes refuse the update; in this way the others learn of the
/// failure.
void Trainer::prepare_input(std::int64_t step) {
    try {
        draw_input(step);
    } catch (const std::exception& error) {
        failure_ = error.what();
        if (group_->is_alone()) {
            count_votes(own_vote());
        } else {
            input_->prepare_refusal(step);
        }
    }
}

/// Prepares the input of the next step. Ignores a read error: the current step is complete, and the next step
/// reads the data again and reports the error.
void Trainer::prepare_ahead(std::int64_t step) {
    try {
        draw_input(step);
    } catch (const std::exception&) {
    }
}

double Trainer::own_vote() const {
    if (!failure_.empty()) return vote_of_failure;
    return wants_to_stop() ? vote_to_stop : 0.0;
}

void Trainer::count_votes(double sum) {
    stopping_ = stopping_ || sum > 0.0;
    failed_ = failed_ || sum >= vote_of_failure;
}

/// Called by all processes between two parts of a step or an evaluation.
Trainer::Outcome Trainer::vote_on_stopping(const Context& ctx) {
    double votes = own_vote();
    if (!group_->is_alone()) {
        const Tensor sum = from_host(ctx.with_allocator(system_allocator(ctx.device())),
                                     std::span<const double>(&votes, 1), {1}, DType::f64);
        communicator_->all_reduce(ctx, sum);
        votes = item(ctx, sum);
    }
    count_votes(votes);
    return stopping_ ? Outcome::abandoned : Outcome::completed;
}

void Trainer::report_part(StepPart::Kind kind, std::int64_t done, std::int64_t all) const {
    const std::int64_t step = kind == StepPart::Kind::micro_steps ? step_ + 1 : step_;
    for (const auto& callback : on_part_) callback({.step = step, .kind = kind, .done = done, .all = all});
}

/// Reports a step whose update the optimizer has refused. Weights and state are unchanged.
void Trainer::handle_bad_step(StepReport& report) {
    ++bad_steps_;
    ++bad_steps_in_a_row_;
    const Context& ctx = *arena_ctx_;
    report.not_finite = replica_->first_non_finite_gradient(ctx, *group_);
    if (report.not_finite.empty()) report.not_finite = "loss";
    const bool of_gradient = report.not_finite != "loss";
    on_message_(concat("step ", report.step, ": ", of_gradient ? "the gradient of " : "the ",
                       report.not_finite, " is not finite (loss ", report.loss, "); update not applied (",
                       bad_steps_in_a_row_, " in a row, ", bad_steps_, " in all)"));
}

void Trainer::stop_after_bad_steps(const StepReport& report) {
    if (writer_) writer_->wait();
    handle_save_reports();
    announce_save();
    group_->leave();  // every process calls this function
    throw Error(concat(
        "step ", report.step, ": ", report.not_finite, " was not finite ", bad_steps_in_a_row_,
        " steps in a row; stopped, ",
        saved_path_.empty() ? "nothing was saved" : "the last good checkpoint is " + saved_path_.string()));
}

/// Throws the error of the process whose data failed, in every process. The last complete step is saved
/// before.
void Trainer::report_data_failure() {
    const std::vector<std::string> failures = group_->all_gather(failure_);
    const auto failed = std::ranges::find_if_not(failures, &std::string::empty);
    const bool is_saved = saved_step_ == step_ && !saved_path_.empty();
    const std::string line = group_->broadcast(concat(
        pending_evaluation_ ? "evaluation after step " : "step ", pending_evaluation_ ? step_ : step_ + 1,
        ": ", group_->is_alone() ? "" : concat("rank ", failed - failures.begin(), ": "), *failed,
        "; stopped, ",
        is_saved              ? concat("step ", step_, " is saved: ", saved_path_.string())
        : saved_path_.empty() ? "nothing was saved"
                              : "the last good checkpoint is " + saved_path_.string()));
    group_->leave();  // every process calls this function
    throw Error(line);
}

/// Sets `best` if this is the lowest validation loss so far.
Trainer::Outcome Trainer::evaluate_into(StepReport& report, bool& best) {
    // Only rank 0 knows whether the checkpoint with the lowest loss so far was saved.
    best_val_loss_ = optional_of<double>(
        parse_json(group_->broadcast(JsonValue::object({{"best_val_loss", json_of(best_val_loss_)}}).dump()),
                   "the losses of rank 0"),
        "best_val_loss");
    replica_->parallel.gather_values(*arena_ctx_);
    const std::int64_t windows = validation_->loader.windows();
    const auto go_on = [&](std::int64_t done) {
        report_part(StepPart::Kind::evaluation_windows, done, windows);
        return vote_on_stopping(*arena_ctx_) == Outcome::completed;
    };
    std::optional<double> loss;
    try {
        loss = mean_loss(*arena_ctx_, model().transformer, *validation_, *communicator_, go_on);
    } catch (const std::exception& error) {
        failure_ = error.what();
        vote_on_stopping(*arena_ctx_);  // the other processes wait for this process's vote after the batch
    }
    if (!loss) return Outcome::abandoned;
    report.val_loss = val_loss_ = *loss;
    best = std::isfinite(*loss) && (!best_val_loss_ || *loss < *best_val_loss_);
    if (best) best_val_loss_ = *loss;
    return Outcome::completed;
}

/// Evaluates, records and saves after a step, where each is due.
void Trainer::finish_step(StepReport report, std::int64_t stop_after) {
    const auto due = [&](std::int64_t every) { return every > 0 && step_ % every == 0; };
    const bool last = step_ == end_;
    bool best = false;
    if (validation_ && (pending_evaluation_ || due(config_.eval_every) || last) &&
        evaluate_into(report, best) == Outcome::abandoned) {
        pending_evaluation_ = std::move(report);
        return;
    }
    pending_evaluation_.reset();
    record(report);
    report_refused_algorithms();
    if (bad_steps_in_a_row_ >= config_.max_bad_steps) stop_after_bad_steps(report);
    if (due(config_.sample_every) || (config_.sample_every > 0 && last)) write_sample();
    if (last || best || step_ == stop_after || due(config_.save_every)) save(best);
    handle_save_reports();
}

RunSummary::Reason Trainer::train_until(std::int64_t stop_after) {
    using Reason = RunSummary::Reason;
    stopping_ = false;
    if (pending_evaluation_) finish_step(*pending_evaluation_, stop_after);
    for (;;) {
        if (stopping_ && (step_ < end_ || pending_evaluation_)) return Reason::requested;
        if (step_ >= end_) return Reason::finished;
        if (stop_after > 0 && step_ >= stop_after) return Reason::stop_after;
        if (group_->is_alone() && wants_to_stop()) return Reason::requested;
        if (std::optional<StepReport> report = train_step()) finish_step(std::move(*report), stop_after);
    }
}

RunSummary Trainer::run(std::int64_t stop_after) {
    check(stop_after >= 0, "stop-after: ", stop_after, "; expected a step, or 0");
    check(config_.sample_every == 0 || !metrics_ || on_sample_, "sample-every: ", config_.sample_every,
          "; expected 0, because on_sample() has added nothing that generates text");
    begun_ = true;
    if (directory_) directory_->keep();
    RunSummary summary;
    run_start_ = Clock::now();
    const std::int64_t first_step = step_;
    summary.reason = train_until(stop_after);
    if (summary.reason == RunSummary::Reason::requested) save_last_whole_step();
    if (writer_) writer_->wait();
    handle_save_reports();
    announce_save();
    if (failed_) report_data_failure();
    replica_->parallel.gather_values(*arena_ctx_);
    summary.dropped_micro_steps = std::exchange(dropped_micro_steps_, 0);
    summary.micro_steps_of_dropped =
        summary.dropped_micro_steps > 0 ? config_.accumulation_steps(group_->size()) : 0;
    summary.evaluation_pending = pending_evaluation_.has_value();
    summary.step = step_;
    summary.saved = !group_->is_root() || (saved_step_ == step_ && !saved_path_.empty());
    summary.checkpoint = saved_path_;
    summary.val_loss = val_loss_;
    summary.best_val_loss = best_val_loss_;
    summary.bad_steps = bad_steps_;
    summary.loss = loss_;
    summary.tokens = tokens_at(step_);
    const double seconds = seconds_of_run();
    if (step_ > first_step)
        summary.tokens_per_s = static_cast<double>(tokens_at(step_ - first_step)) / std::max(seconds, 1e-9);
    summary.wall_s = wall_s_before_ += seconds;
    return summary;
}

// ---- Output ----

double Trainer::seconds_of_run() const {
    return milliseconds_since(run_start_) / 1e3;
}

void Trainer::record(StepReport report) {
    report.tokens = tokens_at(report.step);
    report.wall_s = wall_s_before_ + seconds_of_run();
    loss_ = report.loss;
    if (metrics_) metrics_failures_([&] { metrics_->write(report); });
    for (const auto& callback : on_step_) callback(report);
}

void Trainer::write_sample() {
    replica_->parallel.gather_values(*arena_ctx_);
    if (!metrics_ || !on_sample_) return;
    sample_failures_([&] { metrics_->write_sample(step_, config_.sample_prompt, on_sample_(model())); });
}

void Trainer::save(bool best) {
    if (config_.out.empty()) return;
    const bool sharded = replica_->parallel.is_sharded();
    if (sharded && writer_) writer_->wait();  // snapshot() overwrites the memory that the writer reads
    Checkpoint checkpoint = snapshot();
    submitted_step_ = step_;
    if (!writer_) return;
    if (best) pending_best_losses_[step_] = *best_val_loss_;
    if (sharded) {
        writer_->save_in_place(std::move(checkpoint), best);
    } else {
        writer_->save(checkpoint, best);
    }
}

/// Called before a stopped run returns. The state is that of the last complete step.
void Trainer::save_last_whole_step() {
    if (submitted_step_ != step_) save(/*best=*/false);
}

void Trainer::handle_save_reports() {
    if (!writer_) return;
    for (const SaveReport& report : writer_->poll()) {
        if (!report.message.empty()) on_message_(report.message);
        if (report.best) {
            const double loss = pending_best_losses_.extract(report.step).mapped();
            if (report.is_best) {
                best_saved_val_loss_ = loss;
            } else if (best_val_loss_ == loss) {
                best_val_loss_ = best_saved_val_loss_;  // best.h5 is still the checkpoint with this loss
            }
        }
        if (report.saved) {
            saved_step_ = report.step;
            saved_path_ = report.path;
            announce_save();
        }
        try {
            if (report.saved) {
                metrics_->write_checkpoint_event(report.step);
            } else {
                metrics_->write_failed_checkpoint_event(report.step);
            }
        } catch (const Error& error) {
            on_message_(error.what());
        }
    }
}

/// Also called before an error that ends training is thrown.
void Trainer::announce_save() const {
    for (const auto& callback : on_save_) callback();
}

}  // namespace gradtile
