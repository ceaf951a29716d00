#include <gradtile/train/parallel/internal/control_message.h>

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

#include <gradtile/core/check.h>
#include <gradtile/core/os/internal/operating_system.h>

namespace gradtile {
namespace {

struct MessageHeader {
    std::uint64_t sequence;
    std::uint64_t bytes;  // the fields' length; little-endian, like every supported machine
};

std::string_view raw_bytes(const auto& value) {
    static_assert(std::is_trivially_copyable_v<std::remove_cvref_t<decltype(value)>>);
    return {reinterpret_cast<const char*>(&value), sizeof value};
}

void append_text(std::string& out, const std::string& text) {
    out += raw_bytes(static_cast<std::uint32_t>(text.size()));
    out += text;
}

std::string encode(const Message& m) {
    std::string fields;
    fields += raw_bytes(m.kind);
    fields += raw_bytes(m.rank);
    fields += raw_bytes(m.count);
    fields += raw_bytes(m.step);
    fields += raw_bytes(m.seconds);
    append_text(fields, m.text);
    fields += raw_bytes(static_cast<std::uint32_t>(m.texts.size()));
    for (const std::string& text : m.texts) append_text(fields, text);
    return fields;
}

/// Reads one field after another. Throws Error when the bytes end within a field.
class FieldReader {
  public:
    explicit FieldReader(std::string_view bytes) : left_(bytes) {}
    template <class T>
    void read(T& value) {
        const std::string_view bytes = take(sizeof value);
        std::memcpy(&value, bytes.data(), bytes.size());
    }
    void read(std::string& text) {
        std::uint32_t length = 0;
        read(length);
        text = take(length);
    }
    void read(std::vector<std::string>& texts) {
        std::uint32_t count = 0;
        for (read(count); count > 0; --count) read(texts.emplace_back());
    }
    bool is_at_end() const { return left_.empty(); }

  private:
    std::string_view take(std::size_t bytes) {
        check(bytes <= left_.size(), "a malformed message");
        const std::string_view taken = left_.substr(0, bytes);
        left_.remove_prefix(bytes);
        return taken;
    }
    std::string_view left_;
};

Message decode(std::string_view bytes) {
    FieldReader fields(bytes);
    Message m;
    std::uint8_t kind = 0;
    fields.read(kind);
    check(kind <= static_cast<std::uint8_t>(Message::Kind::loss), "a message of unknown kind");
    m.kind = static_cast<Message::Kind>(kind);
    fields.read(m.rank);
    fields.read(m.count);
    fields.read(m.step);
    fields.read(m.seconds);
    fields.read(m.text);
    fields.read(m.texts);
    check(fields.is_at_end(), "a malformed message");
    return m;
}

}  // namespace

MessageStream::MessageStream(Descriptor socket, const SessionKeys& keys, std::size_t max_bytes)
    : socket_(std::move(socket)), keys_(keys), max_bytes_(max_bytes) {}

void MessageStream::send(const Message& message) {
    const std::string fields = encode(message);
    const std::size_t begin = out_.size();
    out_ += raw_bytes(MessageHeader{messages_sent_++, fields.size()});
    out_ += fields;
    out_ += bytes_of(authentication_code(bytes_of(keys_.to_send), std::string_view(out_).substr(begin)));
}

bool MessageStream::flush() {
    while (has_unsent()) {
        const ssize_t sent = os::send(*socket_, out_.data() + sent_, out_.size() - sent_);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
        sent_ += static_cast<std::size_t>(sent);
    }
    out_.clear();
    sent_ = 0;
    return true;
}

bool MessageStream::receive() {
    // The amount per call is limited, so that one sender cannot block the other connections.
    constexpr std::size_t max_at_once = std::size_t{1} << 20;
    std::array<char, 65536> part;
    for (std::size_t received = 0; received < max_at_once;) {
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
    const std::string_view left = std::string_view(in_).substr(consumed_);
    MessageHeader header{};
    const bool has_header = left.size() >= sizeof header;
    if (has_header) {
        std::memcpy(&header, left.data(), sizeof header);
        check(header.sequence == messages_received_, "a message out of sequence");
        check(header.bytes <= max_bytes_, "a message of ", header.bytes, " bytes; expected at most ",
              max_bytes_);
    }
    const std::size_t authenticated = sizeof header + header.bytes;
    if (!has_header || left.size() < authenticated + sizeof(Digest)) {
        in_.erase(0, std::exchange(consumed_, 0));
        return std::nullopt;
    }
    Digest code{};
    std::memcpy(code.data(), left.data() + authenticated, code.size());
    check(is_same(code, authentication_code(bytes_of(keys_.to_receive), left.substr(0, authenticated))),
          "a message with a wrong authentication code");
    ++messages_received_;
    consumed_ += authenticated + sizeof code;
    return decode(left.substr(sizeof header, header.bytes));
}

}  // namespace gradtile
