#include <gradtile/core/text/json_reader.h>

#include <algorithm>

#include <nlohmann/json.hpp>

#include <gradtile/core/check.h>
#include <gradtile/core/text/long_json_strings.h>
#include <gradtile/core/text/with_source.h>

namespace gradtile {
namespace {

using nlohmann::json;

/// Returns a parse error's text as one short line, without the library's prefix. The place is a column if the
/// text has one line, which may have another number in its file.
std::string reason_of(const json::exception& error, bool is_one_line) {
    constexpr std::size_t max_prefix = 60, max_bytes = 160;
    // "[json.exception.parse_error.101] parse error at line 1, column 5: ...; last read: '...'; expected ..."
    std::string_view what = error.what();
    for (const std::string_view before : {"] ", "parse error at ", "parse error: "})
        if (const std::size_t position = what.find(before); position < max_prefix)
            what.remove_prefix(position + before.size());
    if (constexpr std::string_view line = "line 1, "; is_one_line && what.starts_with(line))
        what.remove_prefix(line.size());
    return shown_in_message(what.substr(0, what.find("; last read: ")), max_bytes);
}

/// Hands the parser's events to a handler, with the long strings that the parser's text lacks. Counts levels,
/// because the handlers use the stack for nested values.
class EventAdapter final : public nlohmann::json_sax<json> {
  public:
    EventAdapter(JsonHandler& handler, std::vector<LongJsonString> long_strings, bool is_one_line)
        : handler_(handler), long_strings_(std::move(long_strings)), is_one_line_(is_one_line) {}

    bool null() override { return scalar(nullptr); }
    bool boolean(bool value) override { return scalar(value); }
    bool number_integer(std::int64_t value) override { return scalar(value); }
    bool number_unsigned(std::uint64_t value) override { return scalar(value); }
    bool number_float(double value, const std::string&) override { return scalar(value); }
    bool string(std::string& value) override { return scalar(taken(value)); }
    bool binary(json::binary_t&) override { throw Error("binary values are not JSON"); }
    bool key(std::string& name) override {
        handler_.name(taken(name));
        return true;
    }
    bool start_array(std::size_t) override {
        add_level();
        handler_.begin_array();
        return true;
    }
    bool start_object(std::size_t) override {
        add_level();
        handler_.begin_object();
        return true;
    }
    bool end_array() override { return end(); }
    bool end_object() override { return end(); }
    bool parse_error(std::size_t, const std::string&, const json::exception& error) override {
        problem_ = concat("not JSON: ", reason_of(error, is_one_line_));
        return false;
    }
    /// Why the text is not JSON, after the parser has returned false.
    const std::string& problem() const { return problem_; }

  private:
    /// Moves long strings. Short ones are copied, so that the parser need not allocate its buffer again.
    std::string taken(std::string& value) {
        const std::size_t number = strings_++;
        if (next_long_ < long_strings_.size() && long_strings_[next_long_].number == number)
            return std::move(long_strings_[next_long_++].value);
        constexpr std::size_t min_moved = 4096;
        return value.capacity() < min_moved ? value : std::move(value);
    }
    bool scalar(JsonValue value) {
        handler_.scalar(std::move(value));
        return true;
    }
    void add_level() {
        check(++levels_ <= max_json_depth, "nested more than ", max_json_depth, " levels deep");
    }
    bool end() {
        --levels_;
        handler_.end();
        return true;
    }

    JsonHandler& handler_;
    std::vector<LongJsonString> long_strings_;
    std::size_t next_long_ = 0, strings_ = 0;
    std::size_t levels_ = 0;
    bool is_one_line_;
    std::string problem_;
};

/// Returns why the text is not JSON; empty if it is.
std::string parse_events(std::string_view text, JsonHandler& handler, std::vector<LongJsonString> strings) {
    EventAdapter adapter(handler, std::move(strings), text.find('\n') == std::string_view::npos);
    json::sax_parse(text.begin(), text.end(), &adapter);
    return adapter.problem();
}

/// Hands a text to a builder, except the parts that have a route.
class Router final : public JsonHandler {
  public:
    Router(JsonBuilder& builder, const std::vector<JsonRoute>& routes) : builder_(builder), routes_(routes) {}

    void scalar(JsonValue value) override {
        if (routed_to_) return routed_to_->scalar(std::move(value));
        if (JsonHandler* const handler = route_of_next()) handler->scalar(value);
        builder_.scalar(std::move(value));
    }
    void name(std::string name) override {
        if (routed_to_) return routed_to_->name(std::move(name));
        path_.back() = name;
        builder_.name(std::move(name));
    }
    void begin_array() override { begin(&JsonHandler::begin_array); }
    void begin_object() override { begin(&JsonHandler::begin_object); }
    void end() override {
        if (routed_to_) routed_to_->end();
        if (routed_to_ && --routed_levels_ > 0) return;
        routed_to_ = nullptr;
        path_.pop_back();
        builder_.end();
    }

