#pragma once
/// A small reader of TensorBoard's event files, which shares no code with the writer.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <gradtile/core/check.h>

namespace gradtile::test {

/// CRC-32C bit by bit, from the definition in RFC 3720, appendix B.4.
inline std::uint32_t crc_by_definition(const std::string& bytes) {
    std::uint32_t state = 0xffffffffu;
    for (const char c : bytes) {
        state ^= static_cast<unsigned char>(c);
        for (int bit = 0; bit < 8; ++bit) state = (state & 1u) != 0 ? (state >> 1) ^ 0x82f63b78u : state >> 1;
    }
    return ~state;
}

inline std::uint32_t unmasked(std::uint32_t masked) {
    const std::uint32_t rotated = masked - 0xa282ead8u;
    return rotated >> 17 | rotated << 15;
}

template <class T>
T take(std::string& bytes) {
    T value{};
    check(bytes.size() >= sizeof value, "the file ends too early");
    std::memcpy(&value, bytes.data(), sizeof value);
    bytes.erase(0, sizeof value);
    return value;
}

inline std::string take_bytes(std::string& bytes, std::uint64_t count) {
    check(bytes.size() >= count, "the file ends too early");
    const std::string part = bytes.substr(0, count);
    bytes.erase(0, count);
    return part;
}

inline std::uint64_t take_varint(std::string& bytes) {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
        const auto byte = take<unsigned char>(bytes);
        value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
        if (byte < 0x80) return value;
    }
}

/// Returns every record's data; checks lengths and checksums.
inline std::vector<std::string> records_in(std::string bytes) {
    std::vector<std::string> records;
    while (!bytes.empty()) {
        const std::string length = bytes.substr(0, 8);
        const auto size = take<std::uint64_t>(bytes);
        EXPECT_EQ(unmasked(take<std::uint32_t>(bytes)), crc_by_definition(length));
        records.push_back(take_bytes(bytes, size));
        EXPECT_EQ(unmasked(take<std::uint32_t>(bytes)), crc_by_definition(records.back()));
    }
    return records;
}

struct Event {
    double wall_time = 0.0;
    std::uint64_t step = 0;
    std::string file_version;
    std::uint64_t session_status = 0;
    std::map<std::string, float> scalars = {};
};

/// Calls use(field, wire type, value bytes) for each field in a message.
template <class Use>
void for_fields(std::string message, Use&& use) {
    while (!message.empty()) {
        const std::uint64_t key = take_varint(message);
        const std::string before = message;
        switch (key & 7) {
            case 0:
                take_varint(message);
                use(key >> 3, before.substr(0, before.size() - message.size()));
                break;
            case 1:
                use(key >> 3, take_bytes(message, 8));
                break;
            case 2: {
                const std::uint64_t size = take_varint(message);
                use(key >> 3, take_bytes(message, size));
                break;
            }
            case 5:
                use(key >> 3, take_bytes(message, 4));
                break;
            default:
                throw Error(concat("wire type ", key & 7));
        }
    }
}

inline Event event_in(const std::string& record) {
    Event event;
    for_fields(record, [&](std::uint64_t field, std::string value) {
        if (field == 1) event.wall_time = take<double>(value);
        if (field == 2) event.step = take_varint(value);
        if (field == 3) event.file_version = value;
        if (field == 5)
            for_fields(value, [&](std::uint64_t, const std::string& scalar) {
                std::string tag;
                for_fields(scalar, [&](std::uint64_t part, std::string content) {
                    if (part == 1) tag = content;
                    if (part == 2) event.scalars[tag] = take<float>(content);
                });
            });
        if (field == 7)
            for_fields(value, [&](std::uint64_t, std::string status) {
                event.session_status = take_varint(status);
            });
    });
    return event;
}

inline std::vector<std::filesystem::path> files_in(const std::filesystem::path& directory) {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(directory)) files.push_back(entry.path());
    std::ranges::sort(files);
    return files;
}

inline std::vector<Event> events_in(const std::filesystem::path& file) {
    std::ifstream stream(file, std::ios::binary);
    const std::string bytes(std::istreambuf_iterator<char>(stream), {});
    std::vector<Event> events;
    for (const std::string& record : records_in(bytes)) events.push_back(event_in(record));
    return events;
}

/// The steps that TensorBoard shows: a session start removes its step and later steps.
inline std::vector<std::uint64_t> shown_steps(const std::filesystem::path& directory) {
    std::vector<std::uint64_t> steps;
    for (const auto& file : files_in(directory))
        for (const Event& event : events_in(file)) {
            if (event.session_status == 1)
                std::erase_if(steps, [&](std::uint64_t step) { return step >= event.step; });
            if (!event.scalars.empty()) steps.push_back(event.step);
        }
    return steps;
}

}  // namespace gradtile::test
