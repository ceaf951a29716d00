#pragma once
/// What travels over the control connection once the handshake is done, and the stream that carries it. A
/// message is a sequence number, a length, the fields in fixed order, and a code that proves that the other
/// end wrote exactly this as its so-many-th message; anything else ends the connection.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <gradtile/train/parallel/internal/authentication.h>
#include <gradtile/train/parallel/internal/socket.h>

namespace gradtile {

struct Message {
    enum class Kind : std::uint8_t {
        welcome,    ///< all have come
        heartbeat,  ///< step; text: what is waited for, for `seconds`; from rank 0, before the welcome: who
                    ///< is missing
        contribution,  ///< to exchange number `count`: text
        result,        ///< of exchange number `count`: texts
        leave,
        goodbye,  ///< all have left
        failure,  ///< text: what the sender ends with, at step
        loss,     ///< of rank (-1: not of one alone), at step (-1: not known); text: who; texts: {why}
    };
    Kind kind = Kind::heartbeat;
    std::int64_t rank = 0;
    std::int64_t count = 0;
    std::int64_t step = -1;
    double seconds = 0.0;
    std::string text = {};
    std::vector<std::string> texts = {};
};

/// The longest text of an exchange.
constexpr std::size_t max_exchanged_bytes = std::size_t{1} << 20;

class MessageStream {
  public:
    /// Messages longer than `max_bytes` are refused before they are read.
    MessageStream(Descriptor socket, const SessionKeys& keys, std::size_t max_bytes);

    int descriptor() const { return *socket_; }

    void send(const Message& message);
    /// Writes what the connection takes now. False: it is broken.
    bool flush();
    bool has_unsent() const { return sent_ < out_.size(); }

    /// Reads what has come. False: the other side has closed; what came before can still be taken.
    bool receive();
    /// The next whole message. Throws Error when what came is none.
    std::optional<Message> next();

  private:
    Descriptor socket_;
    SessionKeys keys_;
    std::size_t max_bytes_;
    std::uint64_t messages_sent_ = 0, messages_taken_ = 0;
    std::string in_, out_;
    std::size_t taken_ = 0, sent_ = 0;
};

}  // namespace gradtile
