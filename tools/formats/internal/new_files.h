#pragma once
/// New files in one folder that appear together, as an exported model's parts do. After kill -9 between two
/// of them, the next NewFiles of the folder removes those that have appeared.
#include <deque>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/core/io/removed_on_signal.h>
#include <gradtile/tools/formats/internal/tensor_writer.h>

namespace gradtile {

class NewFiles {
  public:
    /// Creates the folder if there is none, and removes what killed processes have left in it. Throws Error
    /// that names it.
    explicit NewFiles(std::filesystem::path folder);
    /// Unless commit() returned, removes the files, and the folder if this object made it.
    ~NewFiles();
    NewFiles(const NewFiles&) = delete;
    NewFiles& operator=(const NewFiles&) = delete;

    /// Throws Error that names the file when it exists.
    void require_absent(const std::string& name) const;
    /// Opens a file for writing. Throws Error that names the file when it exists.
    TensorWriter& add(const std::string& name);
    void add_text(const std::string& name, std::string_view text);
    /// Gives all files their names, and returns their paths in add() order. Throws Error that names a file
    /// which exists by now.
    std::vector<std::string> commit();

  private:
    std::filesystem::path folder_;
    RemovedOnSignal made_folder_;
    std::optional<DurableFile> unfinished_;  // a temporary that exists until all files have their names
    std::deque<TensorWriter> files_;
    std::vector<std::string> named_;
    std::vector<RemovedOnSignal> named_on_signal_;
    bool made_ = false, committed_ = false;
};

}  // namespace gradtile
