#include <gradtile/train/checkpoint/checkpoint_names.h>

#include <array>
#include <charconv>
#include <cinttypes>
#include <cstdio>

#include <gradtile/core/text/message.h>

namespace gradtile {
namespace {

/// Takes a number from the front of `text`.
template <class T>
bool take_number(std::string_view& text, T& number, int base = 10) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
    if (error != std::errc()) return false;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    return true;
}

bool take_text(std::string_view& text, std::string_view expected) {
    if (!text.starts_with(expected)) return false;
    text.remove_prefix(expected.size());
    return true;
}

/// Returns "step_00000250".
std::string step_prefix(std::int64_t step) {
    std::array<char, 40> name{};
    std::snprintf(name.data(), name.size(), "step_%08" PRId64, step);
    return name.data();
}

}  // namespace

std::string step_file_name(std::int64_t step) {
    return step_prefix(step) + ".h5";
}

std::optional<std::int64_t> step_of_file_name(const std::string& name) {
    std::string_view rest = name;
    std::int64_t step = 0;
    if (!take_text(rest, "step_") || !take_number(rest, step) || name != step_file_name(step) || step < 0)
        return std::nullopt;
    return step;
}

std::string part_file_name(std::int64_t step, const CheckpointPart& part) {
    std::array<char, 20> save{};
    std::snprintf(save.data(), save.size(), "%016" PRIx64, part.save);
    return concat(step_prefix(step), ".part-", part.number, "-of-", part.count, '-', save.data(), ".h5");
}

bool is_part_file_name(const std::string& name) {
    std::string_view rest = name;
    std::int64_t step = 0;
    CheckpointPart part;
    return take_text(rest, "step_") && take_number(rest, step) && take_text(rest, ".part-") &&
           take_number(rest, part.number) && take_text(rest, "-of-") && take_number(rest, part.count) &&
           take_text(rest, "-") && take_number(rest, part.save, 16) && name == part_file_name(step, part);
}

std::string piece_name(const std::string& tensor, std::int64_t begin) {
    return concat(tensor, '/', begin);
}

std::optional<PieceName> parse_piece_name(const std::string& name) {
    const std::size_t slash = name.rfind('/');
    if (slash == std::string::npos) return std::nullopt;
    PieceName piece{.tensor = name.substr(0, slash)};
    std::string_view rest = std::string_view(name).substr(slash + 1);
    if (!take_number(rest, piece.begin) || piece.begin < 0 || piece_name(piece.tensor, piece.begin) != name)
        return std::nullopt;
    return piece;
}

}  // namespace gradtile
