#pragma once
/// Files of format version 1 into files of the version this program reads.
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <gradtile/core/io/file_system.h>

namespace gradtile {

/// Writes `new_file` with the content of `old_file`, a checkpoint of format version 1, bit for bit. A child
/// process with limited memory and time does it, because libhdf5 does not survive every damaged file. Throws
/// Error, naming the file, when the old one is not sound, when the child was ended by a signal, and when the
/// new one exists; then no new file is left.
void convert_checkpoint(const std::filesystem::path& old_file, const std::filesystem::path& new_file,
                        SymbolicLinks links = SymbolicLinks::follow);

struct ConvertedRun {
    std::vector<std::filesystem::path> files;  ///< the new checkpoints
    std::vector<std::string> damaged;          ///< one line for every old one that could not be converted
};

/// Makes `new_run` from the directory of a run: every sound checkpoint converted, everything else copied but
/// symbolic links. The old run stays as it is and is locked meanwhile. Throws Error when it is in use or
/// holds no sound checkpoint of format version 1, or when the new directory exists.
ConvertedRun convert_run(const std::filesystem::path& old_run, const std::filesystem::path& new_run);

}  // namespace gradtile
