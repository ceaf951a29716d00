#pragma once
/// Text for a terminal: text from files, from the command line and from other libraries must not change how
/// the terminal works or looks.
#include <cstddef>
#include <exception>
#include <functional>
#include <string>
#include <string_view>

namespace gradtile {

struct PrintableOptions {
    std::size_t max_characters = 2000;  ///< the middle of a longer text is left out; 0: no limit
    bool multiline = false;             ///< line breaks and tabs stay as they are
};

/// Returns valid UTF-8 that a terminal shows unchanged. Control characters (C0, DEL, C1), line and paragraph
/// separators, invisible characters and characters that change the text direction are escaped as JSON escapes
/// them: "\n", "\u001b", "\u202e". Bytes that are not UTF-8 become "\xNN". So JSON text stays the same JSON,
/// and printable text stays the same text.
std::string printable(std::string_view text, const PrintableOptions& options = {});

/// Returns a name from a file as printable text with at most 200 characters.
inline std::string printable_name(std::string_view name) {
    return printable(name, {.max_characters = 200});
}

/// The error's message for a user: "out of memory" for std::bad_alloc. The caller still passes it through
/// printable().
std::string message_of(const std::exception& error);

/// Prints message_of(error), as print_message() does. When memory is exhausted, prints "gradtile: out of
/// memory" without allocating any.
void print_error(const std::exception& error) noexcept;

/// Prints "gradtile: MESSAGE" as one printable line on stderr, in one piece, since several processes may
/// write to the same place.
void print_message(const std::string& message);

/// Receives messages for a user, one line each.
using MessageHandler = std::function<void(const std::string&)>;

/// Passes on a failed write's message only if the previous write succeeded, so that a full disk is not
/// reported at every step.
class FailureReporter {
  public:
    explicit FailureReporter(MessageHandler on_message) : on_message_(std::move(on_message)) {}
    /// Calls write(), which may throw Error.
    void operator()(const std::function<void()>& write);

  private:
    MessageHandler on_message_;
    bool failing_ = false;
};

}  // namespace gradtile
