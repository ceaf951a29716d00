#pragma once
/// The files of a stream of documents: their names, and how a change is noticed.
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include <gradtile/core/text/json_value.h>
#include <gradtile/train/data/documents.h>

namespace gradtile {

/// Knows each file by its path below the folder that holds all files, its size and its modification time, and
/// by its SHA-256 once it has been read to its end. The member functions may be called by several threads.
class StreamFiles {
  public:
    /// `data` is the file, folder or pattern that names `paths`, see data_files().
    /// `expected` is the list of the resumed run, see to_json(); null for a new run. Throws Error when a file
    /// of that list is missing or was changed, and when a file is not in the list. A file with another
    /// modification time is read again if its hash is known, and refused if not.
    StreamFiles(std::vector<std::string> paths, const JsonValue& expected, const std::string& data);

    std::int64_t count() const { return std::ssize(paths_); }
    const std::vector<std::string>& paths() const { return paths_; }
    /// The paths in the order of an epoch that this seed gives.
    std::vector<std::int64_t> shuffled(std::uint64_t seed) const;
    /// The files in the order in which documents for validation are looked for: the same for all seeds, but
    /// not that of the paths, which may follow from what the files hold.
    std::vector<std::int64_t> validation_order() const;
    /// Returns whether a row belongs to the hundredth of all rows that validation uses.
    bool is_validation(const DocumentPlace& place) const;

    /// Throws Error when a file is no longer the one that it was at the start.
    void require_unchanged(std::int64_t file);
    /// Records the hash of a file that was read to its end, unless it is known. `content` returns the file's
    /// content.
    void record_hash(std::int64_t file, const std::function<DataContent()>& content);
    /// [{"name", "bytes", "modified", "hash"}, ...]; `hash` only of files for which `has_hash` is true.
    JsonValue to_json(const std::vector<bool>& has_hash) const;
    /// [{"name", "bytes"}, ...], equal for all ranks, whose copies of a file may have different times.
    JsonValue names_and_sizes() const;

  private:
    struct State {
        std::string name;
        std::uint64_t name_hash = 0;
        std::int64_t bytes = 0, modified = 0;  // the time in nanoseconds
        std::string hash = {};                 // empty: not known
    };
    void adopt(const JsonValue& expected, const std::string& data);
    static void require_same(const std::string& path, State& state);

    std::vector<std::string> paths_;
    mutable std::mutex mutex_;  // guards the mutable members of states_
    std::vector<State> states_;
};

}  // namespace gradtile
