#include <gradtile/train/trainer.h>

#include <cmath>

#include <gradtile/train/common_state.h>
#include <gradtile/train/config/optional_json.h>
#include <gradtile/train/run/resume_point.h>
#include <gradtile/train/run/shared_start.h>
#include <gradtile/train/run_recorder.h>
#include <gradtile/train/step_runner.h>

/// What a Trainer does when another process is lost: new processes take the place of the lost ones, and all
/// take the newest state that they have in common, or return to the newest checkpoint.
namespace gradtile {
namespace {

// Keys in the meta of a state that processes share in memory.
constexpr const char* unfinished_key = "unfinished_step";
constexpr const char* finished_key = "finished_step";

}  // namespace

bool Trainer::survives_losses() const {
    return group_->can_regroup() && runner_->communicator().can_reconnect();
}

HeldState Trainer::held_state() const {
    if (!runner_) return {};
    const Replica& replica = runner_->replica();
    HeldState held{.has_settings = true,
                   .is_sharded = replica.parallel.is_sharded(),
                   .step = has_state_ ? step_ : -1,
                   .is_evaluated = !unfinished_};
    if (replica.shard_copies) replica.shard_copies->describe(held);
    return held;
}

/// Collective.
CommonState Trainer::find_common_state() {
    held_.clear();
    for (const std::string& text : group_->all_gather(to_text(held_state())))
        held_.push_back(held_state_from(text));
    return newest_common_state(held_, group_->rank());
}

/// Collective: makes this process's state the common one. If a process is lost meanwhile, this process has
/// parts of two states, unless its own was as new and it is no GPU's. `directory`: the run's, in rank 0.
/// Returns up to which step the metrics are right: a step that was lost or is not complete is recorded again.
Trainer::Recorded Trainer::take_state(const CommonState& common, const Start& start,
                                      const RunDirectory* directory) {
    Replica& replica = runner_->replica();
    const bool is_sharded = replica.parallel.is_sharded();
    // An exchange between GPUs that ends early may write anything, except in the process that sends.
    const bool keeps_own = model().ctx.device().is_cpu() || group_->rank() == common.rank;
    has_state_ = common.is_own && keeps_own;
    replica.clear_gradients();
    if (is_sharded) {
        recorder_->abandon_parts();
        recorder_->wait_for_saves();
        recorder_->report_saves();
    }
    if (common.step < 0) {
        if (replica.shard_copies) replica.shard_copies->clear();
        restore_shared(start);
        return_to_checkpoint(directory);
    } else if (is_sharded) {
        if (replica.shard_copies) replica.shard_copies->restore(model().ctx, common.step, held_);
        restore_shared(start);
        recorder_->set_best_val_loss(optional_of<double>(start.checkpoint->meta, "best_val_loss"));
        recorder_->forget_saves();
        recorded_step_ = -1;  // all processes record the step again, because samples and saves need all
    } else {
        replica.share(common.rank);
        restore_shared(start);
    }
    runner_->communicator().synchronize(model().ctx);
    has_state_ = true;
    if (common.step < 0) return {step_, pending_evaluation_ ? LastStep::unwritten : LastStep::written};
    return {finished_ || unfinished_ ? step_ - 1 : step_, LastStep::unsaved};
}

/// Copies the shards of the newest step, if the run keeps copies.
void Trainer::keep_shard_copies() {
    if (const auto& copies = runner_->replica().shard_copies) copies->keep(model().ctx, step_);
}

/// Collective: makes the state that of the newest sound checkpoint, or of the run's start if there is none.
void Trainer::return_to_checkpoint(const RunDirectory* directory) {
    std::filesystem::path checkpoint;
    const Start start = shared_start(*group_, [&] {
        ResumePoint point = directory ? find_resume_point(*directory, /*restart=*/false) : ResumePoint();
        for (const std::string& line : point.messages) on_message_(line);
        if (!point.checkpoint) return Start{};
        on_message_(concat("the run returns to step ", point.checkpoint->step, ", ", point.path.string()));
        checkpoint = point.path;
        return Start{point.path.string(), std::move(point.checkpoint)};
    });
    const std::int64_t end = end_;
    if (start.checkpoint) {
        restore(*start.checkpoint, start.source);
        recorder_->resume_from(step_, checkpoint);
    } else {
        return_to_start();
    }
    if (!clock_) end_ = end;  // --resume may have changed it
    unfinished_.reset();
    finished_.reset();
    recorded_step_ = -1;
}

/// Collective.
void Trainer::return_to_start() {
    take_first_weights(read_first_weights());
    runner_->replica().clear_optimizer();
    restore_position(first_position_, "the start of the run");
    restore_record(first_position_);
    recorder_->forget_saves();
}

/// Returns the position with the reports of its step.
Checkpoint Trainer::shared_position() const {
    Checkpoint state = position();
    if (unfinished_) state.meta.set(unfinished_key, to_json(*unfinished_));
    if (finished_) state.meta.set(finished_key, to_json(*finished_));
    return state;
}

/// Collective: returns the common state without tensors.
Start Trainer::share_position(const CommonState& common) const {
    return shared_start(
        *group_,
        [&] {
            const bool is_before =
                common.step >= 0 && held_[static_cast<std::size_t>(common.rank)].step != common.step;
            Checkpoint state = is_before ? before_step_.value() : shared_position();
            describe(state);
            return Start{concat("the state of rank ", common.rank), std::move(state)};
        },
        common.rank);
}

void Trainer::restore_shared(const Start& start) {
    restore_position(*start.checkpoint, start.source);
    const auto report = [&](const char* key) {
        const JsonValue* const found = start.checkpoint->meta.find(key);
        return found ? std::optional(step_report_from(*found)) : std::nullopt;
    };
    unfinished_ = report(unfinished_key);
    finished_ = report(finished_key);
    if (finished_ && finished_->step != step_) finished_.reset();
    if (finished_) loss_ = finished_->loss;
}

RunSummary::Reason Trainer::train_in_spite_of_losses(std::int64_t stop_after) {
    const auto survival = group_->survive_losses();
    std::optional<RankLost> loss;
    for (;;) {
        try {
            if (loss) regroup(*loss);
            group_->broadcast("survive");  // nobody trains while a loss would still end another process
            const RunSummary::Reason reason = train_and_save(stop_after);
            group_->broadcast("saved");  // until rank 0 has saved, the others keep the state
            return reason;
        } catch (const RankLost& lost) {
            loss = lost;
        }
    }
}

/// Continues with new processes in the place of the lost ones, which do the same in their constructor.
void Trainer::regroup(const RankLost& loss) {
    runner_->disconnect();
    group_->regroup(loss);
    const CommonState common = find_common_state();
    const Start start = share_position(common);
    runner_->communicator().reconnect();
    group_->require_equal("data", data_facts_);
    const Recorded recorded = take_state(common, start, directory());
    if (!runner_->replica().parallel.is_sharded()) return;
    if (recorder_->saves_parts()) {  // as the new processes do, in resume_in_directory()
        count_parts(part_of_snapshot());
        require_shared_directory(*group_, RunDirectory::checkpoints_of(config_.out));
    }
    recorder_->return_to(recorded.step, recorded.last);
    if (common.step >= 0) return;
    recorder_->restart_clock();
    first_step_ = step_;
}

/// Records the newest step if another process has finished it and this one has not.
void Trainer::record_finished(std::int64_t stop_after) {
    if (!finished_ || unfinished_ || recorded_step_ >= step_) return;
    const std::optional<double> loss = finished_->val_loss, least = recorder_->best_val_loss();
    const bool best = loss && std::isfinite(*loss) && (!least || *loss <= *least);
    if (loss) val_loss_ = loss;
    if (best) recorder_->set_best_val_loss(loss);
    conclude_step(*finished_, best, stop_after);
}

}  // namespace gradtile
