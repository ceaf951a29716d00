#include <gradtile/cli/text_file.h>
#include <gradtile/core/check.h>
#include <gradtile/core/io/durable_file.h>

namespace gradtile::cli {

void write_text_file(const char* what, const std::filesystem::path& path, const std::string& text) {
    with_file_name(what, path, [&] {
        // A file is replaced by its name, which would put a regular file in the place of /dev/null.
        check(!std::filesystem::exists(path) || std::filesystem::is_regular_file(path),
              "is not a regular file");
        DurableFile file(path);
        file.file().write(reinterpret_cast<const std::byte*>(text.data()), text.size(), 0);
        file.commit(text.size(), DurableFile::Sync::none);
    });
}

}  // namespace gradtile::cli
