// gradtile chat, with piped input and on a terminal.
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "program.h"

#include <gradtile/core/check.h>

namespace gradtile::test {
namespace {

using testing::HasSubstr;

class Chat : public testing::Test {
  protected:
    /// A model that answers "pong" to "ping", and "tick" to "tock".
    std::string trained(const std::string& chat_template) {
        const std::string data = place_.write(
            "c.jsonl",
            R"({"messages":[{"role":"user","content":"ping"},{"role":"assistant","content":"pong"}]})"
            "\n"
            R"({"messages":[{"role":"user","content":"tock"},{"role":"assistant","content":"tick"}]})"
            "\n");
        const std::string out = place_ / chat_template;
        expect_success(run({"train",       "--data",      data,     "--val-data",
                            data,          "--out",       out,      "--layers",
                            "1",           "--heads",     "2",      "--width",
                            "32",          "--context",   "200",    "--batch",
                            "2",           "--steps",     "150",    "--warmup",
                            "5",           "--lr",        "1e-2",   "--threads",
                            "1",           "--device",    "cpu",    "--chat-template",
                            chat_template, "--positions", "rope",   "--eval-every",
                            "0",           "--quiet",     "--seed", "3"}));
        return out;
    }
    static Outcome chat(const std::string& input, const Arguments& arguments) {
        return run(Arguments{"chat"} + arguments,
                   {.prefix = {"sh", "-c", "printf '" + input + "' | \"$0\" \"$@\""}});
    }

    TemporaryDirectory place_;
};

TEST_F(Chat, AnswersTheLinesOfStandardInput) {
    for (const char* const chat_template : {"plain", "chatml", "llama3"}) {
        const std::string run_directory = trained(chat_template);
        const Outcome once = chat("ping\\n", {run_directory, "--temperature", "0"});
        expect_success(once);
        EXPECT_EQ(once.out, "pong\n") << chat_template;
        // A byte order mark is no part of the first message.
        EXPECT_EQ(chat("\\357\\273\\277ping\\n", {run_directory, "--temperature", "0"}).out, "pong\n");
        // The last line may lack a line feed, and empty lines are no messages. With --top-k 1 the seed has no
        // effect.
        const Outcome other = chat("\\n \\r\\ntock", {run_directory, "--top-k", "1", "--seed", "9"});
        expect_success(other);
        EXPECT_EQ(other.out, "tick\n") << chat_template;
    }
}

/// The docs/using.md walkthrough with fewer steps: corpus, train, chat.
TEST_F(Chat, TheDemonstrationRuns) {
    const std::string data = place_ / "talk.jsonl", out = place_ / "demo";
    const Outcome corpus = run({"corpus", "--dialogues", "120", "--out", data});
    expect_success(corpus);
    EXPECT_THAT(corpus.out, HasSubstr("120 conversations"));
    const Outcome trained = run({"train", "--preset", "chat-demo", "--data", data, "--out", out, "--steps",
                                 "3", "--warmup", "1", "--layers", "1", "--width", "32", "--device", "cpu"});
    expect_success(trained);
    EXPECT_THAT(trained.out, HasSubstr("120 conversations in the template plain"));
    const Outcome answered = chat("Hello\\nWhat is my name?\\n", {out, "--tokens", "5", "--system", "Hi."});
    EXPECT_EQ(answered.exit_code, 0);
    EXPECT_GE(std::ranges::count(answered.out, '\n'), 2);
    expect_refused(run({"corpus", "--dialogues", "-1", "--out", data}), {"--dialogues: -1"});
    expect_refused(run({"corpus", "--dialogues", "5", "--out", "/nowhere/x.jsonl"}), {"/nowhere/x.jsonl"});
}

TEST_F(Chat, LeavesAtTheEndOfInputAndGoesOnAfterAMessageThatItCannotRead) {
    const std::string run_directory = trained("plain");
    expect_success(chat("", {run_directory}));
    const Outcome unknown = chat("\\303\\234\\nping\\n", {run_directory, "--temperature", "0"});
    EXPECT_EQ(unknown.exit_code, 1);
    EXPECT_EQ(unknown.out, "pong\n");
    EXPECT_THAT(unknown.err, HasSubstr("message: character U+00DC at byte offset 0"));
    const Outcome full = chat("ping\\n", {run_directory, "--temperature", "0", "--tokens", "3"});
    EXPECT_EQ(full.out, "po\n");
    EXPECT_THAT(full.err, HasSubstr("--tokens"));
    EXPECT_EQ(chat("ping\\n", {run_directory, "--temperature", "0", "--stop", "n"}).out, "po\n");
}

TEST_F(Chat, RefusesWrongFlagsAndModelsWithoutATokenizer) {
    const std::string run_directory = trained("plain");
    expect_refused(chat("", {run_directory, "--temperature", "-1"}), {"--temperature: -1"});
    expect_refused(chat("", {run_directory, "--chat-template", "alpaca"}), {"alpaca", "auto, plain, chatml"});
    expect_refused(chat("", {(place_ / "none").string()}), {"none"});
    const std::string text = place_.write("text.txt", std::string(400, 'a'));
    expect_success(run(tiny_training(text, place_ / "text")));
    expect_refused(chat("", {(place_ / "text").string()}), {"chat template plain: character U+000A"});
    const std::string ids = place_.write("ids.bin", std::string(400, '\1'));
    expect_success(run(tiny_training(ids, place_ / "ids")));
    expect_refused(chat("a\\n", {(place_ / "ids").string()}), {"has no tokenizer"});
}

/// The program on a pseudo-terminal.
class TerminalChat {
  public:
    explicit TerminalChat(const Arguments& arguments) {
        process_ = ::forkpty(&terminal_, nullptr, nullptr, nullptr);
        check(process_ >= 0, "cannot fork");
        if (process_ != 0) return;
        execute_program(arguments);
    }
    ~TerminalChat() {
        if (process_ > 0) ::kill(process_, SIGKILL);
        if (process_ > 0) ::waitpid(process_, nullptr, 0);
        ::close(terminal_);
    }
    TerminalChat(const TerminalChat&) = delete;
    TerminalChat& operator=(const TerminalChat&) = delete;

