#pragma once
/// TCP sockets between processes: non-blocking, closed on exec, IPv4 and IPv6.
#include <chrono>
#include <string>
#include <vector>

#include <gradtile/core/descriptor.h>

namespace gradtile {

using SteadyClock = std::chrono::steady_clock;
using SteadyTime = SteadyClock::time_point;

/// Lets one thread wake another thread's poll().
class WakeUp {
  public:
    WakeUp();
    int descriptor() const { return *read_end_; }
    void notify() const noexcept;
    /// Resets the descriptor to not readable.
    void clear() const noexcept;

  private:
    Descriptor read_end_, write_end_;
};

struct Listener {
    Descriptor socket;
    int port = 0;
};
/// Whether `address` is a loopback address: localhost, 127.0.0.1, ::1.
bool is_loopback(const std::string& address);
/// Listens at a port (0: any free port): on the loopback interface when `address` is a loopback address; on
/// the interface with that address when `address` is numeric; otherwise on all interfaces, because other
/// hosts may resolve the name differently or reach this host through a translated address. Retries a port in
/// use until the deadline, because its owner may be about to end.
Listener listen_at(const std::string& address, int port, SteadyTime deadline);
/// The next waiting connection; an empty Descriptor when none waits.
Descriptor accept_from(const Listener& listener);

/// Both ends of a connection inside this process.
std::pair<Descriptor, Descriptor> connected_pair();

struct Address {
    std::string host;
    int port = 0;
};
/// "node0 port 29500"
std::string text_of(const Address& address);
/// A connection, and the address that answered.
struct Connected {
    Descriptor socket;
    Address address;
};
/// Tries the addresses of a rank in turn until one answers. At the deadline throws Error with the last
/// attempt's problem.
Connected connect_to_one_of(const std::vector<Address>& addresses, SteadyTime deadline, int rank = 0);

/// Addresses under which other hosts may reach this one: its interfaces' addresses and its name.
std::vector<std::string> local_addresses();

}  // namespace gradtile
