#include <gradtile/train/parallel/process_group.h>

#include <sstream>

#include <nlohmann/json.hpp>

#include <gradtile/core/check.h>
#include <gradtile/core/text/json_value.h>
#include <gradtile/core/version.h>
#include <gradtile/train/parallel/internal/group_watch.h>
#include <gradtile/train/parallel/internal/start_deadline.h>
#include <gradtile/train/parallel/internal/mpi.h>
#include <gradtile/train/parallel/run_key.h>

namespace gradtile {
namespace {

using nlohmann::json;

constexpr std::size_t message_bytes_beyond_texts = 4096;
// A former run may be about to end.
constexpr auto max_wait_for_port = std::chrono::seconds(5);
// A wait that has a deadline of its own has ended by then.
constexpr double seconds_beyond_timeout = 1.0;

SteadyTime after(SteadyTime start, double seconds) {
    return start + std::chrono::duration_cast<SteadyClock::duration>(std::chrono::duration<double>(seconds));
}

/// Where rank 0 listens, and the secret of the run.
struct Meeting {
    std::string key = {};
    std::vector<Address> addresses = {};
};

std::string to_text(const Meeting& meeting) {
    std::ostringstream text;
    text << meeting.key;
    for (const Address& address : meeting.addresses) text << ' ' << address.host << ' ' << address.port;
    return text.str();
}
Meeting meeting_from(const std::string& text) {
    Meeting meeting;
    std::istringstream words(text);
    words >> meeting.key;
    for (Address address; words >> address.host >> address.port;) meeting.addresses.push_back(address);
    return meeting;
}

/// MPI knows these processes already, and tells where rank 0 listens.
bool is_told_by_mpi(const RankEnvironment& environment) {
    return environment.address.empty();
}
/// Nobody else's network is listened to when all are on this host. Empty: any.
std::string listening_host(const RankEnvironment& environment) {
    return are_all_here(environment) && !is_loopback(environment.address) ? "127.0.0.1" : environment.address;
}

void require_same_world(const RankEnvironment& environment) {
    const mpi::World world = mpi::start();
    check(world.rank == environment.rank && world.size == environment.size, "MPI calls this process rank ",
          world.rank, " of ", world.size, ", its environment rank ", environment.rank, " of ",
          environment.size, "; is it the mpirun of the MPI that gradtile was built with?");
}

/// Rank 0's: what MPI tells the others.
Meeting meeting_to_tell(const RankEnvironment& environment, int port) {
    Meeting meeting{.key = random_key()};
    if (are_all_here(environment)) {
        meeting.addresses = {{"127.0.0.1", port}};
    } else {
        for (const std::string& host : own_addresses()) meeting.addresses.push_back({host, port});
    }
    return meeting;
}

/// What the environment alone tells. Without a key in it, rank 0 leaves one where the others find it.
Meeting known_meeting(const RankEnvironment& environment) {
    const std::string host = listening_host(environment);
    Meeting meeting{.key = environment.key, .addresses = {{host, environment.port}}};
    // Rank 0 may not know that all are on this host, if it was told less than this process.
    if (host != environment.address) meeting.addresses.push_back({environment.address, environment.port});
    return meeting;
}

/// A process's way to the hub, and the hub when it is rank 0.
struct Connection {
    MessageStream stream;
    std::unique_ptr<ControlHub> hub = {};
    std::unique_ptr<KeyFile> key_file = {};  // until all have come
};

Connection open_hub(const RankEnvironment& environment, double timeout, SteadyTime deadline,
                    std::size_t max_bytes) {
    Listener listener = listen_at(listening_host(environment), environment.port,
                                  std::min(deadline, SteadyClock::now() + max_wait_for_port));
    std::string key = environment.key;
    std::unique_ptr<KeyFile> key_file;
    if (is_told_by_mpi(environment)) {
        const Meeting meeting = meeting_to_tell(environment, listener.port);
        mpi::broadcast(to_text(meeting));
        key = meeting.key;
    } else if (key.empty()) {
        key = random_key();
        key_file = std::make_unique<KeyFile>(listener.port, key);
    }
    auto [own, of_hub] = connected_pair();
    const SessionKeys keys{random_digest(), random_digest()};
    auto hub = std::make_unique<ControlHub>(
        std::move(listener), MessageStream(std::move(of_hub), keys.mirrored(), max_bytes),
        ControlHub::Options{.size = environment.size, .timeout = timeout, .version = version(), .key = key});
    return {MessageStream(std::move(own), keys, max_bytes), std::move(hub), std::move(key_file)};
}

/// Of another process: both sides have proved that they know the key.
Connection connect_to_hub(const RankEnvironment& environment, SteadyTime deadline, std::size_t max_bytes) {
    const Meeting meeting =
        is_told_by_mpi(environment) ? meeting_from(mpi::broadcast("")) : known_meeting(environment);
    const Identity identity{.rank = environment.rank, .size = environment.size, .version = version()};
    while (true) {
        Connected hub = connect_to_one_of(meeting.addresses, deadline);
        const auto key = [&] { return meeting.key.empty() ? KeyFile::read(hub.address.port) : meeting.key; };
        if (const auto keys = introduce(hub.socket, text_of(hub.address), identity, key, deadline))
            return {MessageStream(std::move(hub.socket), *keys, max_bytes)};
        // Rank 0 had too many strangers at its port, or it is about to end.
        check(SteadyClock::now() < deadline, "rank 0 at ", text_of(hub.address), " closed the connection");
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
}

/// Everything up to there within the timeout, MPI's start included.
Connection connect(const RankEnvironment& environment, const ProcessGroupOptions& options,
                   SteadyTime deadline) {
    StartDeadline start(after(deadline, seconds_beyond_timeout), [&options](const std::string& what) {
        if (options.on_loss)
            options.on_loss(concat("the processes did not meet within ", options.timeout, " s: ", what));
    });
    if (is_told_by_mpi(environment)) {
        start.waits_for("MPI_Init still waits for a process that mpirun has started");
        require_same_world(environment);
        start.waits_for("the MPI broadcast that tells where rank 0 listens still waits");
    } else {
        start.waits_for(concat("the look-up of ", environment.address, " still waits"));
    }
    const auto size = static_cast<std::size_t>(environment.size);
    const std::size_t max_bytes = size * max_exchanged_bytes + message_bytes_beyond_texts * size;
    return environment.rank == 0 ? open_hub(environment, options.timeout, deadline, max_bytes)
                                 : connect_to_hub(environment, deadline, max_bytes);
}

/// How `mine` differs from `root`, in words; empty: it does not.
std::string difference(const std::string& root, const std::string& mine, int rank) {
    if (root == mine) return "";
    const json a = *JsonValue::parse(root).value_or(JsonValue());
    const json b = *JsonValue::parse(mine).value_or(JsonValue());
    constexpr std::size_t max_shown = 200;
    const auto shown = [](const json& object, const std::string& name) {
        return object.contains(name) ? json_text(object[name]).substr(0, max_shown)
                                     : std::string("not there");
    };
    if (a.is_object() && b.is_object()) {
        json names = a;
        names.update(b);
        for (const auto& [name, value] : names.items())
            if (!a.contains(name) || !b.contains(name) || a[name] != b[name])
                return concat(name, " is ", shown(a, name), " on rank 0 and ", shown(b, name), " on rank ",
                              rank);
    }
    return concat("'", root.substr(0, max_shown), "' on rank 0 and '", mine.substr(0, max_shown),
                  "' on rank ", rank);
}

}  // namespace

ProcessGroup::ProcessGroup() = default;

ProcessGroup::ProcessGroup(const RankEnvironment& environment, ProcessGroupOptions options)
    : environment_(environment) {
    constexpr double longest = 1e7;
    check(options.timeout > 0.0 && options.timeout <= longest, "timeout: ", options.timeout,
          "; expected seconds, more than 0 and at most ", longest);
    if (is_alone()) return;
    require_key(environment);
    const SteadyTime deadline = after(SteadyClock::now(), options.timeout);
    Connection connection = connect(environment, options, deadline);
    // Rank 0 says first who is missing, and this process only if it does not.
    watch_ = std::make_unique<Watch>(environment, std::move(options), std::move(connection.stream),
                                     std::move(connection.hub), deadline + std::chrono::seconds(2));
}

ProcessGroup::~ProcessGroup() = default;

std::string ProcessGroup::broadcast(const std::string& text) {
    return watch_ ? watch_->exchange(is_root() ? text : "").front() : text;
}

std::vector<std::string> ProcessGroup::all_gather(const std::string& text) {
    return watch_ ? watch_->exchange(text) : std::vector{text};
}

void ProcessGroup::require_equal(const std::string& what, const std::string& text) {
    // Not everybody's text goes to everybody, but rank 0's and then who differs from it.
    const std::string of_root = broadcast(text);
    for (const std::string& found : all_gather(difference(of_root, text, rank())))
        check(found.empty(), what, " differs between ranks: ", found);
}

void ProcessGroup::at_step(std::int64_t step) {
    if (watch_) watch_->at_step(step);
}

ProcessGroup::Waiting ProcessGroup::waiting(const char* what) {
    return {watch_.get(), what};
}

ProcessGroup::Inspection ProcessGroup::inspect(Fault fault) {
    return {watch_.get(), std::move(fault)};
}

void ProcessGroup::leave() {
    if (watch_) watch_->leave();
}

bool ProcessGroup::fail(const std::string& message) noexcept {
    try {
        return !watch_ || watch_->fail(message);
    } catch (...) {  // its end is seen by its connection's
        return true;
    }
}

ProcessGroup::Waiting::Waiting(Watch* watch, const char* what)
    : watch_(watch != nullptr && watch->begin_waiting(what) ? watch : nullptr) {}

ProcessGroup::Waiting::~Waiting() {
    if (watch_ != nullptr) watch_->end_waiting();
}

ProcessGroup::Inspection::Inspection(Watch* watch, Fault fault) : watch_(watch) {
    if (watch_ != nullptr) watch_->begin_inspection(*this, std::move(fault));
}

ProcessGroup::Inspection::~Inspection() {
    if (watch_ != nullptr) watch_->end_inspection(*this);
}

}  // namespace gradtile
