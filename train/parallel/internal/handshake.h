#pragma once
/// Handshake on a control connection: both ends prove that they know the run's key, without sending it.
///
///     process -> rank 0   Greeting    version, rank, size, a random number
///     rank 0 -> process   Challenge   another random number
///     process -> rank 0   Proof       HMAC(key, "process" | Greeting | Challenge)
///     rank 0 -> process   Verdict     accepted or the reason of refusal,
///                                     HMAC(key, "rank 0" | Greeting | Challenge | Verdict)
///
/// All messages have a fixed size: nothing is parsed before the proof is checked. Both random numbers are new
/// for each connection, so replayed messages prove nothing. The names inside the codes prevent one end's code
/// from being accepted as the other's. The keys that authenticate later messages are HMACs of the same form.
#include <functional>
#include <optional>
#include <type_traits>

#include <gradtile/train/parallel/internal/authentication.h>
#include <gradtile/train/parallel/internal/socket.h>

namespace gradtile {

/// The rank, world size and version that a process claims.
struct Identity {
    std::int64_t rank = 0, size = 1;
    std::string version;
};

struct Greeting {
    std::array<char, 8> magic;
    std::array<char, 24> version;  // padded with zeros
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
        refused,    ///< the process is refused for the reason in `reason`
        wrong_key,  ///< the verdict's code is zero, because rank 0 computes no HMAC for a process without the
                    ///< key
    };
    Kind kind;
    std::array<char, 220> reason;  // padded with zeros
    Digest code;
};
constexpr std::array<char, 8> handshake_magic = {'G', 'T', 'C', 'T', 'R', 'L', '0', '2'};

Greeting make_greeting(const Identity& identity);
Challenge make_challenge();
Identity identity_of(const Greeting& greeting);

/// One connection's HMACs: proof, verdict and both session keys.
class Handshake {
  public:
    Handshake(std::string key, const Greeting& greeting, const Challenge& challenge);
    Digest proof() const { return code_of("process", ""); }
    /// A verdict with its code. A `reason` that is too long is truncated.
    Verdict verdict(Verdict::Kind kind, const std::string& reason = "") const;
    bool is_authentic(const Verdict& verdict) const;
    /// The process's keys; rank 0 uses keys().mirrored().
    SessionKeys keys() const {
        return {code_of("messages to rank 0", ""), code_of("messages of rank 0", "")};
    }

  private:
    Digest code_of(std::string_view name, std::string_view more) const;
    std::string key_, opening_;
};

/// The process's side of the handshake, on a new connection to rank 0 at `place`. The function `key` returns
/// the run's key and is called once rank 0 has answered. Returns nothing when the connection is closed before
/// the verdict; another attempt may succeed. Throws Error when rank 0 refuses, when the other end does not
/// know the key, and at the deadline.
std::optional<SessionKeys> authenticate_to_root(const Descriptor& socket, const std::string& place,
                                                const Identity& identity,
                                                const std::function<std::string()>& key, SteadyTime deadline);

/// A handshake message's bytes, as sent.
template <class T>
std::string_view wire_bytes(const T& message) {
    static_assert(std::has_unique_object_representations_v<T>, "padding must not be sent");
    return {reinterpret_cast<const char*>(&message), sizeof message};
}

}  // namespace gradtile
