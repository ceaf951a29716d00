#include <gradtile/train/trainer.h>

#include <gradtile/train/run_recorder.h>
#include <gradtile/train/step_runner.h>

/// Where a Trainer writes checkpoints and metrics.
namespace gradtile {

/// Whether every rank writes a part of a checkpoint. A single process has the whole state.
bool Trainer::saves_parts() const {
    return config_.checkpoint_parts && runner_->replica().parallel.is_sharded();
}

/// Collective: sets save_bytes_ from this rank's part and the others'.
void Trainer::count_parts(const Checkpoint& part) {
    save_bytes_ = 0;
    for (const std::string& bytes : group_->all_gather(concat(checkpoint_bytes(part))))
        save_bytes_ += std::stoull(bytes);
}

/// Makes the writer of checkpoints, with memory for them, and sets save_bytes_. Collective if ranks write
/// parts.
RunOutput Trainer::prepare_saves(const std::filesystem::path& checkpoints) {
    const RetentionPolicy retention{.keep_last = config_.keep_last, .keep_every = config_.keep_every};
    const auto first_copy = has_part(config_.offload, Offload::optimizer) ? SnapshotWriter::FirstCopy::host
                                                                          : SnapshotWriter::FirstCopy::device;
    RunOutput output;
    output.writer = std::make_unique<SnapshotWriter>(CheckpointDirectory(checkpoints, retention), model().ctx,
                                                     first_copy);
    if (saves_parts()) {
        output.shared = std::make_unique<SharedSave>(*group_, *output.writer);
        const Checkpoint part = part_of_snapshot();
        output.writer->reserve(part);
        count_parts(part);
        return output;
    }
    Replica& replica = runner_->replica();
    Checkpoint like = snapshot_without_tensors();
    if (replica.parallel.is_sharded()) {
        replica.reserve_host_memory(like);
    } else {
        replica.save_into(like);
        output.writer->reserve(like);
    }
    save_bytes_ = checkpoint_bytes(like);
    return output;
}

/// Creates a new run's directory. A start that is refused leaves none; see also run().
void Trainer::start_in_directory() {
    if (!group_->is_root() && !saves_parts()) return;
    const std::filesystem::path checkpoints = RunDirectory::checkpoints_of(config_.out);
    // Memory is allocated first, so that a start that runs out of memory creates no directory.
    RunOutput output = prepare_saves(checkpoints);
    if (group_->is_root())
        output.directory =
            std::make_unique<RunDirectory>(RunDirectory::create(config_, identity_, save_bytes_));
    try {
        if (saves_parts()) require_shared_directory(*group_, checkpoints);
        if (output.directory)
            output.metrics = std::make_unique<MetricsFile>(output.directory->metrics_file());
    } catch (...) {
        if (output.directory) output.directory->discard();
        throw;
    }
    recorder_->open(std::move(output));
}

/// The state is that of `last_step`, see MetricsFile. Only rank 0 has a directory.
void Trainer::resume_in_directory(std::optional<RunDirectory> directory, std::int64_t last_step,
                                  LastStep last) {
    if (!directory && !saves_parts()) return;
    const std::filesystem::path checkpoints = RunDirectory::checkpoints_of(config_.out);
    RunOutput output = prepare_saves(checkpoints);
    if (directory) {
        directory->remove_temporaries();
        directory->require_room("resume", save_bytes_);
    }
    if (saves_parts()) require_shared_directory(*group_, checkpoints);
    if (directory) {
        output.metrics = std::make_unique<MetricsFile>(directory->metrics_file(), last_step, last);
        output.directory = std::make_unique<RunDirectory>(*std::move(directory));
    }
    recorder_->open(std::move(output));
}

}  // namespace gradtile
