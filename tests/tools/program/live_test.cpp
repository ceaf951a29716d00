// gradtile train --live on a pseudo-terminal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pseudo_terminal.h"

namespace gradtile::test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

std::int64_t lines_with(const std::vector<std::string>& lines, const std::string& part) {
    return std::ranges::count_if(lines,
                                 [&](const std::string& line) { return line.find(part) != line.npos; });
}

class Live : public testing::Test {
  protected:
    /// A run long enough for several drawings.
    Arguments training(const std::string& steps = "400") const {
        return tiny_training(stories_, out_) + Arguments{"--width",      "64",      "--context",
                                                         "64",           "--steps", steps,
                                                         "--eval-every", "50",      "--live"};
    }
    /// A run that a test interrupts.
    Arguments endless() const { return training("1000000"); }

    /// Checks that one dashboard is left, above the results, and returns the screen's lines.
    static std::vector<std::string> expect_one_dashboard(const std::string& output, std::size_t columns) {
        Screen screen(columns);
        screen.put(output);
        const std::vector<std::string> lines = screen.lines();
        EXPECT_EQ(screen.unknown(), 0) << "a mode of the terminal may have been changed";
        EXPECT_EQ(screen.column(), 0u);
        EXPECT_EQ(lines_with(lines, "tokens/s  "), 1) << output;
        EXPECT_EQ(lines_with(lines, "memory "), 2) << "the plan's line and the dashboard's";
        return lines;
    }

    TemporaryDirectory place_;
    std::string stories_ = write_stories(place_);
    std::filesystem::path out_ = place_ / "run";
};

TEST_F(Live, RedrawsInPlaceAndEndsWithTheResults) {
    for (const unsigned short columns : std::initializer_list<unsigned short>{60, 100, 200}) {
        std::filesystem::remove_all(out_);
        TerminalProgram program(training(), columns, 30, {{"LANG", "C.UTF-8"}});
        EXPECT_EQ(program.wait(), 0);
        const std::vector<std::string> lines = expect_one_dashboard(program.output(), columns);
        EXPECT_THAT(lines, Contains(StartsWith("step 400/400  100%")));
        EXPECT_THAT(lines, Contains(AllOf(StartsWith("loss "), HasSubstr("  val "), HasSubstr(" @ 400"))));
        EXPECT_THAT(lines, Contains(HasSubstr(" |█")));
        EXPECT_THAT(lines, Contains("step: 400"));
        // Every drawing after the first one begins by moving the cursor up.
        EXPECT_NE(program.output().find("\x1b[9A"), std::string::npos);
    }
}

TEST_F(Live, IsNarrowerThanTheTerminal) {
    for (const unsigned short columns : std::initializer_list<unsigned short>{20, 40}) {
        std::filesystem::remove_all(out_);
        TerminalProgram program(training(), columns, 24, {{"LC_ALL", "de_DE.utf8"}});
        EXPECT_EQ(program.wait(), 0);
        const std::string output = program.output();
        Screen screen(1000);  // shows lines as they were written
        screen.put(output.substr(output.find("\x1b["), output.rfind("\x1b[J") - output.find("\x1b[")));
        EXPECT_LT(screen.widest(), columns);
        EXPECT_THAT(screen.lines(), Contains(StartsWith("step 400/400")));
    }
}

TEST_F(Live, IsLowerThanTheTerminal) {
    for (const unsigned short rows : std::initializer_list<unsigned short>{1, 2, 4, 7}) {
        std::filesystem::remove_all(out_);
        TerminalProgram program(training(), 80, rows, {{"LANG", "C.UTF-8"}});
        EXPECT_EQ(program.wait(), 0);
        const std::string output = program.output();
        for (unsigned short up = std::max<unsigned short>(rows, 2); up < 12; ++up)
            EXPECT_EQ(output.find(concat("\x1b[", up, "A")), std::string::npos) << rows << ' ' << up;
        EXPECT_THAT(output, HasSubstr("step 400/400"));
    }
}

