#include <gradtile/core/check.h>
#include <gradtile/tools/formats/internal/new_files.h>

namespace gradtile {
namespace {

constexpr std::string_view unfinished_name = "export-unfinished";

/// Removes what killed processes have left in the folder: their temporaries and, if they had not given all
/// files their final names, the files that have both names.
void remove_remains(const std::filesystem::path& folder) {
    FileSystem& files = FileSystem::posix();
    const auto remove_temporaries = [&](bool unfinished) {
        std::vector<std::string> names;
        files.list(folder, names);
        for (const std::string& name : names)
            if (const auto final_path = DurableFile::final_path_of(folder / name))
                remove_stale_temporaries(files, *final_path, [&](const std::filesystem::path& temporary) {
                    if (unfinished && is_same_file(temporary, *final_path)) files.remove(*final_path);
                });
    };
    remove_stale_temporaries(files, folder / unfinished_name,
                             [&](const std::filesystem::path&) { remove_temporaries(true); });
    remove_temporaries(false);
}

}  // namespace

NewFiles::NewFiles(std::filesystem::path folder) : folder_(std::move(folder)) {
    const SignalsWait until_registered;
    made_ = !exists(folder_);
    with_file_name("folder", folder_,
                   [&] { make_directories(FileSystem::posix(), std::filesystem::absolute(folder_)); });
    if (made_) made_folder_ = RemovedOnSignal(folder_);
    remove_remains(folder_);
}

NewFiles::~NewFiles() {
    if (committed_) return;
    files_.clear();  // removes the temporaries
    unfinished_.reset();
    std::error_code ignored;
    for (const std::string& file : named_) std::filesystem::remove(file, ignored);
    if (made_) std::filesystem::remove(folder_, ignored);
}

void NewFiles::require_absent(const std::string& name) const {
    const std::filesystem::path path = folder_ / name;
    check(!exists(symlink_status(path)), path.string(), ": exists; choose another --out");
}

TensorWriter& NewFiles::add(const std::string& name) {
    require_absent(name);
    return files_.emplace_back((folder_ / name).string(), Existing::refuse);
}

void NewFiles::add_text(const std::string& name, std::string_view text) {
    add(name).write(std::as_bytes(std::span(text)));
}

std::vector<std::string> NewFiles::commit() {
    with_file_name("folder", folder_, [&] { unfinished_.emplace(folder_ / unfinished_name); });
    const SignalsWait until_all_have_their_names;
    for (TensorWriter& file : files_) {
        file.commit();
        named_.push_back(file.path());
        named_on_signal_.emplace_back(file.path());
    }
    unfinished_.reset();  // before the temporary names, which files_ removes
    committed_ = true;
    return named_;
}

}  // namespace gradtile
