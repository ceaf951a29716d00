#pragma once
/// Messages on the control connection after the handshake, and the stream that carries them. A message is a
/// sequence number, a length, the fields in fixed order, and an authentication code over all of these. Any
/// other input ends the connection.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <gradtile/train/parallel/internal/authentication.h>
#include <gradtile/train/parallel/internal/socket.h>

namespace gradtile {

struct Message {
    enum class Kind : std::uint8_t {
        all_connected,
        heartbeat,  ///< step; text: the operation the sender has waited in for `seconds`. From rank 0, before
                    ///< all are connected: text names the missing ranks
        contribution,  ///< a process's text for exchange number `count`
        result,        ///< all processes' texts in exchange number `count`
        leave,         ///< the sender has finished the run
        all_left,
        failure,  ///< the sender ends at step with the error `text`
        loss,     ///< `rank` (-1: several) was lost at `step` (-1: unknown); text says who, texts {why}
    };
    Kind kind = Kind::heartbeat;
    std::int64_t rank = 0;
    std::int64_t count = 0;
    std::int64_t step = -1;
    double seconds = 0.0;
    std::string text = {};
    std::vector<std::string> texts = {};
};

/// The longest text in an exchange.
constexpr std::size_t max_exchanged_bytes = std::size_t{1} << 20;

class MessageStream {
  public:
    /// next() refuses messages longer than `max_bytes` before they are complete.
    MessageStream(Descriptor socket, const SessionKeys& keys, std::size_t max_bytes);

    int descriptor() const { return *socket_; }

    void send(const Message& message);
    /// Writes as much as the socket accepts now. Returns false when the connection is broken.
    bool flush();
    bool has_unsent() const { return sent_ < out_.size(); }

    /// Reads the bytes that have arrived. Returns false when the other end has closed the connection; next()
    /// still returns earlier messages.
    bool receive();
    /// The next complete message, if one has arrived. Throws Error on invalid bytes.
    std::optional<Message> next();

  private:
    Descriptor socket_;
    SessionKeys keys_;
    std::size_t max_bytes_;
    std::uint64_t messages_sent_ = 0, messages_received_ = 0;
    std::string in_, out_;
    std::size_t consumed_ = 0, sent_ = 0;
};

}  // namespace gradtile