TEST_F(Live, UsesAsciiUnlessTheLocaleIsUtf8) {
    for (const auto& [name, value] :
         TerminalProgram::Environment{{"LANG", "C"}, {"LC_ALL", "POSIX"}, {"X", ""}}) {
        std::filesystem::remove_all(out_);
        TerminalProgram program(training(), 80, 24, {{"LANG", "C"}, {name, value}});
        EXPECT_EQ(program.wait(), 0);
        EXPECT_TRUE(std::ranges::all_of(program.output(),
                                        [](char c) { return static_cast<unsigned char>(c) < 128; }));
        EXPECT_THAT(expect_one_dashboard(program.output(), 80), Contains(HasSubstr(" |#")));
    }
}

TEST_F(Live, PrintsLinesIfItCannotDraw) {
    TerminalProgram dumb(training(), 80, 24, {{"TERM", "dumb"}});
    EXPECT_EQ(dumb.wait(), 0);
    EXPECT_THAT(dumb.output(), AllOf(HasSubstr("step 400/400  loss "), Not(HasSubstr("\x1b"))));
    const Outcome piped = run(training() + Arguments{"--out", (place_ / "piped").string()});
    expect_success(piped);
    EXPECT_THAT(piped.out,
                AllOf(HasSubstr("step 400/400  loss "), Not(HasSubstr("\x1b")), Not(HasSubstr("\r"))));
    expect_refused(run(training() + Arguments{"--quiet"}), {"--live and --quiet: expected only one of them"});
}

TEST_F(Live, EndsCleanlyAfterASignal) {
    for (const int signal : {SIGINT, SIGTERM}) {
        std::filesystem::remove_all(out_);
        TerminalProgram program(endless(), 80, 24);
        program.wait_for(" |#");
        if (signal == SIGINT) {
            program.type("\x03");  // echoed as ^C in the row under the dashboard
        } else {
            program.send(signal);
        }
        EXPECT_EQ(program.wait(), 0);
        const std::vector<std::string> lines = expect_one_dashboard(program.output(), 80);
        EXPECT_THAT(lines, Contains(StartsWith(concat("stopped by signal ", signal))));
        EXPECT_EQ(lines_with(lines, "^C"), 0);
    }
}

TEST_F(Live, LeavesTheCursorBelowTheDashboardWhenItIsKilled) {
    TerminalProgram program(endless(), 80, 24);
    program.wait_for(" |#");
    program.send(SIGKILL);
    EXPECT_EQ(program.wait(), -1);
    Screen screen(80);
    screen.put(program.output());
    EXPECT_EQ(screen.unknown(), 0);
    EXPECT_EQ(screen.column(), 0u);
}

TEST_F(Live, DoesNotOverwriteWhatAShellPrintsWhileItIsStopped) {
    TerminalProgram program(endless(), 80, 40);
    program.wait_for(" |#");
    constexpr int stops = 5;  // at different moments while it draws and while it waits between drawings
    for (int stop = 0; stop < stops; ++stop) {
        std::this_thread::sleep_for(std::chrono::milliseconds(37 * stop));
        program.send(SIGSTOP);
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        const std::string text = concat("the shell ", stop, "\n");
        program.write_as_other(text + text + text);
        const std::size_t stopped = program.output().size();
        program.send(SIGCONT);
        program.wait_for(" |#", program.wait_for("tokens/s", stopped));
    }
    program.send(SIGTERM);
    EXPECT_EQ(program.wait(), 0);
    Screen screen(80);
    screen.put(program.output());
    EXPECT_EQ(lines_with(screen.lines(), "the shell"), 3 * stops);
    EXPECT_EQ(lines_with(screen.lines(), "tokens/s  "), stops + 1);
}