  private:
    void begin(void (JsonHandler::*begin_of_type)()) {
        if (!routed_to_) {
            routed_to_ = route_of_next();
            (builder_.*begin_of_type)();
            path_.emplace_back();
        }
        if (!routed_to_) return;
        ++routed_levels_;
        (routed_to_->*begin_of_type)();
    }
    /// Returns the handler for the value that begins; null if the value has no route. Array elements have
    /// none: an array's part in the path is empty, and no route has an empty name.
    JsonHandler* route_of_next() const {
        const auto found = std::ranges::find_if(
            routes_, [&](const JsonRoute& route) { return std::ranges::equal(route.path, path_); });
        return found == routes_.end() ? nullptr : &found->handler;
    }

    JsonBuilder& builder_;
    const std::vector<JsonRoute>& routes_;
    std::vector<std::string> path_;  // for each open array or object: the current member's name
    JsonHandler* routed_to_ = nullptr;
    std::size_t routed_levels_ = 0;
};

}  // namespace

void read_json(std::string_view text, std::string_view source, JsonHandler& handler,
               std::size_t max_string_bytes) {
    with_source(source, [&] {
        ShortenedJson shortened = take_long_strings(text, max_string_bytes, max_json_number_bytes);
        const bool is_shortened = !shortened.strings.empty();
        std::string problem =
            parse_events(is_shortened ? shortened.text : text, handler, std::move(shortened.strings));
        // The library takes a NUL for the end of the text, and does not read what follows.
        if (const std::size_t nul = text.find('\0'); problem.empty() && nul != std::string_view::npos)
            problem = concat("not JSON: at byte ", nul, ": a NUL outside of strings; expected the end");
        if (problem.empty()) return;
        // The error's place is that in the whole text.
        SkippedJson skipped;
        if (std::string in_text; is_shortened && !(in_text = parse_events(text, skipped, {})).empty())
            problem = std::move(in_text);
        throw Error(problem);
    });
}

JsonValue parse_json(std::string_view text, std::string_view source, const std::vector<JsonRoute>& routes,
                     std::size_t max_string_bytes) {
    JsonBuilder builder;
    if (routes.empty()) {
        read_json(text, source, builder, max_string_bytes);
    } else {
        Router router(builder, routes);
        read_json(text, source, router, max_string_bytes);
    }
    return builder.take();
}

JsonValue parse_json_or_null(std::string_view text) {
    try {
        return parse_json(text, {});
    } catch (const Error&) {
        return {};
    }
}

void JsonBuilder::count() {
    check(++count_ <= max_json_values, "more than ", max_json_values, " values");
}

void JsonBuilder::begin(bool is_object) {
    count();
    open_.push_back({.is_object = is_object});
}

void JsonBuilder::end() {
    Open closed = std::move(open_.back());
    open_.pop_back();
    place(closed.is_object ? JsonValue::object_of(std::move(closed.members))
                           : JsonValue(std::move(closed.elements)));
}

void JsonBuilder::scalar(JsonValue value) {
    count();
    place(std::move(value));
}

void JsonBuilder::place(JsonValue value) {
    if (open_.empty()) {
        root_ = std::move(value);
    } else if (Open& into = open_.back(); into.is_object) {
        into.members.push_back({std::move(into.name), std::move(value)});
    } else {
        into.elements.push_back(std::move(value));
    }
}

JsonValue JsonBuilder::take() {
    count_ = 0;
    return std::move(root_);
}

void JsonElements::scalar(JsonValue value) {
    if (depth_ == 0 || is_skipped_) return;
    element_.scalar(std::move(value));
    visit_if_complete();
}

void JsonElements::name(std::string name) {
    if (is_skipped_) return;
    if (depth_ == 1) {
        name_ = std::move(name);
    } else {
        element_.name(std::move(name));
    }
}

void JsonElements::begin(Of type) {
    if (depth_++ == 0) {
        is_skipped_ = type != type_;
    } else if (!is_skipped_) {
        type == Of::array ? element_.begin_array() : element_.begin_object();
    }
}

void JsonElements::end() {
    if (--depth_ == 0 || is_skipped_) return;
    element_.end();
    visit_if_complete();
}

void JsonElements::visit_if_complete() {
    if (element_.is_complete()) visit_(std::move(name_), element_.take());
}

}  // namespace gradtile
