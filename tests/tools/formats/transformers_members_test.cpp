// Checks each member in tests/reference/transformers_members.json: what the table says about it is what an
// import does with it.
#include <gradtile/tools/formats/transformers_members.h>

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/tools/formats/import.h>
#include <gradtile/train/tokenizers/tokenizer_files.h>
#include <gradtile/train/tokenizers/tokenizer_folder.h>

#include <support/error_message.h>
#include <tools/formats/weights_fixture.h>

namespace gradtile {
namespace {

using nlohmann::json;
using test::json_of;
using test::message_of;
using test::TemporaryDirectory;
using test::write_json;
using testing::HasSubstr;

namespace fs = std::filesystem;

json table_of(const char* title) {
    return json_of(fs::path(GRADTILE_SOURCE_DIR) / "tests/reference/transformers_members.json").at(title);
}

std::set<std::string> names_of(std::initializer_list<const char*> titles) {
    std::set<std::string> names;
    for (const char* const title : titles) {
        const json table = table_of(title);
        for (const auto& [name, entry] : table.items()) names.insert(name);
    }
    return names;
}

std::set<std::string> names_of(const std::vector<KnownMember>& members) {
    std::set<std::string> names;
    for (const KnownMember& member : members)
        EXPECT_TRUE(names.insert(std::string(member.name)).second) << member.name << " is listed twice";
    return names;
}

TEST(TransformersMembers, TheProgramKnowsTheMembersOfTheTable) {
    constexpr const char* settings = "settings of generation";
    for (const ModelFamily& family : model_families())
        EXPECT_EQ(names_of(config_members(family)),
                  names_of({"config.json", concat("config.json of ", family.type).c_str(), settings}))
            << family.type;
    EXPECT_EQ(names_of(rope_members()), names_of({"rope_parameters"}));
    EXPECT_EQ(names_of(generation_members()), names_of({"generation_config.json", settings}));
    EXPECT_EQ(names_of(tokenizer_members()), names_of({"tokenizer_config.json"}));
}

#if GRADTILE_HAVE_PCRE2

/// A transformers folder with a small model and a tokenizer, in which tests change one file.
class MembersInFolder : public testing::Test {
  protected:
    explicit MembersInFolder(const test::FamilyModel& small) {
        ModelConfig config = small.config;
        config.tied_head = true;
        const fs::path tokenizers = fs::path(GRADTILE_SOURCE_DIR) / "tests/reference/tokenizers";
        const Tokenizer tokenizer = load_tokenizer(
            (tokenizers / (rotates_heads(config.positions) ? "llama3.json" : "gpt2.json")).string());
        config.vocabulary = tokenizer.vocab_size();
        ImportedModel model = test::random_model(config);
        model.tokenizer = tokenizer;
        export_model(checkpoint_of(model, "x"), "run", {.out = folder_.string()});
    }

    /// Everything in an import that logits, ids or texts depend on; or the error.
    std::string outcome() const {
        std::string text;
        text = message_of([&] {
            const ImportedModel model = import_model(folder_.string());
            TrainConfig config;
            config.model = model.config;
            text = json{{"config", json_of(to_json(config))},
                        {"end_tokens", model.text.end_tokens},
                        {"template", name_of(model.chat_template)},
                        {"has_unknown_template", model.text.has_unknown_template},
                        {"ids", model.tokenizer->encode(" a<|endoftext|>b", "t",
                                                        {.special_tokens = SpecialTokens::recognised,
                                                         .add_special_tokens = true})},
                        {"notes", model.notes}}
                       .dump();
            throw Error(text);
        });
        return text;
    }

