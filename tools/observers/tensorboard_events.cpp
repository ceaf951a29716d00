#include <gradtile/tools/observers/tensorboard_events.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <span>

#include <gradtile/core/io/checksum.h>
#include <gradtile/core/io/little_endian.h>

namespace gradtile {
namespace {

// ---- Records and messages ----

template <std::integral T>
void append_integer(std::string& bytes, T value) {
    std::array<std::byte, sizeof value> encoded;
    put_little_endian(encoded.data(), value);
    for (const std::byte b : encoded) bytes += static_cast<char>(b);
}

/// A checksum that is stored beside its data is masked, so that data which contain their own CRC do not have
/// a constant CRC.
std::uint32_t masked_crc(std::string_view data) {
    return std::rotr(crc32c(std::as_bytes(std::span(data))), 15) + 0xa282ead8u;
}

// Protobuf's wire types.
enum class Wire { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

void append_varint(std::string& message, std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) message += static_cast<char>(value | 0x80);
    message += static_cast<char>(value);
}

void append_key(std::string& message, std::uint32_t field, Wire wire) {
    append_varint(message, field << 3 | static_cast<std::uint32_t>(wire));
}

void append_bytes(std::string& message, std::uint32_t field, std::string_view bytes) {
    append_key(message, field, Wire::bytes);
    append_varint(message, bytes.size());
    message += bytes;
}

// Fields of event.proto and summary.proto.
namespace event_field {
constexpr std::uint32_t wall_time = 1, step = 2, file_version = 3, summary = 5, session_log = 7;
}
namespace summary_field {
constexpr std::uint32_t value = 1;
}
namespace value_field {
constexpr std::uint32_t tag = 1, simple_value = 2;
}
namespace session_field {
constexpr std::uint32_t status = 1;
constexpr std::uint64_t status_start = 1;
}  // namespace session_field

/// Returns a record with an Event: time, step, and one more member.
std::string event_record(std::int64_t step, std::uint32_t field, std::string_view content) {
    const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
    std::string event;
    append_key(event, event_field::wall_time, Wire::fixed64);
    append_integer(event, std::bit_cast<std::uint64_t>(now.count()));
    append_key(event, event_field::step, Wire::varint);
    append_varint(event, static_cast<std::uint64_t>(step));
    append_bytes(event, field, content);
    return tensorboard_record(event);
}

std::string session_start() {
    std::string session;
    append_key(session, session_field::status, Wire::varint);
    append_varint(session, session_field::status_start);
    return session;
}

std::string summary_of(const StepReport& report) {
    std::string summary;
    const auto add = [&](const char* tag, double number) {
        std::string value;
        append_bytes(value, value_field::tag, tag);
        append_key(value, value_field::simple_value, Wire::fixed32);
        append_integer(value, std::bit_cast<std::uint32_t>(static_cast<float>(number)));
        append_bytes(summary, summary_field::value, value);
    };
    add("loss", report.loss);
    if (report.val_loss) add("val_loss", *report.val_loss);
    add("lr", report.lr);
    add("grad_norm", report.grad_norm);
    add("tokens_per_s", report.tokens_per_s);
    add("ms", report.ms);
    add("tokens", static_cast<double>(report.tokens));
    add("wall_s", report.wall_s);
    return summary;
}

// ---- Names ----

constexpr std::string_view name_start = "events.out.tfevents.";
// TensorBoard reads files in name order, so all names have equally many digits.
constexpr std::size_t digits = 10;
constexpr std::int64_t max_seconds = 9'999'999'999;

/// Returns the suffix of a run's event file names.
std::string name_end(const std::string& identity) {
    return concat(".gradtile", identity.empty() ? "" : ".", identity);
}

std::string name_of(std::int64_t seconds, const std::string& identity) {
    std::string number = std::to_string(seconds);
    number.insert(0, digits - number.size(), '0');
    return concat(name_start, number, name_end(identity));
}

/// Returns the seconds in an event file's name.
std::int64_t seconds_in(std::string_view name) {
    std::int64_t seconds = 0;
    for (const char c : name.substr(name_start.size(), digits)) {
        if (c < '0' || c > '9') break;
        seconds = 10 * seconds + (c - '0');
    }
    return seconds;
}

/// Returns the names of all event files, whichever program wrote them.
std::vector<std::string> event_files(const std::filesystem::path& directory) {
    std::vector<std::string> names;
    file_check(FileSystem::posix().list(directory, names), "list the directory");
    std::erase_if(names, [](const std::string& name) { return !name.starts_with(name_start); });
    std::ranges::sort(names);
    return names;
}

}  // namespace

std::string tensorboard_record(std::string_view data) {
    std::string record;
    append_integer(record, static_cast<std::uint64_t>(data.size()));
    append_integer(record, masked_crc(record));
    record += data;
    append_integer(record, masked_crc(data));
    return record;
}

bool TensorBoardEvents::exist_in(const std::filesystem::path& directory, const std::string& identity) {
    std::error_code ignored;
    if (identity.empty() || !is_directory(directory, ignored)) return false;
    const std::vector<std::string> files =
        with_file_name("tensorboard", directory, [&] { return event_files(directory); });
    return std::ranges::any_of(files,
                               [&](const std::string& name) { return name.ends_with(name_end(identity)); });
}

TensorBoardEvents::TensorBoardEvents(std::filesystem::path directory, Run run, std::string identity)
    : directory_(std::move(directory)), identity_(std::move(identity)) {
    with_file_name("tensorboard", directory_, [&] {
        make_directories(FileSystem::posix(), directory_);
        check(is_directory(directory_), "is not a directory");
        file_check(::access(directory_.c_str(), W_OK | X_OK) == 0 ? 0 : -errno, "write in the directory");
        const std::vector<std::string> files = event_files(directory_);
        check(run == Run::resumes || files.empty(), "has the event file ", files.empty() ? "" : files.back(),
              " of another run; expected a directory without event files, or a run that is resumed");
    });
}

void TensorBoardEvents::create_file() {
    using namespace std::chrono;
    const std::vector<std::string> others = event_files(directory_);
    // A clock before 1970 or after 2286 has no name of the usual length.
    std::int64_t seconds = std::clamp<std::int64_t>(
        floor<std::chrono::seconds>(system_clock::now()).time_since_epoch().count(), 0, max_seconds);
    // The clock may have been set back, or another host's clock may differ.
    for (const std::string& name : others) seconds = std::max(seconds, seconds_in(name) + 1);
    check(seconds <= max_seconds, "has the event file ", others.empty() ? "" : others.back(),
          "; no later name is possible");
    // With O_EXCL an existing link is not followed, and no other process's file is overwritten.
    file_ =
        OpenFile(FileSystem::posix(), directory_ / name_of(seconds, identity_), O_CREAT | O_EXCL | O_WRONLY);
}

void TensorBoardEvents::write(const StepReport& report) {
    with_file_name("tensorboard", directory_, [&] {
        if (!file_.is_open()) create_file();
        const bool begins_file = size_ == 0;
        if (begins_file) append(event_record(0, event_field::file_version, "brain.Event:2"));
        if (begins_file || report.step <= last_step_)
            append(event_record(report.step, event_field::session_log, session_start()));
        last_step_ = report.step;
        append(event_record(report.step, event_field::summary, summary_of(report)));
    });
}

void TensorBoardEvents::append(const std::string& records) {
    try {
        file_.write(reinterpret_cast<const std::byte*>(records.data()), records.size(), size_);
    } catch (...) {
        file_.file_system().truncate(file_.descriptor(), size_);  // removes a partial record
        throw;
    }
    size_ += records.size();
}

}  // namespace gradtile
