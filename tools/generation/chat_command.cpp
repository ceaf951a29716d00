// gradtile chat: a conversation with a trained model in a terminal, or with lines from standard input.
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iostream>
#include <utility>

#include <gradtile/core/text/message.h>
#include <gradtile/core/text/utf8.h>
#include <gradtile/tools/command_line/commands.h>
#include <gradtile/tools/command_line/model_argument.h>
#include <gradtile/tools/command_line/standard_streams.h>
#include <gradtile/tools/command_line/usage_error.h>
#include <gradtile/tools/generation/chat_session.h>
#include <gradtile/tools/generation/sampling_flags.h>
#include <gradtile/tools/launch/interrupts.h>

namespace gradtile::cli {
namespace {

struct Flags {
    ModelArgument model;
    ChatOptions options{.sampling = {.tokens = 1000}};
};

constexpr std::size_t max_line_bytes = std::size_t{1} << 26;

/// Reads standard input line by line, until its end or Ctrl-C.
class InputLines {
  public:
    explicit InputLines(Interrupts& interrupts) : interrupts_(interrupts) {}

    /// Returns the next line without its end; nullopt when input ends and after Ctrl-C.
    std::optional<std::string> next() {
        while (!buffer_.contains_line()) {
            if (at_end_) return without_mark(buffer_.take_rest());
            if (!wait()) return std::nullopt;
            read_more();
        }
        return without_mark(buffer_.take_line());
    }

  private:
    struct Buffer {
        std::string bytes;
        std::size_t searched = 0;

        bool contains_line() {
            searched = bytes.find('\n', searched);
            if (searched != std::string::npos) return true;
            searched = bytes.size();
            return false;
        }
        std::string take_line() {
            std::string line = bytes.substr(0, searched);
            bytes.erase(0, searched + 1);
            searched = 0;
            if (line.ends_with('\r')) line.pop_back();
            return line;
        }
        std::optional<std::string> take_rest() {
            if (bytes.empty()) return std::nullopt;
            searched = 0;
            return std::exchange(bytes, {});
        }
    };

    /// Removes a byte order mark from the first line.
    std::optional<std::string> without_mark(std::optional<std::string> line) {
        if (std::exchange(is_first_, false) && line && line->starts_with(utf8_byte_order_mark))
            line->erase(0, utf8_byte_order_mark.size());
        return line;
    }

    /// Returns false after Ctrl-C.
    bool wait() {
        pollfd sources[] = {{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0},
                            {.fd = interrupts_.descriptor(), .events = POLLIN, .revents = 0}};
        while (::poll(sources, std::size(sources), /*timeout=*/-1) < 0)
            check(errno == EINTR, "standard input: ", std::strerror(errno));
        return !interrupts_.take();
    }
    void read_more() {
        char bytes[1 << 16];
        const ssize_t got = ::read(STDIN_FILENO, bytes, sizeof bytes);
        if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
        check(got >= 0, "standard input: ", std::strerror(errno));
        at_end_ = got == 0;
        buffer_.bytes.append(bytes, static_cast<std::size_t>(got));
        check(buffer_.bytes.size() <= max_line_bytes, "standard input: a message of more than ",
              max_line_bytes, " bytes");
    }

    Interrupts& interrupts_;
    Buffer buffer_;
    bool at_end_ = false, is_first_ = true;
};

/// Prints what the user cannot see in the answer: that old messages were dropped, or why the answer ended
/// early.
void explain(const ChatAnswer& answer, std::int64_t context, bool& told_of_dropped) {
    if (answer.dropped_messages > 0 && !std::exchange(told_of_dropped, true))
        print_message(concat("the context of ", context,
                             " tokens is full; from now on the oldest messages are dropped"));
    if (answer.end == ChatAnswer::End::context)
        print_message(concat("the answer ends because the context of ", context, " tokens is full"));
    if (answer.end == ChatAnswer::End::tokens)
        print_message("the answer ends because it has as many tokens as --tokens allows");
}

int chat(const Flags& flags) {
    check_sampling_flags(flags.options.sampling);
    const auto model = flags.model.load();
    ChatSession session(*model, flags.options);
    // Before this line, Ctrl-C ends the program.
    Interrupts interrupts;
    InputLines lines(interrupts);
    const bool is_terminal = ::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1;
    if (is_terminal)
        std::cout << "template " << name_of(session.format().chat_template())
                  << "; Ctrl-C stops an answer; Ctrl-C or Ctrl-D at the prompt leaves\n";
    bool all_answered = true, told_of_dropped = false;
    for (;;) {
        if (is_terminal) std::cout << "> ";
        check_output();
        const std::optional<std::string> line = lines.next();
        if (!line) break;
        if (line->find_first_not_of(" \t") == std::string::npos) continue;
        try {
            const ChatAnswer answer = session.answer(
                *line,
                [](std::string_view piece) {
                    std::cout << text_for_output(std::string(piece));
                    check_output();
                },
                [&] { return interrupts.take(); });
            std::cout << '\n';
            check_output();
            explain(answer, model->transformer.config.context, told_of_dropped);
        } catch (const BrokenPipe&) {
            throw;
        } catch (const Error& error) {  // the message does not fit; the chat goes on
            check_output();
            print_message(error.what());
            all_answered = false;
        }
    }
    if (is_terminal) std::cout << '\n';
    return all_answered || is_terminal ? 0 : exit_failed;
}

}  // namespace

void add_chat(CommandLine& program) {
    const auto flags = std::make_shared<Flags>();
    Command command = program.add_command("chat", "Talk to a trained model");
    flags->model.add_to(command);
    command.add_value("--system", flags->options.system, "system message; empty: none");
    command.add_value("--chat-template", flags->options.chat_template,
                      "auto: the template that the model was trained with, or one that fits its tokenizer");
    add_sampling_flags(command, flags->options.sampling);
    command.set_action([flags] { return chat(*flags); });
}

}  // namespace gradtile::cli
