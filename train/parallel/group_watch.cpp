#include <gradtile/train/parallel/internal/group_watch.h>

#include <poll.h>

#include <utility>

#include <gradtile/core/check.h>
#include <gradtile/core/start_thread.h>

namespace gradtile {
namespace {

using Seconds = std::chrono::duration<double>;
using std::chrono::milliseconds;

// Upper bound for the hub's failure_grace + max_final_send_time.
constexpr auto max_failure_time = std::chrono::seconds(3);
// An interrupted main thread has this much more time than the launcher gives the processes that report a
// loss.
constexpr auto interrupt_grace = Seconds(10.0);

std::string step_description(std::int64_t step) {
    return step < 0 ? "before the first step" : concat("at step ", step);
}

}  // namespace

ProcessGroup::Watch::Watch(const RankEnvironment& environment, ProcessGroupOptions options,
                           const std::atomic<bool>& survives, MessageStream stream,
                           std::unique_ptr<ControlHub> hub, SteadyTime deadline)
    : rank_(environment.rank),
      options_(std::move(options)),
      survives_(survives),
      hub_(std::move(hub)),
      stream_(std::move(stream)),
      last_message_(SteadyClock::now()),
      next_heartbeat_(last_message_) {
    thread_ = start_thread("the heartbeat", [this] { run(); });
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline, [&] { return complete_ || lost_; });
    if (complete_ && !lost_) return;
    const Loss loss = lost_ ? *lost_
                            : Loss{.line = concat(missing_.empty() ? "others" : missing_,
                                                  " did not connect within ", options_.timeout, " s")};
    stop_ = true;
    lock.unlock();
    wake_.notify();
    thread_.join();
    throw RankLost(concat("start failed: ", loss.line), loss.rank, RankLost::Phase::start);
}

ProcessGroup::Watch::~Watch() {
    {
        const std::scoped_lock lock(mutex_);
        stop_ = true;
        changed_.notify_all();
    }
    wake_.notify();
    thread_.join();
}

// ---- Called by the main thread ----

void ProcessGroup::Watch::queue(Message message) {
    queued_.push_back(std::move(message));
    wake_.notify();
}

template <class Done>
void ProcessGroup::Watch::wait_until(std::unique_lock<std::mutex>& lock, Done done) {
    changed_.wait(lock, [&] { return done() || lost_; });
    if (!done()) throw_error(*lost_);
}

void ProcessGroup::Watch::throw_error(const Loss& loss) {
    if (loss.failed) throw Error(loss.line);
    throw RankLost(loss.line, loss.rank);
}

std::vector<std::string> ProcessGroup::Watch::exchange(const std::string& text) {
    check(text.size() <= max_exchanged_bytes, "process group: a text of ", text.size(),
          " bytes; expected at most ", max_exchanged_bytes);
    const bool waits = begin_waiting("an exchange of settings");
    std::unique_lock lock(mutex_);
    result_.reset();
    queue({.kind = Message::Kind::contribution, .count = exchange_, .text = text});
    wait_until(lock, [&] { return result_.has_value(); });
    ++exchange_;
    std::vector<std::string> texts = std::move(*result_);
    lock.unlock();
    if (waits) end_waiting();
    return texts;
}

void ProcessGroup::Watch::report_step(std::int64_t step) {
    const std::scoped_lock lock(mutex_);
    step_ = step;
}

bool ProcessGroup::Watch::begin_waiting(const char* what) {
    const std::scoped_lock lock(mutex_);
    if (!waiting_for_.empty()) return false;
    waiting_for_ = what;
    waiting_since_ = SteadyClock::now();
    return true;
}

void ProcessGroup::Watch::end_waiting() {
    const std::scoped_lock lock(mutex_);
    waiting_for_.clear();
}

void ProcessGroup::Watch::begin_inspection(const Inspection& inspection, Inspector inspector) {
    const std::scoped_lock lock(inspectors_mutex_);
    inspectors_[&inspection] = std::move(inspector);
}

