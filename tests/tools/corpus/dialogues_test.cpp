// Conversations from `gradtile corpus --dialogues`.
#include <regex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/tools/corpus/dialogues.h>
#include <gradtile/train/config/train_config.h>
#include <gradtile/train/data/examples.h>

#include <support/documents.h>
#include <support/error_message.h>

namespace gradtile {
namespace {

using test::message_of;
using testing::HasSubstr;

TEST(Dialogues, AreTheSameOnEveryMachineAndInLongerFiles) {
    const std::vector<DialogueLines> dialogues = generate_dialogues(40, Seed{1});
    EXPECT_THAT(dialogues[0],
                testing::ElementsAre("What colour is a sheep", "A sheep is white.", "And what does it eat",
                                     "It eats grass.", "what is my name?", "I do not know your name yet.",
                                     "Goodbye!", "Have a nice day!"));
    const std::vector<DialogueLines> fewer = generate_dialogues(10, Seed{1});
    EXPECT_TRUE(std::equal(fewer.begin(), fewer.end(), dialogues.begin()));
    EXPECT_NE(generate_dialogues(1, Seed{2})[0], dialogues[0]);
    EXPECT_THAT(message_of([] { generate_dialogues(0, Seed{1}); }), HasSubstr("dialogues: 0"));
}

/// The answers contain the facts that the user told.
TEST(Dialogues, AnswersAgreeWithEarlierLines) {
    const std::regex told_name("(?:[Mm]y name is|I am|i am|I'm|Call me) ([A-Z][a-z]+)[.!]?"),
        answered_name("(?:Your name is|You are) ([A-Z][a-z]+)\\."),
        told_thing("(?:a|my) ([a-z]+) ([a-z]+)[.!]?"), told_colour("My ([a-z]+) is ([a-z]+)[.!]?"),
        answered_thing("You have a ([a-z]+) ([a-z]+)\\."), answered_colour("Your ([a-z]+) is ([a-z]+)\\.");
    int names = 0, things = 0, unknown = 0;
    for (const DialogueLines& lines : generate_dialogues(1000, Seed{7})) {
        std::string name, colour, thing;
        ASSERT_EQ(lines.size() % 2, 0u);
        for (std::size_t i = 0; i < lines.size(); i += 2) {
            const std::string &question = lines[i], &answer = lines[i + 1];
            std::smatch found;
            if (std::regex_match(question, found, told_name)) name = found[1];
            if (std::regex_match(question, found, told_colour)) thing = found[1], colour = found[2];
            if (answer.find("sounds nice") != std::string::npos &&
                std::regex_search(question, found, told_thing))
                colour = found[1], thing = found[2];
            if (std::regex_search(answer, found, answered_name) && found[1] != "welcome") {
                EXPECT_EQ(found[1], name);
                ++names;
            }
            if (answer.find("your name yet") != std::string::npos) {
                EXPECT_EQ(name, "");
                ++unknown;
            }
            if (thing.empty()) continue;
            if (std::regex_match(answer, found, answered_thing)) {
                EXPECT_EQ(found[1], colour);
                EXPECT_EQ(found[2], thing);
                ++things;
            }
            if (std::regex_search(answer, found, answered_colour) && found[1] == thing) {
                EXPECT_EQ(found[2], colour);
            }
        }
    }
    EXPECT_GT(names, 300);
    EXPECT_GT(things, 50);
    EXPECT_GT(unknown, 30);
}

/// Otherwise chat-demo would learn from conversations without their beginnings.
TEST(Dialogues, FitTheContextOfThePresetThatLearnsThem) {
    const ChatFormat format(ChatTemplate::plain, Tokenizer::bytes());
    const std::int64_t context = preset("chat-demo").model.context;
    for (const Conversation& conversation :
         test::conversations_in(conversations_text(generate_dialogues(3000, Seed{1}))))
        EXPECT_LE(std::ssize(format.encode(conversation, "text").ids), context + 1);
}

TEST(Dialogues, AreWrittenAsConversations) {
    const std::vector<DialogueLines> dialogues = generate_dialogues(20, Seed{3});
    const std::vector<Conversation> read = test::conversations_in(conversations_text(dialogues));
    ASSERT_EQ(read.size(), 20u);
    for (std::size_t i = 0; i < read.size(); ++i) {
        ASSERT_EQ(read[i].size(), dialogues[i].size());
        for (std::size_t line = 0; line < read[i].size(); ++line) {
            EXPECT_EQ(read[i][line].content, dialogues[i][line]);
            EXPECT_EQ(read[i][line].role, line % 2 == 0 ? ChatRole::user : ChatRole::assistant);
        }
    }
}

}  // namespace
}  // namespace gradtile
