#include <gradtile/train/trainer.h>

#include <algorithm>
#include <cmath>

#include <gradtile/core/text/json_reader.h>
#include <gradtile/train/common_state.h>
#include <gradtile/train/config/optional_json.h>
#include <gradtile/train/run_clock.h>
#include <gradtile/train/run_recorder.h>
#include <gradtile/train/step_runner.h>

namespace gradtile {
namespace {

bool is_due(std::int64_t step, std::int64_t every) {
    return every > 0 && step % every == 0;
}

}  // namespace

const LanguageModel& Trainer::model() const {
    return runner_->replica().model;
}
const RunDirectory* Trainer::directory() const {
    return recorder_->directory();
}
const Optimizer& Trainer::optimizer() const {
    return *runner_->replica().optimizer;
}
bool Trainer::replays_graph() const {
    return runner_->replays_graph();
}

/// Returns an empty result when the step was dropped; the state is then as before the step.
std::optional<StepReport> Trainer::train_step() {
    const std::int64_t step = step_ + 1;
    if (runner_->replica().shard_copies) before_step_ = shared_position();
    std::optional<StepReport> report;
    try {
        report = runner_->run_step(step, /*prepares_next=*/step < end_, clock_ ? clock_->used() : 0.0);
    } catch (...) {  // another process is lost, or a callback threw
        runner_->drop_input();
        throw;
    }
    if (!report) return report;
    step_ = step;
    if (report->not_finite.empty()) {
        bad_steps_in_a_row_ = 0;
    } else {
        handle_bad_step(*report);
    }
    return report;
}

/// Reports a step whose update the optimizer has refused. Weights and state are unchanged.
void Trainer::handle_bad_step(const StepReport& report) {
    ++bad_steps_;
    ++bad_steps_in_a_row_;
    const bool is_gradient = report.not_finite != "loss";
    on_message_(concat("step ", report.step, ": ", is_gradient ? "the gradient of " : "the ",
                       report.not_finite, " is not finite (loss ", report.loss, "); update not applied (",
                       bad_steps_in_a_row_, " in a row, ", bad_steps_, " in all)"));
}

void Trainer::stop_after_bad_steps(const StepReport& report) {
    recorder_->wait_for_saves();
    recorder_->report_saves();
    recorder_->announce_save();
    group_->leave();  // every process calls this function
    const std::filesystem::path& saved = recorder_->saved_path();
    throw Error(
        concat("step ", report.step, ": ", report.not_finite, " was not finite ", bad_steps_in_a_row_,
               " steps in a row; stopped, ",
               saved.empty() ? "nothing was saved" : "the last good checkpoint is " + saved.string()));
}

/// Throws the failed process's data error in every process. run() saves the last complete step first.
void Trainer::report_data_failure() {
    const std::vector<std::string> failures = group_->all_gather(runner_->failure());
    const auto failed = std::ranges::find_if_not(failures, &std::string::empty);
    const std::filesystem::path& saved = recorder_->saved_path();
    const std::string line = group_->broadcast(concat(
        pending_evaluation_ ? "evaluation after step " : "step ", pending_evaluation_ ? step_ : step_ + 1,
        ": ", group_->is_alone() ? "" : concat("rank ", failed - failures.begin(), ": "), *failed,
        "; stopped, ",
        recorder_->is_saved(step_) ? concat("step ", step_, " is saved: ", saved.string())
        : saved.empty()            ? "nothing was saved"
                                   : "the last good checkpoint is " + saved.string()));
    group_->leave();  // every process calls this function
    throw Error(line);
}

/// Sets `best` if this is the lowest validation loss so far. Returns false when the evaluation was abandoned.
bool Trainer::evaluate_into(StepReport& report, bool& best) {
    // Only rank 0 knows whether the checkpoint with the lowest loss so far was saved.
    recorder_->set_best_val_loss(optional_of<double>(
        parse_json(group_->broadcast(
                       JsonValue::object({{"best_val_loss", json_of(recorder_->best_val_loss())}}).dump()),
                   "the losses of rank 0"),
        "best_val_loss"));
    const double began = recorder_->wall_s();
    const std::optional<double> loss = runner_->evaluate(step_);
    if (!loss) return false;
    evaluation_seconds_ = recorder_->wall_s() - began;
    report.val_loss = val_loss_ = *loss;
    best = std::isfinite(*loss) && (!recorder_->best_val_loss() || *loss < *recorder_->best_val_loss());
    if (best) recorder_->set_best_val_loss(*loss);
    return true;
}

/// Counts a step against the time budget, which may make it the run's last one.
void Trainer::count_time(StepReport& report) {
    constexpr double bytes_per_second = 4e8;  // of a save, until one was measured
    RunClock::Times times{.run_seconds = recorder_->wall_s(),
                          .step_seconds = report.ms / 1e3,
                          .evaluation_seconds = evaluation_seconds_,
                          .save_seconds = recorder_->save_seconds()};
    // A forward pass has a third of a step's operations.
    if (runner_->evaluates())
        times.steps_in_evaluation =
            static_cast<double>(validation_tokens_) /
            (3.0 * static_cast<double>(runner_->tokens_at(step_) - runner_->tokens_at(step_ - 1)));
    if (times.save_seconds == 0.0) times.save_seconds = static_cast<double>(save_bytes_) / bytes_per_second;
    if (clock_->count(step_, times)) end_ = step_;
    report.budget_used = clock_->used();
}

/// Evaluates, records and saves after a step, where each is due.
void Trainer::finish_step(StepReport report, std::int64_t stop_after) {
    unfinished_ = report;
    if (clock_ && !report.budget_used) count_time(report);
    unfinished_ = report;
    const bool last = step_ == end_;
    bool best = false;
    if (runner_->evaluates() && (pending_evaluation_ || is_due(step_, config_.eval_every) || last) &&
        !evaluate_into(report, best)) {
        pending_evaluation_ = std::move(report);
        return;
    }
    conclude_step(std::move(report), best, stop_after);
}

/// Records and saves a step that is evaluated.
void Trainer::conclude_step(StepReport report, bool best, std::int64_t stop_after) {
    pending_evaluation_.reset();
    unfinished_.reset();
    recorded_step_ = step_;
    finished_ = report;
    const bool last = step_ == end_;
    const auto due = [&](std::int64_t every) { return is_due(step_, every); };
    report.tokens = runner_->tokens_at(step_);
    loss_ = report.loss;
    recorder_->record(report);
    report_refused_algorithms();
    if (bad_steps_in_a_row_ >= config_.max_bad_steps) stop_after_bad_steps(report);
    if (due(config_.sample_every) || (config_.sample_every > 0 && last)) write_sample();
    if (last || best || step_ == stop_after || due(config_.save_every)) save(best);
    recorder_->report_saves();
}

RunSummary::Reason Trainer::train_until(std::int64_t stop_after) {
    using Reason = RunSummary::Reason;
    runner_->start();
    keep_shard_copies();
    record_finished(stop_after);
    if (unfinished_ || pending_evaluation_)
        finish_step(unfinished_ ? *unfinished_ : *pending_evaluation_, stop_after);
    for (;;) {
        if (runner_->is_stopping() && (step_ < end_ || pending_evaluation_)) return Reason::requested;
        if (step_ >= end_) return Reason::finished;
        if (stop_after > 0 && step_ >= stop_after) return Reason::stop_after;
        if (group_->is_alone() && runner_->wants_to_stop()) return Reason::requested;
        std::optional<StepReport> report = train_step();
        if (!report) continue;
        unfinished_ = report;
        keep_shard_copies();
        finish_step(std::move(*report), stop_after);
    }
}

/// Trains, and returns when the state at the end is safe on disk and every process has the model's values,
/// unless ZeRO-3 divides them.
RunSummary::Reason Trainer::train_and_save(std::int64_t stop_after) {
    const RunSummary::Reason reason = train_until(stop_after);
    // The state of a stopped run is that of the last complete step.
    if (reason == RunSummary::Reason::requested && !recorder_->was_submitted(step_)) save(false);
    recorder_->wait_for_saves();
    recorder_->report_saves();
    recorder_->announce_save();
    if (model().parameters.values().defined()) runner_->with_values([] {});
    return reason;
}

RunSummary Trainer::run(std::int64_t stop_after) {
    check(stop_after >= 0, "stop-after: ", stop_after, "; expected a step, or 0");
    check(!recorder_->is_in_forked_child(),
          "run: this process was forked from the one that made the Trainer, ", "which alone writes to '",
          config_.out, "'; expected a Trainer made after the fork");
    check(config_.sample_every == 0 || !recorder_->writes_metrics() || callbacks_.on_sample,
          "sample-every: ", config_.sample_every,
          "; expected 0, because on_sample() has added nothing that generates text");
    begun_ = true;
    if (RunDirectory* const directory = recorder_->directory()) directory->keep();
    RunSummary summary;
    recorder_->start_clock();
    first_step_ = step_;
    summary.reason = survives_losses() ? train_in_spite_of_losses(stop_after) : train_and_save(stop_after);
    if (runner_->has_failed()) report_data_failure();
    summary.dropped_micro_steps = runner_->take_dropped_micro_steps();
    summary.micro_steps_of_dropped =
        summary.dropped_micro_steps > 0 ? runner_->shapes().at(step_ + 1).micro_steps : 0;
    summary.evaluation_pending = pending_evaluation_.has_value();
    summary.step = step_;
    summary.saved = !group_->is_root() || (recorder_->is_saved(step_) && !recorder_->lacks_line_of_save());
    summary.checkpoint = recorder_->saved_path();
    summary.val_loss = val_loss_;
    summary.best_val_loss = recorder_->best_val_loss();
    summary.bad_steps = bad_steps_;
    summary.loss = loss_;
    summary.tokens = runner_->tokens_at(step_);
    if (step_ > first_step_)
        summary.tokens_per_s =
            static_cast<double>(runner_->tokens_at(step_) - runner_->tokens_at(first_step_)) /
            std::max(recorder_->seconds_since_start(), 1e-9);
    summary.wall_s = recorder_->stop_clock();
    return summary;
}

void Trainer::write_sample() {
    runner_->with_values([&] { recorder_->write_sample(step_, config_.sample_prompt, model()); });
}

void Trainer::save(bool best) {
    if (config_.out.empty()) return;
    const Replica& replica = runner_->replica();
    if (recorder_->saves_parts())
        return recorder_->save_part(part_of_snapshot(), snapshot_without_tensors(), replica.saved_tensors(),
                                    best);
    const bool sharded = replica.parallel.is_sharded();
    if (sharded) recorder_->wait_for_saves();  // snapshot() overwrites the memory that the writer reads
    recorder_->save(snapshot(), best, /*is_in_host_memory=*/sharded);
}

}  // namespace gradtile