void ProcessGroup::Watch::end_inspection(const Inspection& inspection) {
    const std::scoped_lock lock(inspectors_mutex_);
    inspectors_.erase(&inspection);
}

void ProcessGroup::Watch::throw_loss() {
    constexpr auto grace = Seconds(5.0);  // a hanging process is reported at most this long after the timeout
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, Seconds(options_.timeout) + grace, [&] { return lost_.has_value(); });
    if (lost_) throw_error(*lost_);
    throw RankLost("the connection to another process has broken", -1);
}

void ProcessGroup::Watch::leave() {
    begin_waiting("the end of the run");
    std::unique_lock lock(mutex_);
    queue({.kind = Message::Kind::leave});
    wait_until(lock, [&] { return left_; });
}

bool ProcessGroup::Watch::fail(const std::string& message) {
    std::unique_lock lock(mutex_);
    if (left_) return rank_ == 0;  // errors after the run's end occur in all processes
    if (lost_ || own_failure_) return !printed_by_other_rank_;
    own_failure_ = message.substr(0, max_exchanged_bytes);
    queue({.kind = Message::Kind::failure, .step = step_, .text = *own_failure_});
    changed_.wait_for(lock, max_failure_time, [&] { return lost_.has_value(); });
    return !printed_by_other_rank_;
}

// ---- Called by the watch thread ----

void ProcessGroup::Watch::run() {
    while (exchange_messages()) {
        const auto until_heartbeat =
            std::chrono::ceil<milliseconds>(next_heartbeat_ - SteadyClock::now()).count();
        pollfd watched[2] = {
            {wake_.descriptor(), POLLIN, 0},
            {stream_.descriptor(), static_cast<short>(POLLIN | (stream_.has_unsent() ? POLLOUT : 0)), 0}};
        ::poll(watched, 2, static_cast<int>(std::max<std::int64_t>(until_heartbeat, 0)));
        wake_.clear();
    }
    if (was_interrupted_) end_if_stuck();
}

/// Sends queued messages and handles received ones. Returns false when the connection is no longer needed.
bool ProcessGroup::Watch::exchange_messages() {
    std::vector<Message> queued;
    {
        const std::scoped_lock lock(mutex_);
        if (stop_ || lost_ || left_) return false;
        queued.swap(queued_);
    }
    for (const Message& message : queued) stream_.send(message);
    if (SteadyClock::now() >= next_heartbeat_) {
        check_for_fault();
        send_heartbeat();
    }
    const bool sent = stream_.flush(), open = stream_.receive();
    try {
        while (const std::optional<Message> message = stream_.next()) handle(*message);
    } catch (const Error& error) {
        handle_loss_of_root(concat("it sent ", error.what()));
    }
    if (!open || !sent) handle_loss_of_root("its connection closed");
    if (SteadyClock::now() - last_message_ >= Seconds(options_.timeout))
        handle_loss_of_root(concat("it was silent for ", options_.timeout, " s"));
    return true;
}

void ProcessGroup::Watch::send_heartbeat() {
    next_heartbeat_ = SteadyClock::now() +
                      std::chrono::duration_cast<SteadyClock::duration>(heartbeat_interval(options_.timeout));
    Message heartbeat{.kind = Message::Kind::heartbeat};
    {
        const std::scoped_lock lock(mutex_);
        heartbeat.step = step_;
        heartbeat.text = waiting_for_;
        if (!waiting_for_.empty()) heartbeat.seconds = Seconds(SteadyClock::now() - waiting_since_).count();
    }
    stream_.send(heartbeat);
}

/// Sends the first fault once; rank 0 then reports it to every process, this one included.
void ProcessGroup::Watch::check_for_fault() {
    const std::scoped_lock lock(inspectors_mutex_);
    for (const auto& [inspection, inspector] : inspectors_) {
        const std::optional<std::string> found = inspector.probe();
        if (!found) continue;
        // A lost process may break NCCL's connections, too; its loss is known at the next heartbeat.
        if (survives_ && !std::exchange(has_fault_, true)) return;
        const std::scoped_lock state(mutex_);
        stream_.send(
            {.kind = Message::Kind::failure, .step = step_, .text = found->substr(0, max_exchanged_bytes)});
        inspectors_.clear();
        return;
    }
}

