#include <gradtile/train/run/resume_point.h>

#include <gradtile/train/checkpoint/checkpoint_directory.h>
#include <gradtile/train/run/metrics_file.h>

namespace gradtile {
namespace {

/// Returns "run 0123...", for messages.
std::string run_named(const std::string& identity) {
    return identity.empty() ? "a run without an identity" : "run " + identity;
}

void check_same_run(const RunDirectory& run, const Checkpoint& checkpoint, const std::string& source) {
    const std::string own = run.identity(), found = run_identity_of(checkpoint, source);
    check(found == own, "checkpoint ", source, ": belongs to ", run_named(found), ", but ",
          run.path().string(), " is ",
          own.empty() ? "a run without run.json, which holds the identity" : run_named(own),
          "; move the file away, or start from its weights with --init-from");
}

}  // namespace

std::string run_identity_of(const Checkpoint& checkpoint, const std::string& source) {
    const JsonValue* const found = checkpoint.meta.find(run_identity_key);
    if (!found) return {};
    check(found->is_string(), "checkpoint ", source, ": its run's identity is not a text");
    return found->get<std::string>();
}

ResumePoint find_resume_point(const RunDirectory& run, bool restart) {
    const CheckpointDirectory checkpoints(run.checkpoints());
    const auto [announced, failed] = MetricsFile::newest_saves(run.metrics_file());
    CheckpointDirectory::Loaded loaded = checkpoints.load_newest();
    if (loaded.checkpoint) {
        check_same_run(run, *loaded.checkpoint, loaded.path.string());
        check(!loaded.checkpoint->meta.contains(imported_key), "resume: '", run.path().string(),
              "' holds imported weights without the state of a training; start a run from them with "
              "--init-from ",
              run.path().string());
    }
    const std::int64_t step = loaded.checkpoint ? loaded.checkpoint->step : 0;
    const std::string place = loaded.checkpoint ? concat("step ", step) : std::string("the start");

    const std::filesystem::path expected = checkpoints.path_of(announced);
    const bool missing = step < announced && !exists(expected);
    check(!missing || restart, "resume: '", run.path().string(),
          "': metrics.jsonl announces the checkpoint of step ", announced, ", but ", expected.string(),
          " is missing; restore it, or continue from ", place, " with --restart");
    check(loaded.checkpoint || loaded.damaged.empty() || restart, "resume: '", run.path().string(),
          "' holds no sound checkpoint; --restart trains again from the start; ",
          loaded.damaged.empty() ? "" : loaded.damaged.front());
    check(loaded.checkpoint || failed == 0 || restart, "resume: '", run.path().string(),
          "' holds no checkpoint: its saves failed, the last one at step ", failed,
          "; --restart trains again from the start");
    // A link is this user's own (RunDirectory::open), but somebody else may have chosen where the link leads,
    // for example in an archive.
    check(loaded.checkpoint || !is_symlink(run.checkpoints()), run.checkpoints().string(),
          ": is a symbolic link to a directory without a sound checkpoint of this run; expected a directory, "
          "or "
          "a link to the directory of the run's checkpoints");

    ResumePoint point{std::move(loaded.checkpoint), loaded.path, std::move(loaded.damaged)};
    const auto add = [&](const auto&... reason) {
        point.messages.push_back(concat(reason..., "; ", run.path().string(), " continues from ", place));
    };
    if (missing) {
        add("the checkpoint of step ", announced, " is missing");
    } else if (failed > step) {
        add("the save of step ", failed, " failed");
    } else if (!point.checkpoint && point.messages.empty()) {
        add("no checkpoint was saved yet");
    }
    return point;
}

}  // namespace gradtile
