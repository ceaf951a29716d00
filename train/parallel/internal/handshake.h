#pragma once
/// How a control connection begins: both ends prove that they know the run's key, without sending it.
///
///     process -> rank 0   Greeting    version, rank, size, a random number
///     rank 0 -> process   Challenge   another random number
///     process -> rank 0   Proof       HMAC(key, "process" | Greeting | Challenge)
///     rank 0 -> process   Verdict     yes, or why not, and HMAC(key, "rank 0" | Greeting | Challenge | ...)
///
/// All are of fixed size: nothing is parsed before the proof is checked. Both random numbers are new for each
/// connection, so no message of another one proves anything; the names inside the codes keep one end's code
/// from serving as the other's. The keys that authenticate what follows are made in the same way.
#include <functional>
#include <optional>
#include <type_traits>

#include <gradtile/train/parallel/internal/authentication.h>
#include <gradtile/train/parallel/internal/socket.h>

namespace gradtile {

/// Who a process claims to be.
struct Identity {
    std::int64_t rank = 0, size = 1;
    std::string version;
};

struct Greeting {
    std::array<char, 8> magic;
    std::array<char, 24> version;  // filled up with zeros
    std::uint32_t rank, size;
    Digest random;
};
struct Challenge {
    std::array<char, 8> magic;
    Digest random;
};
struct Proof {
    Digest code;
};
struct Verdict {
    enum class Kind : std::uint32_t {
        accepted,
        refused,    ///< the reason follows
        wrong_key,  ///< its code is no code: rank 0 shows nothing to a process without the key
    };
    Kind kind;
    std::array<char, 220> reason;  // filled up with zeros
    Digest code;
};
constexpr std::array<char, 8> handshake_magic = {'G', 'T', 'C', 'T', 'R', 'L', '0', '2'};

Greeting make_greeting(const Identity& identity);
Challenge make_challenge();
Identity identity_of(const Greeting& greeting);

/// The four codes of one connection.
class Handshake {
  public:
    Handshake(std::string key, const Greeting& greeting, const Challenge& challenge);
    Digest proof() const { return code_of("process", ""); }
    /// A verdict with its code; `reason` is cut when it is too long.
    Verdict verdict(Verdict::Kind kind, const std::string& reason = "") const;
    bool is_authentic(const Verdict& verdict) const;
    /// Of the process; rank 0's are these, mirrored.
    SessionKeys keys() const {
        return {code_of("messages to rank 0", ""), code_of("messages of rank 0", "")};
    }

  private:
    Digest code_of(std::string_view name, std::string_view more) const;
    std::string key_, opening_;
};

/// The process's side of it, on a new connection to rank 0 at `place`. `key` is called once rank 0 has
/// answered. Empty: the connection was closed before the verdict; another attempt may succeed. Throws Error
/// when rank 0 refuses, when it cannot prove that it is rank 0, and at the deadline.
std::optional<SessionKeys> introduce(const Descriptor& socket, const std::string& place,
                                     const Identity& identity, const std::function<std::string()>& key,
                                     SteadyTime deadline);

/// A message of the handshake as the bytes that travel.
template <class T>
std::string_view wire_bytes(const T& message) {
    static_assert(std::has_unique_object_representations_v<T>, "no padding travels");
    return {reinterpret_cast<const char*>(&message), sizeof message};
}

}  // namespace gradtile
