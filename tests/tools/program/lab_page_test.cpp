// The `gradtile lab --html` page, without a browser. tests/judge/lab_page_judge.py uses one.
#include <regex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "program.h"

namespace gradtile::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

std::string page_of(const Arguments& flags) {
    const TemporaryDirectory place;
    const std::string path = (place / "lab.html").string();
    const Outcome outcome = run(Arguments{"lab", "--html", path} + flags);
    expect_success(outcome);
    EXPECT_THAT(outcome.out, HasSubstr("8 passes"));
    return contents_of(path);
}

/// The text in the element that begins with `begin`.
std::string element_text(const std::string& page, const std::string& begin, const std::string& end) {
    const std::size_t first = page.find(begin);
    EXPECT_NE(first, std::string::npos) << begin;
    const std::size_t last = page.find(end, first);
    EXPECT_NE(last, std::string::npos) << end;
    return page.substr(first + begin.size(), last - first - begin.size());
}

json trace_of(const std::string& page) {
    return json::parse(element_text(page, "<script type=\"application/json\" id=\"trace\">", "</script>"));
}

/// How many elements a pass's steps move, for one kind: 0 loads, 1 stores.
std::int64_t moved(const json& pass, int kind) {
    std::int64_t elements = 0;
    for (const json& step : pass.at("steps"))
        if (step.at(0) == kind)
            elements += (step.at(6).get<int>() - step.at(5).get<int>()) *
                        (step.at(8).get<int>() - step.at(7).get<int>());
    return elements;
}

TEST(LabPage, StepsAddUpToTheCountsOfTheProgram) {
    const Arguments sizes{"--length", "40", "--head-dim", "12", "--fast-memory", "4200"};
    const json trace = trace_of(page_of(sizes));
    const Outcome outcome = run(Arguments{"lab", "--json"} + sizes);
    expect_success(outcome);
    const json algorithms = json::parse(outcome.out).at("algorithms");
    ASSERT_EQ(trace.at("passes").size(), algorithms.size());
    EXPECT_EQ(algorithms.size(), 8u);
    for (std::size_t i = 0; i < algorithms.size(); ++i) {
        const json &pass = trace.at("passes").at(i), &counted = algorithms.at(i);
        SCOPED_TRACE(counted.at("name").get<std::string>() + ' ' + counted.at("pass").get<std::string>());
        for (const char* key : {"name", "pass", "block_rows", "block_keys", "loads", "stores", "slow_bytes",
                                "peak_bytes", "peak_fast_bytes"})
            EXPECT_EQ(pass.at(key), counted.at(key)) << key;
        EXPECT_EQ(moved(pass, 0), counted.at("loads"));
        EXPECT_EQ(moved(pass, 1), counted.at("stores"));
        EXPECT_EQ(pass.at("updates").empty(), pass.at("pass") == "backward");
    }
}

TEST(LabPage, HoldsTheSourcesWhoseLinesItShows) {
    const json trace = trace_of(page_of({}));
    EXPECT_EQ(trace.at("length"), 64);
    for (const json& file : trace.at("files"))
        EXPECT_EQ(trace.at("sources").at(file.get<std::string>()),
                  contents_of(std::string(GRADTILE_SOURCE_DIR) + '/' + file.get<std::string>()))
            << file;
    EXPECT_GE(trace.at("files").size(), 5u);
}

/// Every tag is closed, properly nested.
TEST(LabPage, IsWellFormed) {
    const std::string page = page_of({});
    EXPECT_TRUE(page.starts_with("<!DOCTYPE html>"));
    EXPECT_TRUE(page.ends_with("</html>\n"));
    // Script and style texts are not HTML.
    std::string markup;
    for (std::size_t position = 0; position < page.size();) {
        const std::size_t script = std::min(page.find("<script", position), page.find("<style", position));
        markup += page.substr(position, script == std::string::npos ? std::string::npos : script - position);
        if (script == std::string::npos) break;
        const std::string end = page[script + 2] == 'c' ? "</script>" : "</style>";
        position = page.find(end, script);
        ASSERT_NE(position, std::string::npos) << end;
        position += end.size();
    }
    const std::regex tag("<(/?)([a-z][a-z0-9]*)[^>]*>");
    std::vector<std::string> open;
    int tags = 0;
    for (std::sregex_iterator it(markup.begin(), markup.end(), tag), end; it != end; ++it, ++tags) {
        const std::string name = (*it)[2];
        if (name == "meta" || name == "link" || name == "input") continue;
        if ((*it)[1].length() == 0) {
            open.push_back(name);
            continue;
        }
        ASSERT_FALSE(open.empty()) << name;
        EXPECT_EQ(open.back(), name);
        open.pop_back();
    }
    EXPECT_TRUE(open.empty());
    EXPECT_GT(tags, 80);
}

TEST(LabPage, NeedsNoNetwork) {
    const std::string page = page_of({});
    for (const char* reference : {"http:", "https:", "src=", "@import", "url(", "fetch(", "XMLHttpRequest",
                                  "@style@", "@script@", "@trace@"})
        EXPECT_THAT(page, Not(HasSubstr(reference)));
    EXPECT_THAT(page, HasSubstr("default-src 'none'"));
}

TEST(LabPage, RefusesWhatItCannotShowInOneLine) {
    const TemporaryDirectory place;
    const std::string path = (place / "lab.html").string();
    const auto refused = [&](const Arguments& flags, const std::vector<std::string>& parts) {
        expect_refused(run(Arguments{"lab"} + flags), parts);
        EXPECT_FALSE(std::filesystem::exists(path));
    };
    refused({"--html", path, "--length", "257"}, {"--length: 257", "expected 1 to 256", "--html"});
    refused({"--html", path, "--sweep", "length"}, {"--html", "--sweep"});
    refused({"--html", path, "--json"}, {"--html", "--json"});
    refused({"--html", path, "--fast-memory", "100"}, {"--fast-memory: 100", "expected at least"});
    refused({"--html", path, "--length", "256", "--head-dim", "256", "--fast-memory", "20000"},
            {"more than 100000 steps", "shorter length"});
    refused({"--html", (place / "none" / "lab.html").string()}, {"none/lab.html"});
    refused({"--html", ""}, {"--html"});
    refused({"--html", place.path().string()}, {"is not a regular file"});
    const std::filesystem::path device = place / "device";
    std::filesystem::create_symlink("/dev/null", device);
    refused({"--html", device.string()}, {"device", "is not a regular file"});
    EXPECT_TRUE(std::filesystem::is_symlink(device));
}

}  // namespace
}  // namespace gradtile::test
