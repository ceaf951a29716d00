#include <gradtile/parallel/process_group.h>

#include <random>
#include <sstream>

#include <nlohmann/json.hpp>

#include <gradtile/core/check.h>
#include <gradtile/core/json_value.h>
#include <gradtile/parallel/group_watch.h>
#include <gradtile/parallel/mpi.h>

namespace gradtile {
namespace {

using nlohmann::json;

constexpr std::size_t message_bytes_beyond_texts = 4096;

SteadyTime after(SteadyTime start, double seconds) {
    return start + std::chrono::duration_cast<SteadyClock::duration>(std::chrono::duration<double>(seconds));
}

/// Where rank 0 listens, and what tells this run from others.
struct Meeting {
    std::string run = {};
    std::vector<Address> addresses = {};
};

std::string to_text(const Meeting& meeting) {
    std::ostringstream text;
    text << meeting.run;
    for (const Address& address : meeting.addresses) text << ' ' << address.host << ' ' << address.port;
    return text.str();
}
Meeting meeting_from(const std::string& text) {
    Meeting meeting;
    std::istringstream words(text);
    words >> meeting.run;
    for (Address address; words >> address.host >> address.port;) meeting.addresses.push_back(address);
    return meeting;
}

Meeting choose_meeting(const RankEnvironment& environment, int port) {
    Meeting meeting{.run = std::to_string(std::random_device{}())};
    if (environment.local_size == environment.size) {
        meeting.addresses = {{"127.0.0.1", port}};
    } else {
        for (const std::string& host : own_addresses()) meeting.addresses.push_back({host, port});
    }
    return meeting;
}

/// MPI knows these processes already, and tells where rank 0 listens.
bool is_told_by_mpi(const RankEnvironment& environment) {
    return environment.address.empty();
}

void require_same_world(const RankEnvironment& environment) {
    const mpi::World world = mpi::start();
    check(world.rank == environment.rank && world.size == environment.size, "MPI calls this process rank ",
          world.rank, " of ", world.size, ", its environment rank ", environment.rank, " of ",
          environment.size, "; is it the mpirun of the MPI that gradtile was built with?");
}

std::unique_ptr<ControlHub> make_hub(const RankEnvironment& environment, double timeout, Descriptor own,
                                     std::string& run) {
    const bool alone_on_host = environment.local_size == environment.size && is_told_by_mpi(environment);
    Listener listener = listen_at(alone_on_host ? "localhost" : environment.address, environment.port,
                                  SteadyClock::now() + std::chrono::seconds(5));
    if (is_told_by_mpi(environment)) {
        const Meeting meeting = choose_meeting(environment, listener.port);
        mpi::broadcast(to_text(meeting));
        run = meeting.run;
    }
    return std::make_unique<ControlHub>(
        std::move(listener), std::move(own),
        ControlHub::Options{
            .size = environment.size, .timeout = timeout, .version = GRADTILE_VERSION, .run = run});
}

Descriptor connect_to_hub(const RankEnvironment& environment, SteadyTime deadline, std::string& run) {
    Meeting meeting{.addresses = {{environment.address, environment.port}}};
    if (is_told_by_mpi(environment)) meeting = meeting_from(mpi::broadcast(""));
    run = meeting.run;
    return connect_to_one_of(meeting.addresses, deadline);
}

/// How `mine` differs from `root`, in words; empty: it does not.
std::string difference(const std::string& root, const std::string& mine, int rank) {
    if (root == mine) return "";
    const json a = *JsonValue::parse(root).value_or(JsonValue());
    const json b = *JsonValue::parse(mine).value_or(JsonValue());
    const auto shown = [](const json& object, const std::string& name) {
        return object.contains(name) ? json_text(object[name]) : std::string("not there");
    };
    if (a.is_object() && b.is_object()) {
        json names = a;
        names.update(b);
        for (const auto& [name, value] : names.items())
            if (!a.contains(name) || !b.contains(name) || a[name] != b[name])
                return concat(name, " is ", shown(a, name), " on rank 0 and ", shown(b, name), " on rank ",
                              rank);
    }
    constexpr std::size_t most_shown = 100;
    return concat("'", root.substr(0, most_shown), "' on rank 0 and '", mine.substr(0, most_shown),
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
    if (is_told_by_mpi(environment)) require_same_world(environment);
    const SteadyTime deadline = after(SteadyClock::now(), options.timeout);
    const auto size = static_cast<std::size_t>(environment.size);
    std::string run;
    std::unique_ptr<ControlHub> hub;
    auto [own, of_hub] = connected_pair();
    if (is_root()) {
        hub = make_hub(environment, options.timeout, std::move(of_hub), run);
    } else {
        own = connect_to_hub(environment, deadline, run);
    }
    MessageStream stream(std::move(own), size * most_exchanged_bytes + message_bytes_beyond_texts * size);
    stream.send({.kind = Message::Kind::hello,
                 .rank = rank(),
                 .count = environment.size,
                 .text = GRADTILE_VERSION,
                 .texts = {run}});
    // Rank 0 says first who is missing, and this process only if it does not.
    watch_ = std::make_unique<Watch>(environment, std::move(options), std::move(stream), std::move(hub),
                                     deadline + std::chrono::seconds(2));
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
