#include <gradtile/train/data/documents.h>

#include <algorithm>
#include <array>
#include <utility>

#include <gradtile/core/check.h>
#include <gradtile/core/io/data_file.h>
#include <gradtile/core/text/json_reader.h>
#include <gradtile/core/text/utf8.h>
#include <gradtile/train/data/readers/data_files.h>
#include <gradtile/train/data/readers/json_lines.h>
#include <gradtile/train/data/readers/parquet_rows.h>
#include <gradtile/train/data/readers/plain_text.h>
#include <gradtile/train/data/token_file.h>

namespace gradtile {
namespace {

constexpr std::string_view blanks = " \t\r\n";

/// The members of a message that are read; a Parquet file may have more.
const std::vector<std::string> message_members{"role",  "content",    "from",  "value",
                                               "train", "tool_calls", "weight"};

std::string text_member(const JsonValue& row, const std::string& name, const std::string& where) {
    const JsonValue* const member = row.find(name);
    if (member != nullptr && member->is_string()) return member->text();
    throw Error(concat(where, ": ", shown_in_message(name), ": ",
                       member == nullptr ? "missing" : json_excerpt(*member), "; expected a text"));
}

ChatRole role_of_sharegpt(const std::string& from, const std::string& where) {
    constexpr std::array roles{std::pair{std::string_view("human"), ChatRole::user},
                               std::pair{std::string_view("gpt"), ChatRole::assistant},
                               std::pair{std::string_view("function_call"), ChatRole::assistant},
                               std::pair{std::string_view("observation"), ChatRole::tool}};
    for (const auto& [name, role] : roles)
        if (name == from) return role;
    return enum_named<ChatRole>(from, where + ": from");
}

/// Returns a call's arguments as a JSON text; OpenAI's form has them as a string that holds the text.
std::string arguments_text(const JsonValue& arguments, const std::string& where) {
    if (!arguments.is_string()) {
        check(arguments.is_object(), where, ": arguments: ", json_excerpt(arguments),
              "; expected an object or its JSON text");
        return arguments.dump();
    }
    parse_json(arguments.text(), where + ": arguments");
    return arguments.text();
}

std::vector<ToolCall> tool_calls_of(const JsonValue& message, const std::string& where) {
    const JsonValue* const calls = message.find_value("tool_calls");
    if (calls == nullptr) return {};
    check(calls->is_array(), where, ": tool_calls: ", json_excerpt(*calls), "; expected an array");
    std::vector<ToolCall> result;
    for (const JsonValue& call : calls->elements()) {
        const std::string here = concat(where, ": tool call ", result.size() + 1);
        const JsonValue* const wrapped = call.find_value("function");
        const JsonValue& function = wrapped == nullptr ? call : *wrapped;
        const JsonValue* const arguments = function.find_value("arguments");
        check(arguments != nullptr, here, ": ", json_excerpt(call),
              "; expected an object with name and arguments");
        result.push_back({text_member(function, "name", here), arguments_text(*arguments, here)});
    }
    return result;
}

ChatMessage message_of_row(const JsonValue& value, const std::string& where) {
    ChatMessage message;
    message.tool_calls = tool_calls_of(value, where);
    if (value.contains("from")) {
        message.role = role_of_sharegpt(text_member(value, "from", where), where);
        message.content = text_member(value, "value", where);
    } else {
        check(value.is_object(), where, ": ", json_excerpt(value),
              "; expected an object with the texts role and content");
        message.role = enum_named<ChatRole>(text_member(value, "role", where), where + ": role");
        // A message with tool calls may have no content.
        if (value.find_value("content") != nullptr || message.tool_calls.empty())
            message.content = text_member(value, "content", where);
    }
    if (const JsonValue* const train = value.find_value("train")) {
        check(train->is_boolean(), where, ": train: ", json_excerpt(*train), "; expected true or false");
        message.train = train->boolean();
    }
    const JsonValue* const weight = value.find_value("weight");
    check(weight == nullptr || *weight == JsonValue(1), where,
          ": weight: ", weight == nullptr ? "" : json_excerpt(*weight),
          "; expected 1; \"train\": false leaves a message out of the loss");
    return message;
}

Conversation messages_of(const JsonValue& list, const std::string& where, const char* what) {
    check(list.is_array(), where, ": ", what, ": ", json_excerpt(list), "; expected an array of messages");
    check(list.size() > 0, where, ": ", what, " is empty; expected at least one message");
    Conversation conversation;
    for (const JsonValue& message : list.elements())
        conversation.push_back(message_of_row(message, concat(where, ": message ", conversation.size() + 1)));
    return conversation;
}

/// ShareGPT: a system message may be a member of its own.
Conversation sharegpt_of(const JsonValue& row, const std::string& where) {
    Conversation conversation = messages_of(row["conversations"], where, "conversations");
    if (row.find_value("system") == nullptr) return conversation;
    std::string system = text_member(row, "system", where);
    if (!system.empty()) conversation.insert(conversation.begin(), {ChatRole::system, std::move(system)});
    return conversation;
}

Document completion_of(const JsonValue& row, const std::string& where) {
    const JsonValue& prompt = row["prompt"];
    if (!prompt.is_array())
        return Completion{text_member(row, "prompt", where), text_member(row, "completion", where)};
    Conversation conversation = messages_of(prompt, where, "prompt");
    for (ChatMessage& message : conversation)
        if (!message.train) message.train = false;
    Conversation answer = messages_of(row["completion"], where, "completion");
    for (ChatMessage& message : answer)
        if (!message.train) message.train = true;
    conversation.insert(conversation.end(), std::make_move_iterator(answer.begin()),
                        std::make_move_iterator(answer.end()));
    return conversation;
}

/// Whether a row's tools are an empty list, or the text of one, as LLaMA-Factory's files have them.
bool has_no_tools(const JsonValue& tools) {
    if (!tools.is_string()) return tools.size() == 0;
    const JsonValue list = parse_json_or_null(tools.text());
    return tools.text().empty() || (list.is_array() && list.size() == 0);
}

Document shared_prompt_of(const JsonValue& row, const std::string& where) {
    SharedPrompt shared{.prompt = text_member(row, "prompt", where), .completions = {}};
    const JsonValue& completions = row["completions"];
    check(completions.is_array() && completions.size() > 0, where,
          ": completions: ", completions.is_array() ? "none" : json_excerpt(completions),
          "; expected a list with at least one text");
    for (const JsonValue& completion : completions.elements()) {
        check(completion.is_string(), where, ": completions: a list with ", json_excerpt(completion),
              "; expected texts");
        shared.completions.push_back(completion.text());
    }
    return shared;
}

std::vector<std::string> names_of(const JsonValue& row) {
    std::vector<std::string> names;
    if (!row.is_object()) return names;
    for (const JsonValue::Member& member : row.items()) names.push_back(member.name);
    return names;
}

}  // namespace

std::vector<std::string> RowColumns::columns_in(const std::vector<std::string>& members) const {
    const auto has = [&](std::string_view name) { return std::ranges::find(members, name) != members.end(); };
    std::vector<std::string> found;
    if (!text_column_.empty()) {
        if (has(text_column_)) found = {text_column_};
        return found;
    }
    if (has("messages")) {
        found = {"messages"};
    } else if (has("conversations")) {
        found = {"conversations"};
        if (has("system")) found.emplace_back("system");
    } else if (has("prompt") && has("completion")) {
        found = {"prompt", "completion"};
    } else if (has("prompt") && has("completions")) {
        found = {"prompt", "completions"};
    } else if (has("text")) {
        found = {"text"};
    }
    if (!found.empty() && found.front() != "text" && has("tools")) found.emplace_back("tools");
    return found;
}

void RowColumns::choose(const std::vector<std::string>& members, const std::string& where) {
    chosen_ = columns_in(members);
    if (!chosen_.empty()) return;
    std::string list;
    for (std::size_t i = 0; i < std::min<std::size_t>(members.size(), 20); ++i)
        list += (i == 0 ? "" : ", ") + shown_in_message(members[i]);
    check(text_column_.empty(), where, ": has no column '", text_column_, "' (text-column); it has: ", list);
    throw Error(concat(where,
                       ": expected an object with an array named messages or conversations, with prompt and "
                       "completion or completions, or with text (another name: --text-column NAME)",
                       members.empty() ? "" : "; it has: ", list));
}

bool RowColumns::finds_document(const std::vector<std::string>& members) const {
    return !columns_in(members).empty();
}

void RowColumns::read(const JsonValue& row, const std::string& where, std::deque<Document>& documents) const {
    const std::string& first = chosen_.front();
    check(row.is_object() && row.contains(first), where, ": ", json_excerpt(row),
          "; expected an object with ", shown_in_message(first), ", as the first row has");
    const JsonValue* const tools =
        text_column_.empty() && first != "text" ? row.find_value("tools") : nullptr;
    check(tools == nullptr || has_no_tools(*tools), where,
          ": tools: definitions of tools are not a part of the chat template; expected them in a system "
          "message");
    if (!text_column_.empty() || first == "text") {
        if (!row[first].is_array()) return documents.push_back(text_member(row, first, where));
        for (const JsonValue& text : row[first].elements()) {
            check(text.is_string(), where, ": ", shown_in_message(first), ": a list with ",
                  json_excerpt(text), "; expected texts");
            documents.push_back(text.text());
        }
    } else if (first == "messages") {
        documents.push_back(messages_of(row[first], where, "messages"));
    } else if (first == "conversations") {
        documents.push_back(sharegpt_of(row, where));
    } else if (chosen_[1] == "completions") {
        check(row.contains("completions"), where, ": completions: missing; expected a list of texts");
        documents.push_back(shared_prompt_of(row, where));
    } else {
        check(row.contains("completion"), where, ": completion: missing; expected a text");
        documents.push_back(completion_of(row, where));
    }
}

namespace {

/// Returns the quoted names before colons, as in an object, which may be damaged or cut.
std::vector<std::string> names_before_colons(std::string_view text) {
    std::vector<std::string> names;
    for (std::size_t begin; (begin = text.find('"')) != std::string_view::npos;) {
        text.remove_prefix(begin + 1);
        const std::size_t end = text.find('"');
        if (end == std::string_view::npos) break;
        const std::size_t next = text.find_first_not_of(blanks, end + 1);
        if (next != std::string_view::npos && text[next] == ':') names.emplace_back(text.substr(0, end));
        text.remove_prefix(end + 1);
    }
    return names;
}

/// Whether a text without such a name holds JSON Lines: its first line that is not blank is an object with a
/// document. A line that only looks like one counts, too, and the reader then says why it is not JSON. If the
/// line is longer than 64 KiB, its beginning decides.
bool begins_as_json_lines(TextReader& text, const RowColumns& columns) {
    constexpr std::size_t examined = std::size_t{1} << 16;
    std::string_view line = text.peek(examined);
    bool is_whole = line.size() < examined;
    if (line.starts_with(utf8_byte_order_mark)) line.remove_prefix(utf8_byte_order_mark.size());
    line.remove_prefix(std::min(line.find_first_not_of(blanks), line.size()));
    if (!line.starts_with('{')) return false;
    if (const std::size_t end = line.find('\n'); end != std::string_view::npos) {
        line = line.substr(0, end);
        is_whole = true;
    }
    if (is_whole) {
        if (const JsonValue row = parse_json_or_null(line); row.is_object())
            return columns.finds_document(names_of(row));
        line = line.substr(0, line.find_last_not_of(blanks) + 1);
    }
    const std::size_t first = line.find_first_not_of(blanks, 1);
    return first != std::string_view::npos && line[first] == '"' && (!is_whole || line.ends_with('}')) &&
           columns.finds_document(names_before_colons(line));
}

/// Whether standard input, which has no name, begins as a JSON array of objects.
bool begins_as_json_array(std::string_view begin) {
    if (!begin.starts_with('[')) return false;
    const std::size_t next = begin.find_first_not_of(blanks, 1);
    return next != std::string_view::npos && begin[next] == '{';
}

bool is_parquet_file(const std::string& path) {
    return path != standard_input_name && parquet::is_parquet(DataFile(path));
}

}  // namespace

DocumentReader::DocumentReader(std::vector<std::string> files, std::string text_column)
    : files_(std::move(files)), columns_(std::move(text_column)) {}
DocumentReader::DocumentReader(std::vector<std::string> files, const DocumentReader& like)
    : files_(std::move(files)), columns_(like.columns_), format_(like.format_), kind_(like.kind_) {}
DocumentReader::~DocumentReader() = default;

void DocumentReader::start_at(const DocumentPlace& place) {
    next_file_ = static_cast<std::size_t>(place.file);
    rows_to_skip_ = place.row;
}

void DocumentReader::set_format(Format format) {
    const std::string& path = files_[next_file_ - 1];
    if (format_ != Format::none && format_ != format)
        throw Error(concat(path, ": holds ", format == Format::text ? "plain text" : "rows",
                           next_file_ < 2
                               ? std::string("; other files of the data hold ")
                               : concat("; the file before it, ", files_[next_file_ - 2], ", holds "),
                           format_ == Format::text ? "plain text" : "rows",
                           " (a pattern, such as 'DIR/*.parquet', selects files)"));
    check(format == Format::rows || columns_.text_column().empty(), path,
          ": holds plain text; expected rows with a column '", columns_.text_column(), "' (text-column)");
    format_ = format;
}

void DocumentReader::open_rows(std::unique_ptr<RowSource> rows) {
    set_format(Format::rows);
    rows_ = std::move(rows);
    rows_read_ = std::exchange(rows_to_skip_, 0);
    check(rows_->skip(rows_read_), files_[next_file_ - 1], ": has fewer than ", rows_read_,
          " rows; it was changed while it was read");
}

void DocumentReader::open_next_file() {
    const std::string& path = files_[next_file_++];
    rows_read_ = 0;
    check(!is_token_file(path), path, ": is a token file by its name; expected text (tokens: 'DIR/*.bin')");
    check(!is_token_file(uncompressed_name(path)), path,
          ": is a compressed token file by its name; expected it decompressed (",
          path.ends_with(".gz") ? "gzip" : "zstd", " -d)");
    if (is_parquet_file(path)) {
        auto parquet = std::make_unique<ParquetRows>(path);
        if (columns_.is_chosen()) {
            RowColumns here = columns_;
            here.choose(parquet->columns(), path);
            check(here.chosen() == columns_.chosen(), path, ": has the column ", here.chosen().front(),
                  "; the files before it ", columns_.chosen().front());
        } else {
            columns_.choose(parquet->columns(), path);
        }
        parquet->select(columns_.chosen(), message_members);
        return open_rows(std::move(parquet));
    }
    check(!path.ends_with(".parquet"), path, ": is no Parquet file: it does not begin with PAR1");
    TextReader text = open_text(path, hash_);
    const std::string begin(text.peek(4));
    check(begin != "PAR1", text.name(),
          ": is a Parquet file, which is read at any offset; expected a file that is ",
          path == standard_input_name ? "named" : "not compressed as a whole");
    if (is_json_lines_name(path) || begins_as_json_lines(text, columns_))
        return open_rows(std::make_unique<JsonLines>(std::move(text)));
    const bool is_array = path == standard_input_name
                              ? begins_as_json_array(text.peek(64))
                              : uncompressed_name(path).ends_with(".json") && begin.starts_with('[');
    check(!is_array, text.name(), ": is one JSON array; expected JSON Lines: one object per line");
    require_plain_text(text);
    // A single file may be trained on byte by byte, whatever it holds.
    check(files_.size() == 1 || !is_binary(text), path,
          ": is binary (it has zero bytes and is not UTF-8); expected UTF-8 text (a pattern, such as "
          "'DIR/*.txt', selects files)");
    set_format(Format::text);
    text_ = std::move(text);
}

void DocumentReader::close_file() {
    if (auto content = text_ ? text_->content() : rows_->content())
        contents_[file_index()] = *std::move(content);
    bytes_before_ += text_ ? text_->file_bytes() : rows_->file_bytes();
    text_.reset();
    rows_.reset();
}

DataContent DocumentReader::content(std::int64_t file) const {
    const auto found = contents_.find(file);
    return found != contents_.end() ? found->second
                                    : full_content_of(DataFile(files_[static_cast<std::size_t>(file)]));
}

/// Refuses a document of another kind than the documents before it.
void DocumentReader::require_one_kind(const Document& document) {
    constexpr std::array names{"a text", "a prompt with a completion", "a conversation",
                               "a prompt with a list of completions"};
    if (!kind_) kind_ = document.index();
    if (document.index() == *kind_) return;
    throw Error(concat(where(), ": holds ", names[document.index()], ", but the documents before it are ",
                       names[*kind_], " each; expected one kind"));
}

bool DocumentReader::begins_with_plain_text() {
    if (next_file_ == 0) open_next_file();
    return text_.has_value();
}

/// Reads the open file's next row that is selected. Returns false at the file's end.
bool DocumentReader::next_row(JsonValue& row) {
    for (; !is_selected(rows_read_); ++rows_read_)
        if (!rows_->skip(1)) return false;
    if (!rows_->next(row)) return false;
    ++rows_read_;
    return true;
}

/// Reads a row, a plain text or the beginning of a file. Returns false at the end of the last file.
bool DocumentReader::read_more() {
    if (text_ && !is_selected(0)) {
        close_file();
    } else if (text_) {
        // The ids need less than twice the text's memory: an id has 4 bytes, and a token has about three.
        waiting_.emplace_back(text_->read_all(3));
        close_file();
    } else if (rows_) {
        JsonValue row;
        if (next_row(row)) {
            if (!columns_.is_chosen()) columns_.choose(names_of(row), rows_->where());
            columns_.read(row, rows_->where(), waiting_);
        } else {
            close_file();
        }
    } else if (next_file_ < files_.size()) {
        open_next_file();
    } else {
        return false;
    }
    return true;
}

bool DocumentReader::next(Document& document) {
    do {
        while (waiting_.empty())
            if (!read_more()) return false;
        document = std::move(waiting_.front());
        waiting_.pop_front();
    } while (std::holds_alternative<std::string>(document) && std::get<std::string>(document).empty());
    require_one_kind(document);
    return true;
}

std::string DocumentReader::where() const {
    if (rows_) return rows_->where();
    const std::string& path = files_[next_file_ == 0 ? 0 : next_file_ - 1];
    return path == standard_input_name ? "standard input" : path;
}

std::int64_t DocumentReader::bytes_done() const {
    return bytes_before_ + (rows_ ? rows_->file_bytes() : 0);
}

bool is_plain_text(const std::string& path, const std::string& text_column) {
    std::vector<std::string> files = data_files(path);
    return files.size() == 1 && DocumentReader(std::move(files), text_column).begins_with_plain_text();
}

std::vector<std::string> texts_of(const Document& document) {
    if (const auto* const text = std::get_if<std::string>(&document)) return {*text};
    if (const auto* const completion = std::get_if<Completion>(&document))
        return {completion->prompt, completion->completion};
    std::vector<std::string> texts;
    if (const auto* const shared = std::get_if<SharedPrompt>(&document)) {
        texts = shared->completions;
        texts.push_back(shared->prompt);
        return texts;
    }
    for (const ChatMessage& message : std::get<Conversation>(document)) texts.push_back(message.content);
    return texts;
}

}  // namespace gradtile
