#pragma once
/// The names of checkpoint files, and of the pieces in parts. See docs/checkpoint_format.md.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <gradtile/train/checkpoint/checkpoint.h>

namespace gradtile {

/// Returns "step_00000250.h5".
std::string step_file_name(std::int64_t step);
/// Returns the step whose file has this name; nullopt for other names.
std::optional<std::int64_t> step_of_file_name(const std::string& name);

/// Returns "step_00000250.part-0-of-4-0123456789abcdef.h5". The name has only digits and fixed text, so no
/// number in a file can lead a reader to another directory.
std::string part_file_name(std::int64_t step, const CheckpointPart& part);
/// Returns whether part_file_name() makes this name.
bool is_part_file_name(const std::string& name);

/// The key in the meta of a part for its number.
inline constexpr const char* part_number_key = "part";
/// The key in a checkpoint's data for Dataset::content.
inline constexpr const char* data_content_key = "content";

struct PieceName {
    std::string tensor;
    std::int64_t begin = 0;
};
/// Returns what piece_name() was called with; nullopt for other names.
std::optional<PieceName> parse_piece_name(const std::string& name);

}  // namespace gradtile
