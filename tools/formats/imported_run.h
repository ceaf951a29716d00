#pragma once
/// Imported models as runs.
#include <filesystem>
#include <string>

#include <gradtile/tools/formats/import.h>

namespace gradtile {

/// Returns a model's checkpoint: step 0 without an optimizer's state and without masters, since training
/// takes masters that are missing from the weights.
Checkpoint checkpoint_of(const ImportedModel& model, const std::string& identity);

/// Makes a run directory that holds the model as its only checkpoint. `sample` and `eval` read it, and
/// training starts from its weights with the setting init-from. Throws Error when the directory holds a run.
/// Returns the checkpoint's path.
std::filesystem::path write_imported_run(const ImportedModel& model, const std::string& directory);

}  // namespace gradtile
