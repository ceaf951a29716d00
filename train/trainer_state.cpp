#include <gradtile/train/trainer.h>

#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/text/json_value.h>
#include <gradtile/core/text/with_source.h>
#include <gradtile/core/version.h>
#include <gradtile/train/checkpoint/checkpoint_names.h>
#include <gradtile/train/checkpoint/saved_algorithms.h>
#include <gradtile/train/config/optional_json.h>
#include <gradtile/train/data/document_stream.h>
#include <gradtile/train/run/resume_point.h>
#include <gradtile/train/run_clock.h>
#include <gradtile/train/run_recorder.h>
#include <gradtile/train/step_runner.h>

/// The checkpoint that describes a Trainer's state: made, and restored.
namespace gradtile {
namespace {

// Keys in a checkpoint's meta.
constexpr const char* algorithms_key = "matrix_algorithms";
constexpr const char* pending_evaluation_key = "evaluation_left";
constexpr const char* budget_used_key = "budget_used";  // in schedule

/// Returns a step count that a checkpoint holds, after a range check. The trainer adds to the count and
/// multiplies it, so a larger number would overflow.
std::int64_t step_count(std::int64_t count, const char* name, const std::string& source) {
    check_range(concat(source, ": ", name).c_str(), count, {0, setting_limits::max_steps});
    return count;
}

}  // namespace

Checkpoint Trainer::snapshot() {
    Checkpoint checkpoint = snapshot_without_tensors();
    runner_->replica().save_into(checkpoint);
    return checkpoint;
}

/// Returns what this rank writes of a checkpoint. Its texts only say what it is a part of.
Checkpoint Trainer::part_of_snapshot() const {
    Checkpoint part{.step = step_};
    part.meta = JsonValue::object({{"gradtile", version()},
                                   {run_identity_key, identity_},
                                   {part_number_key, group_->rank()},
                                   {"parts", group_->size()}});
    runner_->replica().save_part_into(part);
    return part;
}

Checkpoint Trainer::snapshot_without_tensors() const {
    Checkpoint checkpoint = position();
    describe(checkpoint);
    return checkpoint;
}

/// Adds what does not change during a run.
void Trainer::describe(Checkpoint& checkpoint) const {
    checkpoint.config = to_json(config_);
    if (model().tokenizer) checkpoint.tokenizer = model().tokenizer->to_json();
    add_imported_text(checkpoint.data, model().imported_text);
}

/// Returns what restore_position() and restore_record() read.
Checkpoint Trainer::position() const {
    Checkpoint checkpoint;
    checkpoint.step = step_;
    JsonValue position = runner_->input().state(), content = data_content_;
    if (stream_)
        content.set("data", stream_->record_at({.epoch = position["epoch"].get<std::int64_t>(),
                                                .file = position["file"].get<std::int64_t>()}));
    checkpoint.data =
        JsonValue::object({{"loader", std::move(position)}, {data_content_key, std::move(content)}});
    // Every random number is Philox under a key made from the seed and the step, so there is no other state.
    checkpoint.rng =
        JsonValue::object({{"generator", "philox4x32-10"}, {"seed", config_.seed}, {"step", step_}});
    JsonValue schedule = JsonValue::object({{"horizon", runner_->schedule().horizon}, {"last_step", end_}});
    if (clock_) schedule.set(budget_used_key, clock_->used());
    checkpoint.meta = JsonValue::object(
        {{"gradtile", version()},
         {"world_size", group_->size()},
         {"schedule", schedule},
         {"val_loss", json_of(val_loss_)},
         {"best_val_loss", json_of(recorder_->best_val_loss())},
         {"bad_steps", bad_steps_},
         {"bad_steps_in_a_row", bad_steps_in_a_row_},
         {"device", concat(model().ctx.device())},
         {"matrix_library", model().ctx.device().is_cpu() ? cpu_matrix_library() : "cuBLAS"}});
    if (pending_evaluation_) checkpoint.meta.set(pending_evaluation_key, to_json(*pending_evaluation_));
    if (!identity_.empty()) checkpoint.meta.set(run_identity_key, identity_);
    if (const auto algorithms = gemm_algorithms(model().ctx); !algorithms.empty())
        checkpoint.meta.set(algorithms_key, algorithms_to_json(algorithms));
    return checkpoint;
}

void Trainer::restore(const Checkpoint& checkpoint, const std::string& source) {
    runner_->replica().restore(checkpoint, source);
    restore_position(checkpoint, source);
    restore_record(checkpoint);
    restore_algorithms(checkpoint, source);
}

/// Restores what the recorder knows; restore_position() has checked the checkpoint.
void Trainer::restore_record(const Checkpoint& checkpoint) {
    recorder_->resume_best_val_loss(optional_of<double>(checkpoint.meta, "best_val_loss"));
    recorder_->resume_clock(clock_ ? clock_->used() * clock_->budget_seconds() : 0.0);
}

/// Restores everything that is neither a tensor nor the recorder's.
void Trainer::restore_position(const Checkpoint& checkpoint, const std::string& source) {
    const JsonValue& meta = checkpoint.meta;
    std::int64_t last_step = 0, bad_steps = 0, bad_steps_in_a_row = 0;
    double used = 0.0;
    with_source(concat(source, ": is not a training checkpoint"), [&] {
        last_step = meta["schedule"]["last_step"].get<std::int64_t>();
        if (clock_) used = meta["schedule"][budget_used_key].number();
        bad_steps = meta["bad_steps"].get<std::int64_t>();
        bad_steps_in_a_row = meta["bad_steps_in_a_row"].get<std::int64_t>();
        val_loss_ = optional_of<double>(meta, "val_loss");
        pending_evaluation_.reset();
        if (const JsonValue* const report = meta.find(pending_evaluation_key))
            pending_evaluation_ = step_report_from(*report);
        return &checkpoint.data["loader"];
    });
    if (clock_) {
        check(used >= 0.0 && used <= 1.0, source, ": budget_used: ", used, "; expected 0 to 1");
        clock_->resume(used);
    }
    runner_->input().restore(checkpoint.data["loader"]);
    end_ = step_count(last_step, "last_step", source);
    bad_steps_ = step_count(bad_steps, "bad_steps", source);
    bad_steps_in_a_row_ = step_count(bad_steps_in_a_row, "bad_steps_in_a_row", source);
    step_ = step_count(checkpoint.step, "step", source);
}

/// Restores the matrix algorithms, so that results do not depend on a new timing. If they cannot be restored,
/// the run continues with newly timed ones.
void Trainer::restore_algorithms(const Checkpoint& checkpoint, const std::string& source) {
    const JsonValue* const found = checkpoint.meta.find(algorithms_key);
    if (!found) return;
    try {
        const std::vector<GemmAlgorithm> saved = algorithms_from_json(*found);
        if (model().ctx.device().is_cpu()) return;
        algorithms_source_ = source;
        if (restore_gemm_algorithms(model().ctx, saved) == saved.size()) return;
        on_message_(concat(source,
                           ": its matrix algorithms are for another GPU or another cuBLASLt; they are "
                           "timed again, and results agree to rounding"));
    } catch (const Error& error) {
        on_message_(concat(source, ": ", error.what(), "; they are timed again"));
    }
}

/// Reports the first refusal only. An algorithm is checked at its first product, so a refusal may follow any
/// step.
void Trainer::report_refused_algorithms() {
    if (algorithms_source_.empty() || refused_gemm_algorithms(model().ctx) == 0) return;
    on_message_(
        concat(algorithms_source_,
               ": cuBLASLt does not propose some of its matrix algorithms for their products; they are "
               "chosen again, and results agree to rounding"));
    algorithms_source_.clear();
}

}  // namespace gradtile
