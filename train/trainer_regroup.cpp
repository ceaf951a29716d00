#include <gradtile/train/trainer.h>

#include <cmath>

#include <gradtile/train/run/shared_start.h>
#include <gradtile/train/run_recorder.h>
#include <gradtile/train/step_runner.h>

/// What a Trainer does when another process is lost: new processes take the place of the lost ones, and all
/// take the newest state that one of them has.
namespace gradtile {
namespace {

// Keys in the meta of a state that processes share in memory.
constexpr const char* unfinished_key = "unfinished_step";
constexpr const char* finished_key = "finished_step";

}  // namespace

bool Trainer::survives_losses() const {
    return group_->can_regroup() && runner_->communicator().can_reconnect() &&
           !runner_->replica().parallel.is_sharded();
}

/// Collective: finds the first rank with the newest state. A step counts once for its update, and once when
/// it is evaluated.
Trainer::Newest Trainer::find_newest() {
    const std::int64_t own = has_state_ ? 2 * step_ + (unfinished_ ? 0 : 1) : -1;
    std::int64_t greatest = -1;
    Newest newest;
    const std::vector<std::string> positions = group_->all_gather(std::to_string(own));
    for (std::size_t rank = 0; rank < positions.size(); ++rank)
        if (const std::int64_t found = std::stoll(positions[rank]); found > greatest) {
            greatest = found;
            newest.rank = static_cast<int>(rank);
        }
    check(greatest >= 0, "no process has the state of the run");
    newest.is_own = own == greatest;
    return newest;
}

/// Collective: makes this process's state that of process `source`. If a process is lost meanwhile, this
/// process has parts of two states, unless its own was as new.
void Trainer::take_state(const Newest& newest, const Start& start) {
    has_state_ = newest.is_own;
    runner_->replica().share(newest.rank);
    restore_shared(start);
    has_state_ = true;
}

/// Collective: returns the state of process `source`, without tensors.
Start Trainer::share_position(int source) const {
    return shared_start(
        *group_,
        [&] {
            Checkpoint state = snapshot_without_tensors();
            if (unfinished_) state.meta.set(unfinished_key, to_json(*unfinished_));
            if (finished_) state.meta.set(finished_key, to_json(*finished_));
            return Start{concat("the state of rank ", source), std::move(state)};
        },
        source);
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
    group_->regroup(loss);
    const Newest newest = find_newest();
    const Start start = share_position(newest.rank);
    runner_->communicator().reconnect();
    group_->require_equal("data", data_facts_);
    take_state(newest, start);
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