    void type(const std::string& keys) const {
        check(::write(terminal_, keys.data(), keys.size()) == std::ssize(keys), "cannot type");
    }
    /// Waits until the program has shown the text since the last call; returns what it showed.
    std::string wait_for(const std::string& text) {
        while (shown_.find(text) == std::string::npos) {
            pollfd source{.fd = terminal_, .events = POLLIN, .revents = 0};
            check(::poll(&source, 1, 100'000) == 1, "the terminal shows only: ", shown_);
            char bytes[4096];
            const ssize_t count = ::read(terminal_, bytes, sizeof bytes);
            check(count > 0, "the program ended after: ", shown_);
            shown_.append(bytes, static_cast<std::size_t>(count));
        }
        return std::exchange(shown_, {});
    }
    int exit_code() {
        char bytes[4096];
        while (::read(terminal_, bytes, sizeof bytes) > 0) {
        }
        int status = 0;
        ::waitpid(std::exchange(process_, -1), &status, 0);
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }

  private:
    pid_t process_ = -1;
    int terminal_ = -1;
    std::string shown_;
};

/// If nobody stops it, this untrained model's answer has 16,000 characters.
TEST_F(Chat, CtrlCStopsTheAnswerAndAtThePromptTheProgram) {
    const std::string stories = write_stories(place_, 40'000), out = place_ / "run";
    expect_success(
        run(tiny_training(stories, out) + Arguments{"--context", "16384", "--batch", "1", "--steps", "1",
                                                    "--tokenizer", "bytes", "--quiet"}));
    TerminalChat chat({"chat", out, "--tokens", "1000000", "--threads", "1"});
    EXPECT_THAT(chat.wait_for("> "), HasSubstr("template plain"));
    for (int i = 0; i < 2; ++i) {
        chat.type("Tell me a story\n");
        chat.wait_for("Tell me a story\r\n");
        chat.wait_for("e");  // a letter in the answer
        chat.type("\x03");
        chat.wait_for("\n> ");
    }
    chat.type("\x03");
    EXPECT_EQ(chat.exit_code(), 0);

    TerminalChat second({"chat", out});
    second.wait_for("> ");
    second.type("\x04");  // Ctrl-D
    EXPECT_EQ(second.exit_code(), 0);
}

}  // namespace
}  // namespace gradtile::test
