#pragma once
/// Reads JSON texts. Every JSON text enters the program through read_json or parse_json.
///
/// A text is read in one pass, and its parts are handed to a JsonHandler. parse_json builds a JsonValue. A
/// value may take fifty times as much memory as its text, so parse_json refuses texts with many values. A
/// member that may be long, a vocabulary for example, is routed to its own handler and does not become a part
/// of the value.
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/core/text/json_value.h>

namespace gradtile {

/// How deeply arrays and objects may be nested. The texts that gradtile writes have depth 6 or less.
constexpr std::size_t max_json_depth = 64;
/// How many values a parsed JsonValue may have: arrays, objects and everything in them.
constexpr std::size_t max_json_values = 32'768;
/// The longest string or name, and the longest number, in text bytes. A checkpoint holds a tokenizer.json as
/// one string.
constexpr std::size_t max_json_string_bytes = std::size_t{1} << 26;
constexpr std::size_t max_json_number_bytes = 1024;

/// Receives the parts of a text, in text order.
class JsonHandler {
  public:
    virtual ~JsonHandler() = default;
    /// null, a boolean, a number or a string. An integer that does not fit 64 bits is a floating-point
    /// number.
    virtual void scalar(JsonValue value) = 0;
    /// The name of the member whose value follows.
    virtual void name(std::string name) = 0;
    virtual void begin_array() = 0;
    virtual void begin_object() = 0;
    /// Ends the innermost array or object.
    virtual void end() = 0;
};

/// Hands a text to a handler. Throws Error "SOURCE: REASON", also with the handler's reason. The reader's own
/// reasons have at most 200 characters: "not JSON: line 2, column 5: syntax error while parsing value -
/// unexpected end of input", "nested more than 64 levels deep", "at byte 7: a string of more than 67108864
/// bytes". Does not refuse an object with two members that have the same name; a handler does.
void read_json(std::string_view text, std::string_view source, JsonHandler& handler,
               std::size_t max_string_bytes = max_json_string_bytes);

/// A value in a text that goes to a handler. `path` names the members that lead to it; an empty path is the
/// whole text.
struct JsonRoute {
    std::vector<std::string_view> path;
    JsonHandler& handler;
};

/// Parses a text. In the result, a routed array or object is empty. Throws Error as read_json does; further
/// reasons are "more than 32768 values" and "'steps' occurs twice in one object".
JsonValue parse_json(std::string_view text, std::string_view source,
                     const std::vector<JsonRoute>& routes = {},
                     std::size_t max_string_bytes = max_json_string_bytes);

/// Returns null when parse_json refuses the text.
JsonValue parse_json_or_null(std::string_view text);

/// Builds a value, with parse_json's limits.
class JsonBuilder final : public JsonHandler {
  public:
    void scalar(JsonValue value) override;
    void name(std::string name) override { open_.back().name = std::move(name); }
    void begin_array() override { begin(false); }
    void begin_object() override { begin(true); }
    void end() override;
    /// Returns whether a value is complete.
    bool is_complete() const { return count_ > 0 && open_.empty(); }
    /// Returns the value; the next part begins a new one.
    JsonValue take();

  private:
    struct Open {
        bool is_object = false;
        std::string name = {};  // the next member's name
        JsonValue::Array elements = {};
        JsonValue::Object members = {};
    };
    void begin(bool is_object);
    void count();
    void place(JsonValue value);

    std::vector<Open> open_;  // the open arrays and objects, from the outermost to the innermost
    std::size_t count_ = 0;
    JsonValue root_;
};

/// Builds an array's elements or an object's members one after another, and passes each one on. Each may hold
/// max_json_values values. Skips a value that has another type.
class JsonElements final : public JsonHandler {
  public:
    enum class Of { array, object };
    /// In an array, all names are empty. If a name may occur only once, `visit` checks it.
    using Visit = std::function<void(std::string name, JsonValue value)>;
    JsonElements(Of type, Visit visit) : type_(type), visit_(std::move(visit)) {}

    void scalar(JsonValue value) override;
    void name(std::string name) override;
    void begin_array() override { begin(Of::array); }
    void begin_object() override { begin(Of::object); }
    void end() override;

  private:
    void begin(Of type);
    void visit_if_complete();

    Of type_;
    Visit visit_;
    std::size_t depth_ = 0;    // open arrays and objects, including the outermost one
    bool is_skipped_ = false;  // the outermost one has the other type
    std::string name_;
    JsonBuilder element_;
};

/// Skips a value.
class SkippedJson final : public JsonHandler {
  public:
    void scalar(JsonValue) override {}
    void name(std::string) override {}
    void begin_array() override {}
    void begin_object() override {}
    void end() override {}
};

}  // namespace gradtile
