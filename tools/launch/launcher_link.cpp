#include <gradtile/tools/launch/launcher_link.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <sstream>

#include <gradtile/core/os/internal/operating_system.h>
#include <gradtile/train/parallel/run_key.h>

namespace gradtile::cli {

std::string to_text(const LossReport& report) {
    constexpr std::size_t max_line = 1000;  // a socket's buffer holds the whole message
    std::string line = report.line.substr(0, max_line);
    std::ranges::replace(line, '\n', ' ');
    return concat(report.phase == RankLost::Phase::start ? "unmet " : "lost ", report.rank, ' ', report.step,
                  ' ', line);
}

LossReport loss_report_from(const std::string& text) {
    std::istringstream words(text);
    std::string kind;
    LossReport report;
    words >> kind >> report.rank >> report.step;
    check((kind == "lost" || kind == "unmet") && !words.fail(), "a rank sent '", text, "'; expected a loss");
    if (kind == "unmet") report.phase = RankLost::Phase::start;
    words.get();
    std::getline(words, report.line);
    return report;
}

void LineLink::send(const std::string& line) const {
    const std::string text = line + '\n';
    static_cast<void>(os::send(*socket_, text.data(), text.size()));
}

/// Returns false when the other end is closed.
bool LineLink::receive() {
    std::array<char, 1024> bytes;
    for (;;) {
        const ssize_t count = ::recv(*socket_, bytes.data(), bytes.size(), 0);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
        received_.append(bytes.data(), static_cast<std::size_t>(count));
    }
}

std::optional<std::string> LineLink::next() {
    if (*socket_ < 0) return std::nullopt;
    receive();
    const std::size_t end = received_.find('\n');
    if (end == std::string::npos) return std::nullopt;
    std::string line = received_.substr(0, end);
    received_.erase(0, end + 1);
    return line;
}

std::string LineLink::wait_for_next() {
    for (;;) {
        const bool open = receive();
        if (std::optional<std::string> line = next()) return *line;
        check(open, "the launcher ended");
        pollfd waiting{*socket_, POLLIN, 0};
        ::poll(&waiting, 1, -1);
    }
}

std::shared_ptr<LauncherLink> LauncherLink::from_environment() {
    const char* const number = std::getenv(link_variable);
    if (number == nullptr) return nullptr;
    Descriptor socket(std::atoi(number));
    check(*socket > 2 && ::fcntl(*socket, F_SETFD, FD_CLOEXEC) == 0, link_variable, ": '", number,
          "' is no descriptor of this process; expected the launcher to set it");
    return std::shared_ptr<LauncherLink>(
        new LauncherLink(std::move(socket), std::getenv(replaces_variable) != nullptr));
}

RankEnvironment LauncherLink::next_environment(RankEnvironment environment, const RankLost& loss,
                                               std::int64_t step) {
    link_.send(to_text({loss.rank(), step, loss.phase(), loss.what()}));
    std::istringstream words(link_.wait_for_next());
    words >> environment.port >> environment.key;
    check_run_key(environment.key);
    return environment;
}

}  // namespace gradtile::cli
