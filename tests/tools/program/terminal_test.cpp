// The program's output on a pseudo-terminal with a given width.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "pseudo_terminal.h"

namespace gradtile::test {
namespace {

using testing::HasSubstr;
using testing::Not;

struct TerminalOutcome {
    int exit_code = -1;
    std::string text;  ///< all output
};

TerminalOutcome run_on_terminal(const Arguments& arguments, unsigned short columns,
                                const char* term = "xterm") {
    TerminalProgram program(arguments, columns, 24, {{"TERM", term}});
    const int exit_code = program.wait();
    return {exit_code, program.output()};
}

/// The lines that overwrite an earlier line: text after a carriage return without a line feed.
std::vector<std::string> rewritten_lines(const std::string& text) {
    std::vector<std::string> lines;
    for (std::size_t position = text.find('\r'); position != std::string::npos;
         position = text.find('\r', position + 1))
        if (position + 1 < text.size() && text[position + 1] != '\n')
            lines.push_back(
                text.substr(position + 1, text.find_first_of("\r\n", position + 1) - position - 1));
    return lines;
}

class Terminal : public testing::Test {
  protected:
    /// A run long enough for several progress line updates.
    Arguments training(const std::string& name) const {
        return tiny_training(stories_, place_ / name) +
               Arguments{"--width", "64", "--context", "64", "--steps", "400", "--eval-every", "50"};
    }
    TemporaryDirectory place_;
    std::string stories_ = write_stories(place_);
};

TEST_F(Terminal, ProgressLineIsNarrowerThanTheTerminal) {
    for (const unsigned short columns : std::initializer_list<unsigned short>{20, 50, 80}) {
        const TerminalOutcome screen = run_on_terminal(training(std::to_string(columns)), columns);
        EXPECT_EQ(screen.exit_code, 0);
        const std::vector<std::string> lines = rewritten_lines(screen.text);
        ASSERT_GE(lines.size(), 2u);
        for (const std::string& line : lines) EXPECT_LT(line.size(), columns) << line;
        EXPECT_THAT(lines.back(), testing::StartsWith("step 400/400"));
        EXPECT_THAT(screen.text, Not(HasSubstr("\x1b")));
    }
    // A terminal with unknown width counts as 80 columns wide.
    const TerminalOutcome screen = run_on_terminal(training("unknown"), 0);
    for (const std::string& line : rewritten_lines(screen.text)) EXPECT_LT(line.size(), 80u) << line;
    EXPECT_THAT(screen.text, HasSubstr("tokens/s"));
}

TEST_F(Terminal, OldEvaluationIsShownWithItsStep) {
    const TerminalOutcome screen = run_on_terminal(training("run"), 120, "dumb");
    EXPECT_THAT(screen.text, testing::ContainsRegex("step 50/400  loss [0-9.]+  val [0-9.]+  "));
    EXPECT_THAT(screen.text, testing::ContainsRegex("step 60/400  loss [0-9.]+  val [0-9.]+ @ 50  "));
}

TEST_F(Terminal, DumbTerminalGetsWholeLines) {
    const TerminalOutcome screen = run_on_terminal(training("run"), 80, "dumb");
    EXPECT_EQ(screen.exit_code, 0);
    EXPECT_TRUE(rewritten_lines(screen.text).empty());
    EXPECT_THAT(screen.text, HasSubstr("step 400/400"));
    EXPECT_THAT(screen.text, Not(HasSubstr("\x1b")));
}

TEST_F(Terminal, EscapesGeneratedControlCharactersOnATerminalOnly) {
    std::string text;
    while (text.size() < 2000) text += "ab\x1b[31mc\x07\xc2\x9bhd\n";
    const auto out = place_ / "run";
    expect_success(run(tiny_training(place_.write("control.txt", text), out)));
    const Arguments sampling{"sample", out.string(), "--tokens", "200"};
    const Outcome piped = run(sampling);
    expect_success(piped);
    EXPECT_THAT(piped.out, testing::AllOf(HasSubstr("\x1b"), HasSubstr("\xc2\x9b")));
    const TerminalOutcome screen = run_on_terminal(sampling, 80);
    EXPECT_EQ(screen.exit_code, 0);
    EXPECT_THAT(screen.text, testing::AllOf(HasSubstr("\\u001b"), HasSubstr("\\u009b"), HasSubstr("\r\n")));
    EXPECT_THAT(screen.text, testing::AllOf(Not(HasSubstr("\x1b")), Not(HasSubstr("\xc2\x9b"))));
}

}  // namespace
}  // namespace gradtile::test
