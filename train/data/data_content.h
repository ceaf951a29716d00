#pragma once
/// What a data file holds, in one line: so that a run that goes on, and the ranks of a run, can tell whether
/// they read the same data.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include <gradtile/core/text/json_value.h>
#include <gradtile/train/data/data_file.h>

namespace gradtile {

/// Length and hash: "sha256:...", as sha256sum prints it, of every byte, or "sha256-sampled:..." of the parts
/// that visit_samples() visits. The samples find accidents; a person who knows their places can change a
/// large file between them.
struct DataContent {
    std::int64_t bytes = 0;
    std::string hash;

    bool operator==(const DataContent&) const = default;
    /// {"bytes": 1115394, "hash": "sha256:..."}
    JsonValue to_json() const;
};

/// Calls visit for parts of a file that stand for all of it: the whole file up to 4 MiB; of a longer one the
/// first and the last MiB and 256 blocks of 4 KiB at equal distances in between, each beginning at a multiple
/// of 4 KiB. At most 4 MiB are read, whatever the file's size, and holes cost nothing on the disk.
void visit_samples(const DataFile& file, const std::function<void(std::span<const std::byte>)>& visit);

/// Returns the content of a file, hashed by those samples.
DataContent content_of(const DataFile& file);
/// Returns the content of a text in memory, hashed by every byte.
DataContent content_of(std::string_view text);

/// Throws Error when the open file no longer holds `content`: at once when its length is another one, by its
/// samples when its time of last change is. One system call when nothing has happened.
void require_unchanged(const DataFile& file, const DataContent& content);

}  // namespace gradtile
