#include <gradtile/core/check.h>
#include <gradtile/core/io/durable_file.h>
#include <gradtile/tools/command_line/text_file.h>
#include <gradtile/tools/command_line/usage_error.h>

namespace gradtile::cli {
namespace {

/// Returns whether the file is empty or begins as pages and pictures do.
bool holds_markup(const std::filesystem::path& path) {
    const OpenFile file = open_regular_file(FileSystem::posix(), path);
    std::byte first{'<'};
    if (file.size() > 0) file.read(&first, 1, 0);
    return first == std::byte{'<'};
}

}  // namespace

void write_text_file(const char* what, const std::filesystem::path& path, const std::string& text) {
    with_file_name(what, path, [&] {
        // The file is replaced by a rename, which would replace a device such as /dev/null by a regular file.
        const bool is_new = !std::filesystem::exists(path);
        check(is_new || std::filesystem::is_regular_file(path), "is not a regular file");
        check(is_new || holds_markup(path),
              "holds something else, which would be lost; expected a new file or a ", what);
        DurableFile::write(path, text, DurableFile::Sync::none);
    });
}

void check_not_an_input(const char* flag, const std::string& out, const std::vector<std::string>& inputs) {
    if (!std::filesystem::exists(out)) return;  // a missing input has its own error
    for (const std::string& input : inputs)
        check_usage(!is_same_file(out, input), flag, ": '", out, "' is also read, as '", input,
                    "'; expected another file");
}

}  // namespace gradtile::cli
