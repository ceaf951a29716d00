#pragma once
/// A program on a pseudo-terminal, and the screen that a terminal would show.
#include <fcntl.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <gradtile/core/check.h>
#include <gradtile/core/text/utf8.h>

#include "program.h"

#include <support/signal_process.h>

namespace gradtile::test {

/// The text on a terminal that is `columns` wide, including lines that have scrolled out of its window.
/// Screen knows the few control sequences that the program may use; unknown() counts all others.
class Screen {
  public:
    explicit Screen(std::size_t columns) : columns_(columns) {}

    void put(const std::string& text) {
        for (std::size_t position = 0; position < text.size();) {
            const std::size_t length =
                text[position] == '\x1b' ? control(text, position) : character(text, position);
            position += length;
        }
    }
    /// The lines, without blanks at their ends.
    std::vector<std::string> lines() const {
        std::vector<std::string> result;
        for (const auto& row : rows_) {
            std::string line;
            for (const std::string& cell : row) line += cell;
            line.erase(line.find_last_not_of(' ') + 1);
            result.push_back(line);
        }
        while (!result.empty() && result.back().empty()) result.pop_back();
        return result;
    }
    std::size_t column() const { return column_; }
    std::size_t widest() const { return widest_; }
    std::int64_t unknown() const { return unknown_; }

  private:
    std::size_t character(const std::string& text, std::size_t position) {
        const CodePoint point = decode_utf8(text, position);
        check(point.length > 0, "the output is not UTF-8");
        const auto length = static_cast<std::size_t>(point.length);
        if (text[position] == '\r') {
            column_ = 0;
        } else if (text[position] == '\n') {
            ++row_;
        } else {
            if (column_ == columns_) {  // the terminal wraps the line
                column_ = 0;
                ++row_;
            }
            cell() = text.substr(position, length);
            widest_ = std::max(widest_, ++column_);
        }
        if (rows_.size() <= row_) rows_.resize(row_ + 1);
        return length;
    }
    std::size_t control(const std::string& text, std::size_t position) {
        std::size_t end = position + 1;
        if (end < text.size() && text[end] == '[') ++end;
        const std::size_t digits = end;
        while (end < text.size() && text[end] >= '0' && text[end] <= '9') ++end;
        const std::size_t number =
            end > digits ? static_cast<std::size_t>(std::stoi(text.substr(digits, end - digits))) : 0;
        const char command = end < text.size() ? text[end] : '\0';
        if (command == 'A') {
            row_ -= std::min(row_, number);
        } else if (command == 'K' && number == 0) {
            clear_line();
        } else if (command == 'J' && number == 0) {
            clear_line();
            rows_.resize(row_ + 1);
        } else {
            ++unknown_;
        }
        return end + 1 - position;
    }
    void clear_line() {
        if (rows_.size() <= row_) rows_.resize(row_ + 1);
        if (rows_[row_].size() > column_) rows_[row_].resize(column_);
    }
    std::string& cell() {
        if (rows_.size() <= row_) rows_.resize(row_ + 1);
        if (rows_[row_].size() <= column_) rows_[row_].resize(column_ + 1, " ");
        return rows_[row_][column_];
    }

    std::size_t columns_;
    std::vector<std::vector<std::string>> rows_{1};
    std::size_t row_ = 0, column_ = 0, widest_ = 0;
    std::int64_t unknown_ = 0;
};

/// Runs the program in its own session, whose terminal is a pseudo-terminal.
class TerminalProgram {
  public:
    using Environment = std::vector<std::pair<std::string, std::string>>;
    TerminalProgram(const Arguments& arguments, unsigned short columns, unsigned short rows,
                    const Environment& environment = {}, const std::string& program = GRADTILE_PROGRAM) {
        winsize size{.ws_row = rows, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
        char name[64];
        process_ = ::forkpty(&terminal_, name, nullptr, &size);
        check(process_ >= 0, "cannot fork");
        if (process_ == 0) execute(program, arguments, environment);
        device_ = name;
        reader_ = std::thread([this] { read(); });
    }
    ~TerminalProgram() {
        if (!ended_) ::kill(process_, SIGKILL);
        wait();
        if (terminal_ >= 0) ::close(terminal_);
    }
    TerminalProgram(const TerminalProgram&) = delete;
    TerminalProgram& operator=(const TerminalProgram&) = delete;

    std::string output() const {
        const std::lock_guard lock(mutex_);
        return output_;
    }
    /// Waits until the output contains `text` after `from`; returns where it ends.
    std::size_t wait_for(const std::string& text, std::size_t from = 0) const {
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(100);
        for (;;) {
            const std::size_t found = output().find(text, from);
            if (found != std::string::npos) return found + text.size();
            check(std::chrono::steady_clock::now() < deadline, "waited too long for '", text,
                  "' in: ", output());
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
    }
    void send(int signal) const { ::kill(process_, signal); }
    void type(const std::string& keys) const {
        check(::write(terminal_, keys.data(), keys.size()) == static_cast<ssize_t>(keys.size()),
              "cannot type");
    }
    /// Writes to the terminal as another program would.
    void write_as_other(const std::string& text) const {
        const int other = ::open(device_.c_str(), O_WRONLY | O_NOCTTY);
        check(other >= 0 && ::write(other, text.data(), text.size()) == static_cast<ssize_t>(text.size()),
              "cannot write to ", device_);
        ::close(other);
    }
    void resize(unsigned short columns, unsigned short rows) const {
        const winsize size{.ws_row = rows, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
        check(::ioctl(terminal_, TIOCSWINSZ, &size) == 0, "cannot resize");
    }
    void close_terminal() { ::close(std::exchange(terminal_, -1)); }
    /// Returns the exit code, or -1 after a signal. All output has then been read.
    int wait() {
        if (!ended_) ::waitpid(process_, &status_, 0);
        ended_ = true;
        if (reader_.joinable()) reader_.join();
        return WIFEXITED(status_) ? WEXITSTATUS(status_) : -1;
    }

  private:
    [[noreturn]] static void execute(const std::string& program, const Arguments& arguments,
                                     const Environment& environment) {
        reset_ignored_signals();
        for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) ::unsetenv(name);
        ::setenv("TERM", "xterm", 1);
        ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
        for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
        std::vector<char*> argv{const_cast<char*>(program.c_str())};
        for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
        argv.push_back(nullptr);
        ::execv(argv[0], argv.data());
        ::_exit(126);
    }
    void read() {
        char bytes[4096];
        for (ssize_t n = 0; (n = ::read(terminal_, bytes, sizeof bytes)) > 0;) {  // EIO at the end
            const std::lock_guard lock(mutex_);
            output_.append(bytes, static_cast<std::size_t>(n));
        }
    }

    pid_t process_ = -1;
    int terminal_ = -1, status_ = 0;
    bool ended_ = false;
    std::string device_, output_;
    mutable std::mutex mutex_;
    std::thread reader_;
};

}  // namespace gradtile::test