/// Returns whether there was something to interrupt.
bool ProcessGroup::Watch::interrupt_main_thread() {
    const std::scoped_lock lock(inspectors_mutex_);
    bool found = false;
    for (const auto& [inspection, inspector] : inspectors_)
        if (inspector.interrupt) {
            inspector.interrupt();
            found = true;
        }
    return found;
}

/// Ends this process unless the main thread leaves the group within a time.
void ProcessGroup::Watch::end_if_stuck() {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, Seconds(options_.timeout) + interrupt_grace, [&] { return stop_; })) return;
    lock.unlock();
    if (options_.on_loss)
        options_.on_loss(concat(lost_->line, "; the main thread's wait could not be ended"));
}

void ProcessGroup::Watch::handle(const Message& message) {
    last_message_ = SteadyClock::now();
    if (message.kind == Message::Kind::loss) return handle_loss(message);
    const std::scoped_lock lock(mutex_);
    switch (message.kind) {
        case Message::Kind::all_connected:
            complete_ = true;
            break;
        case Message::Kind::heartbeat:
            missing_ = message.text;
            break;
        case Message::Kind::result:
            result_ = message.texts;
            break;
        case Message::Kind::all_left:
            left_ = true;
            break;
        case Message::Kind::contribution:
        case Message::Kind::leave:
        case Message::Kind::failure:
        case Message::Kind::loss:
            throw Error("a message that rank 0 may not send");
    }
    changed_.notify_all();
}

/// "rank 2 was lost at step 41 (its connection closed); rank 0 waited for it in the all-reduce"
void ProcessGroup::Watch::handle_loss(const Message& loss) {
    std::string line = loss.text;
    const bool failed = loss.text.ends_with("failed");
    bool known = false;
    {
        const std::scoped_lock lock(mutex_);
        if (lost_ || left_) return;  // only the first loss is reported: later ones follow from it
        const std::string why = loss.texts.empty() ? "" : loss.texts[0];
        if (!why.empty()) {
            // All processes are at the same step, so this process's step stands in for an unknown one.
            line += concat(" ", step_description(loss.step < 0 && !failed ? step_ : loss.step));
            line += failed ? concat(": ", why) : concat(" (", why, ")");
        }
        if (complete_ && loss.rank != rank_ && !waiting_for_.empty())
            line +=
                concat("; rank ", rank_, " waited ", loss.texts.empty() ? "in " : "for it in ", waiting_for_);
        // The main thread already ends this process with the error, either alone or together with all other
        // processes.
        known = own_failure_ && failed && (loss.rank == rank_ || why == *own_failure_);
        printed_by_other_rank_ = known && loss.rank != rank_;
    }
    record_loss({std::move(line), static_cast<int>(loss.rank), failed}, !known);
}

void ProcessGroup::Watch::handle_loss_of_root(const std::string& why) {
    handle_loss({.kind = Message::Kind::loss, .rank = 0, .text = "rank 0 was lost", .texts = {why}});
}

/// Records the loss and ends the message loop.
void ProcessGroup::Watch::record_loss(Loss loss, bool notify) {
    {
        const std::scoped_lock lock(mutex_);
        if (lost_ || left_) return;
        // While processes connect, the constructor throws the line instead.
        notify = notify && complete_ && (loss.failed || !survives_);
    }
    // Called before lost_ is set: the callback may end the process, and the main thread must not print the
    // line a second time.
    if (notify && options_.on_loss) options_.on_loss(loss.line);
    if (survives_ && !loss.failed) was_interrupted_ = interrupt_main_thread();
    const std::scoped_lock lock(mutex_);
    lost_ = std::move(loss);
    changed_.notify_all();
    loss_reported_.notify();
}

}  // namespace gradtile
