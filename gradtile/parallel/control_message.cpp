#include <gradtile/parallel/control_message.h>

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

#include <nlohmann/json.hpp>

#include <gradtile/core/check.h>

namespace gradtile {
namespace {

using nlohmann::json;

struct MessageHeader {
    std::array<char, 4> magic;
    std::uint32_t bytes;  // little-endian, as every machine this runs on
};
constexpr std::array<char, 4> our_magic = {'G', 'T', 'C', '1'};

std::string encode(const Message& m) {
    std::string body;
    json::to_cbor(
        json::array({static_cast<int>(m.kind), m.rank, m.count, m.step, m.seconds, m.text, m.texts}), body);
    return body;
}

Message decode(std::string_view body) {
    try {
        const json fields = json::from_cbor(body.begin(), body.end());
        Message m;
        const int kind = fields.at(0).get<int>();
        check(kind >= 0 && kind <= static_cast<int>(Message::Kind::loss), "unknown kind");
        m.kind = static_cast<Message::Kind>(kind);
        fields.at(1).get_to(m.rank);
        fields.at(2).get_to(m.count);
        fields.at(3).get_to(m.step);
        fields.at(4).get_to(m.seconds);
        fields.at(5).get_to(m.text);
        fields.at(6).get_to(m.texts);
        return m;
    } catch (const json::exception&) {
        throw Error("not a message");
    }
}

}  // namespace

MessageStream::MessageStream(Descriptor socket, std::size_t most_bytes)
    : socket_(std::move(socket)), most_bytes_(most_bytes) {}

void MessageStream::send(const Message& message) {
    const std::string body = encode(message);
    const MessageHeader header{our_magic, static_cast<std::uint32_t>(body.size())};
    out_.append(reinterpret_cast<const char*>(&header), sizeof header);
    out_ += body;
}

bool MessageStream::flush() {
    while (has_unsent()) {
        const ssize_t sent = ::send(*socket_, out_.data() + sent_, out_.size() - sent_, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
        sent_ += static_cast<std::size_t>(sent);
    }
    out_.clear();
    sent_ = 0;
    return true;
}

bool MessageStream::receive() {
    // A flood is taken in parts, so that the other connections have their turn.
    constexpr std::size_t most_at_once = std::size_t{1} << 20;
    std::array<char, 65536> part;
    for (std::size_t received = 0; received < most_at_once;) {
        const ssize_t got = ::recv(*socket_, part.data(), part.size(), 0);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
        if (got == 0) return false;
        in_.append(part.data(), static_cast<std::size_t>(got));
        received += static_cast<std::size_t>(got);
    }
    return true;
}

std::optional<Message> MessageStream::next() {
    const std::string_view left = std::string_view(in_).substr(taken_);
    MessageHeader header{};
    std::memcpy(&header, left.data(), std::min(left.size(), sizeof header));
    const std::size_t of_magic = std::min(left.size(), our_magic.size());
    check(std::equal(header.magic.begin(), header.magic.begin() + of_magic, our_magic.begin()),
          "not a message");
    const bool has_header = left.size() >= sizeof header;
    check(!has_header || header.bytes <= most_bytes_, "a message of ", header.bytes,
          " bytes; expected at most ", most_bytes_);
    if (!has_header || left.size() - sizeof header < header.bytes) {
        in_.erase(0, std::exchange(taken_, 0));
        return std::nullopt;
    }
    taken_ += sizeof header + header.bytes;
    return decode(left.substr(sizeof header, header.bytes));
}

}  // namespace gradtile
