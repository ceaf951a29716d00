#pragma once
/// Conversion of checkpoints from format version 1 to the current format version.
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <gradtile/core/io/file_system.h>

namespace gradtile {

/// Writes the content of `old_file`, a checkpoint of format version 1, to `new_file`, with equal bits. A
/// child process with limited memory and time does the work, because libhdf5 crashes on some damaged files.
/// Throws Error, naming the file, when the old file is not sound, when a signal ended the child, and when the
/// new file exists already. After an error there is no new file.
void convert_checkpoint(const std::filesystem::path& old_file, const std::filesystem::path& new_file,
                        SymbolicLinks links = SymbolicLinks::follow);

struct ConvertedRun {
    std::vector<std::filesystem::path> files;  ///< the new checkpoints
    std::vector<std::string> damaged;  ///< one line for each old checkpoint that could not be converted
};

/// Makes the run directory `new_run` from the run directory `old_run`. Converts every sound checkpoint and
/// copies all other files except symbolic links. The old run is locked meanwhile and does not change. Throws
/// Error when the old run is in use or holds no sound checkpoint of format version 1, or when the new
/// directory exists.
ConvertedRun convert_run(const std::filesystem::path& old_run, const std::filesystem::path& new_run);

}  // namespace gradtile
