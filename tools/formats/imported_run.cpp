#include <gradtile/tools/formats/imported_run.h>

#include <gradtile/core/version.h>
#include <gradtile/train/checkpoint/checkpoint_directory.h>
#include <gradtile/train/run/resume_point.h>
#include <gradtile/train/run/run_directory.h>

namespace gradtile {

Checkpoint checkpoint_of(const ImportedModel& model, const std::string& identity) {
    TrainConfig config;
    config.model = model.config;
    config.dtype = model.dtype;
    config.chat_template = model.chat_template;
    if (model.tokenizer) config.tokenizer = name_of(model.tokenizer->kind());
    Checkpoint checkpoint{.params = model.parameters};
    checkpoint.config = to_json(config);
    checkpoint.data = JsonValue::object();
    if (model.tokenizer) checkpoint.tokenizer = model.tokenizer->to_json();
    add_imported_text(checkpoint.data, model.text);
    checkpoint.rng = JsonValue::object();
    checkpoint.meta = JsonValue::object(
        {{"gradtile", version()}, {imported_key, model.description}, {run_identity_key, identity}});
    return checkpoint;
}

std::filesystem::path write_imported_run(const ImportedModel& model, const std::string& directory) {
    const std::string identity = new_run_identity();
    Checkpoint checkpoint = checkpoint_of(model, identity);
    TrainConfig config;
    apply_json(config, checkpoint.config, directory);
    config.out = directory;
    checkpoint.config = to_json(config);
    RunDirectory run = RunDirectory::create(config, identity, checkpoint_bytes(checkpoint));
    const CheckpointDirectory checkpoints(run.checkpoints());
    const std::filesystem::path file = checkpoints.path_of(checkpoint.step);
    const RemovedOnSignal file_on_signal(file);
    try {
        const CheckpointDirectory::Saved saved = checkpoints.save(checkpoint);
        check(saved.problem.empty(), saved.problem);
        // After any error, for example a weight that is not finite, no run without a checkpoint remains.
    } catch (...) {
        std::error_code ignored;
        std::filesystem::remove(file, ignored);
        run.discard();
        throw;
    }
    run.keep();
    return file;
}

}  // namespace gradtile