TEST_F(Live, DrawsNothingInTheBackground) {
    if (!std::filesystem::exists("/bin/bash")) GTEST_SKIP() << "no bash";
    std::string command = GRADTILE_PROGRAM;
    for (const std::string& argument : endless()) command += " '" + argument + "'";
    const std::string until_trained =
        "until grep -q 500 '" + (out_ / "metrics.jsonl").string() + "'; do sleep 0.1; done";
    TerminalProgram shell(
        {"-mc", command + " & " + until_trained + " 2>/dev/null; sleep 0.5; echo front; fg; echo back"}, 100,
        40, {}, "/bin/bash");
    const std::size_t front = shell.wait_for("front\r\n");
    EXPECT_THAT(shell.output().substr(0, front), Not(HasSubstr("\x1b")));
    shell.wait_for(" |#", front);
    shell.type("\x03");
    shell.wait_for("back");
    EXPECT_EQ(shell.wait(), 0);
    EXPECT_THAT(shell.output(), HasSubstr("stopped by signal 2"));
}

TEST_F(Live, DrawsBelowALauncher) {
    TerminalProgram program(training() + Arguments{"--restarts", "1"}, 100, 40);
    EXPECT_EQ(program.wait(), 0);
    expect_one_dashboard(program.output(), 100);
}

TEST_F(Live, FollowsTheSizeOfTheTerminal) {
    TerminalProgram program(endless(), 100, 30);
    program.wait_for(" |#");
    program.resize(40, 12);
    // From here on the terminal has 40 columns, in which the dashboard's 9 lines take more than 9 rows.
    const std::size_t narrow = program.wait_for("A", program.output().size());
    program.wait_for(" |#", program.wait_for(" |#", narrow));
    program.send(SIGTERM);
    EXPECT_EQ(program.wait(), 0);
    const std::string output = program.output();
    const std::size_t last = output.rfind("step ", output.rfind("\x1b[J"));
    std::istringstream frame(output.substr(last, output.rfind("\x1b[J") - last));
    for (std::string line; std::getline(frame, line);)
        EXPECT_LT(line.size(), 40u + std::string("\x1b[K\r").size()) << line;
}

TEST_F(Live, DrawsMessagesAboveTheDashboard) {
    // The loss becomes infinite at once with such a learning rate, and each refused update has a message.
    TerminalProgram program(training() + Arguments{"--lr", "1e25", "--min-lr", "0", "--warmup", "0",
                                                   "--optimizer", "lion", "--max-bad-steps", "3"},
                            120, 40);
    EXPECT_EQ(program.wait(), 1);
    Screen screen(120);
    screen.put(program.output());
    const std::vector<std::string> lines = screen.lines();
    EXPECT_EQ(lines_with(lines, "update not applied (1 in a row"), 1);
    EXPECT_EQ(lines_with(lines, "update not applied (3 in a row"), 1);
    EXPECT_EQ(lines_with(lines, "tokens/s  "), 1);
    EXPECT_THAT(lines.back(), HasSubstr("steps in a row; stopped"));
    EXPECT_EQ(screen.unknown(), 0);
}

TEST_F(Live, AClosedTerminalDoesNotStopTraining) {
    TerminalProgram program(training("2000"), 80, 24);
    program.wait_for(" |#");
    program.close_terminal();
    EXPECT_EQ(program.wait(), 0);
    EXPECT_EQ(steps_of(out_).size(), 2000u);
}

TEST_F(Live, AResumedRunShowsTheWholeCurve) {
    expect_success(run(tiny_training(stories_, out_) +
                       Arguments{"--steps", "60", "--stop-after", "50", "--eval-every", "25", "--quiet"}));
    TerminalProgram program({"train", "--resume", out_.string(), "--live"}, 100, 24);
    EXPECT_EQ(program.wait(), 0);
    const std::vector<std::string> lines = expect_one_dashboard(program.output(), 100);
    const auto bottom = std::find_if(lines.rbegin(), lines.rend(),
                                     [](const std::string& line) { return line.find(" |") != line.npos; });
    ASSERT_NE(bottom, lines.rend());
    EXPECT_EQ(bottom->size() - bottom->find('|') - 1, 60u) << *bottom;  // a column for every step
}

}  // namespace
}  // namespace gradtile::test
