#pragma once
/// TensorBoard's event files: a run's metrics as scalars.
///
/// A file is a sequence of records: the data length (uint64), the length's masked CRC-32C, the data, the
/// data's masked CRC-32C; integers are little-endian. The data are a protobuf message Event. See
/// tensorflow/core/lib/io/record_writer.h and tensorboard/compat/proto/event.proto.
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/core/io/file_system.h>
#include <gradtile/train/run/run_callbacks.h>

namespace gradtile {

/// Returns the record that contains `data`.
std::string tensorboard_record(std::string_view data);

/// Writes the steps that one process of a run does. Each key in metrics.jsonl but "step" is a tag. Scalars
/// are float32; numbers that are not finite are written as they are.
///
/// A process that resumes a run begins another file, since a running TensorBoard does not notice that a file
/// has become shorter. The new file's name sorts after the others, and its first event says that a session
/// starts at its first step. TensorBoard then forgets all events for this step and later steps, which a
/// previous process wrote after its last checkpoint. A run that returns to a checkpoint, because a process
/// was lost, writes such a session start to the same file.
class TensorBoardEvents {
  public:
    enum class Run { starts, resumes };
    /// Creates the directory if needed. The event files' names end with the run's identity, if it has one.
    /// Throws Error, one line, when the directory cannot be written, or when it has event files although the
    /// run starts: TensorBoard would draw two runs as one.
    TensorBoardEvents(std::filesystem::path directory, Run run, std::string identity);

    /// Returns whether a directory, which need not exist, has event files from the run with this identity. A
    /// run without an identity has none.
    static bool exist_in(const std::filesystem::path& directory, const std::string& identity);

    /// Writes an event; the first call creates the file. A step that is not after the last one starts a
    /// session. Throws Error when it cannot be written; the file
    /// then contains nothing from the event.
    void write(const StepReport& report);

  private:
    void create_file();
    void append(const std::string& records);

    std::filesystem::path directory_;
    std::string identity_;
    OpenFile file_;
    std::uint64_t size_ = 0;
    std::int64_t last_step_ = 0;
};

}  // namespace gradtile