    /// Imports once for every value of every member. `set` puts a value into a file's object.
    template <class Set>
    void check_table(const char* title, const char* file, const Set& set,
                     const std::set<std::string>& skipped = {}) {
        const fs::path path = folder_ / file;
        const json original = exists(path) ? json_of(path) : json::object();
        const auto outcome_with = [&](const std::string& name, const json& value) {
            json changed = original;
            set(changed, name, value);
            write_json(path, changed);
            return outcome();
        };
        write_json(path, original);
        const std::string base = outcome();
        ASSERT_THAT(base, HasSubstr("\"config\":"));
        const json table = table_of(title);
        for (const auto& [name, entry] : table.items()) {
            if (skipped.contains(name)) continue;
            ASSERT_FALSE(entry["values"].empty()) << name;
            for (const json& value : entry["values"]) {
                const std::string found = outcome_with(name, value);
                const std::string shown = concat(title, ": ", name, ": ", value.dump());
                if (entry["is"] == "harmless") {
                    EXPECT_EQ(found, base) << shown;
                } else if (entry["is"] == "used") {
                    EXPECT_NE(found, base) << shown;
                } else {
                    EXPECT_EQ(entry["is"], "refused") << shown;
                    EXPECT_THAT(found, HasSubstr(concat(file))) << shown;
                    EXPECT_THAT(found, HasSubstr(concat(name, ": "))) << shown;
                    EXPECT_THAT(found, HasSubstr("is not supported")) << shown;
                }
            }
            if (entry["is"] != "refused") continue;
            EXPECT_EQ(outcome_with(name, nullptr), base) << title << ": " << name;
            for (const json& value : entry.value("neutral", json::array()))
                EXPECT_EQ(outcome_with(name, value), base) << title << ": " << name << ": " << value;
        }
        write_json(path, original);
    }
    void check_table(const char* title, const char* file, const std::set<std::string>& skipped = {}) {
        check_table(
            title, file,
            [](json& object, const std::string& name, const json& value) { object[name] = value; }, skipped);
    }

    TemporaryDirectory place_;
    fs::path folder_ = place_ / "model";
};

struct TransformersMembersOfGpt2 : MembersInFolder {
    TransformersMembersOfGpt2() : MembersInFolder(test::models_of_families().at(0)) {}
};
struct TransformersMembersOfLlama : MembersInFolder {
    TransformersMembersOfLlama() : MembersInFolder(test::models_of_families().at(1)) {}
};

struct TransformersMembersOfFamily : MembersInFolder, testing::WithParamInterface<test::FamilyModel> {
    TransformersMembersOfFamily() : MembersInFolder(GetParam()) {}
};

TEST_P(TransformersMembersOfFamily, InConfigsAreWhatTheTableSays) {
    // These files have precedence over config.json.
    fs::remove(folder_ / "generation_config.json");
    fs::remove(folder_ / "tokenizer_config.json");
    const std::string own_title = concat("config.json of ", GetParam().name);
    const std::set<std::string> own_names = names_of({own_title.c_str()});
    check_table("config.json", "config.json", own_names);
    check_table("settings of generation", "config.json", own_names);
    check_table(own_title.c_str(), "config.json");
}

INSTANTIATE_TEST_SUITE_P(Families, TransformersMembersOfFamily, testing::ValuesIn(test::models_of_families()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_F(TransformersMembersOfLlama, InRopeParametersAreWhatTheTableSays) {
    json config = json_of(folder_ / "config.json");
    config.erase("rope_theta");
    config.erase("rope_scaling");
    for (const char* const holder : {"rope_parameters", "rope_scaling"}) {
        json with = config;
        with[holder] = {{"rope_theta", 10000.0}, {"rope_type", "default"}};
        write_json(folder_ / "config.json", with);
        check_table(
            "rope_parameters", "config.json",
            [&](json& object, const std::string& name, const json& value) { object[holder][name] = value; });
    }
}

TEST_F(TransformersMembersOfLlama, InGenerationConfigsAreWhatTheTableSays) {
    check_table("settings of generation", "generation_config.json");
    check_table("generation_config.json", "generation_config.json");
}

TEST_F(TransformersMembersOfGpt2, InTokenizerConfigsAreWhatTheTableSays) {
    check_table("tokenizer_config.json", "tokenizer_config.json");
}

TEST_F(TransformersMembersOfGpt2, ThatTheTableLacksAreRefusedOrListed) {
    for (const char* const file : {"config.json", "generation_config.json", "tokenizer_config.json"}) {
        const json original = json_of(folder_ / file);
        json changed = original;
        changed["a_new_member"] = nullptr;
        write_json(folder_ / file, changed);
        const std::string refusal = outcome();
        EXPECT_THAT(refusal, HasSubstr(concat(file, ": 'a_new_member' has no known meaning")));
        EXPECT_THAT(refusal, HasSubstr("; --allow-unknown ignores it"));
        const ImportedModel model = import_model(folder_.string(), {.allow_unknown = true});
        EXPECT_THAT(model.notes, testing::ElementsAre(HasSubstr(concat(file, ": 'a_new_member'"))));
        write_json(folder_ / file, original);
    }
}

#endif

}  // namespace
}  // namespace gradtile
