#include <gradtile/train/tokenizers/internal/sentencepiece_model.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <unordered_set>

#include <gradtile/core/check.h>
#include <gradtile/core/io/little_endian.h>
#include <gradtile/core/text/message.h>
#include <gradtile/core/text/utf8.h>
#include <gradtile/core/text/with_source.h>

namespace gradtile {
namespace {

// Field numbers in sentencepiece_model.proto.
namespace model_field {
enum : std::uint64_t { piece = 1, trainer = 2, normalizer = 3, denormalizer = 5 };
}
namespace piece_field {
enum : std::uint64_t { text = 1, score = 2, type = 3 };
}
namespace trainer_field {
enum : std::uint64_t { model_type = 3, blank_at_end = 24, byte_fallback = 35 };
}
namespace normalizer_field {
enum : std::uint64_t { character_map = 2, adds_blank = 3, removes_extra_blanks = 4, escapes_blanks = 5 };
}
enum class PieceType : std::uint64_t { normal = 1, unknown, control, user_defined, unused, byte };
enum class ModelType : std::uint64_t { unigram = 1, bpe };

/// The fields of a protocol buffer message, one after another.
class ProtobufFields {
  public:
    ProtobufFields(std::string_view bytes, const char* message) : rest_(bytes), message_(message) {}

    /// Reads the next field. Returns false at the end.
    bool next() {
        if (rest_.empty()) return false;
        const std::uint64_t key = varint();
        field_ = key >> 3;
        check(field_ > 0, message_, ": a field with the number 0");
        bytes_ = {};
        number_ = 0;
        switch (wire_ = key & 7) {
            case 0:
                number_ = varint();
                return true;
            case 1:
                bytes_ = take(8);
                return true;
            case 2:
                bytes_ = take(varint());
                return true;
            case 5:
                bytes_ = take(4);
                return true;
            default:
                throw Error(concat(message_, ": field ", field_, " has the unknown wire type ", wire_));
        }
    }
    std::uint64_t field() const { return field_; }
    std::uint64_t number() const { return require(0), number_; }
    bool flag() const { return number() != 0; }
    std::string_view bytes() const { return require(2), bytes_; }
    float float32() const {
        require(5);
        std::uint32_t bits = 0;
        for (int i = 3; i >= 0; --i)
            bits = bits << 8 | static_cast<unsigned char>(bytes_[static_cast<std::size_t>(i)]);
        return std::bit_cast<float>(bits);
    }

  private:
    void require(std::uint64_t wire) const {
        check(wire_ == wire, message_, ": field ", field_, " has wire type ", wire_, "; expected ", wire);
    }
    std::uint64_t varint() {
        return read_varint([&] { return static_cast<unsigned char>(take(1).front()); }, message_);
    }
    std::string_view take(std::uint64_t count) {
        check(count <= rest_.size(), message_, ": ends within field ", field_);
        const std::string_view bytes = rest_.substr(0, static_cast<std::size_t>(count));
        rest_.remove_prefix(bytes.size());
        return bytes;
    }

    std::string_view rest_, bytes_;
    const char* message_;
    std::uint64_t field_ = 0, wire_ = 0, number_ = 0;
};

class ModelReader {
  public:
    BytePairVocabulary read(std::string_view model) {
        for (ProtobufFields fields(model, "SentencePiece model"); fields.next();) {
            if (fields.field() == model_field::piece) read_piece(fields.bytes());
            if (fields.field() == model_field::trainer) read_trainer(fields.bytes());
            if (fields.field() == model_field::normalizer) read_normalizer(fields.bytes());
            check(fields.field() != model_field::denormalizer || fields.bytes().empty(),
                  "denormalizer_spec: is not supported");
        }
        check(!vocabulary_.tokens.empty(), "SentencePiece model: has no pieces");
        check(vocabulary_.unknown >= 0, "SentencePiece model: has no piece of type UNKNOWN");
        if (vocabulary_.model == SubwordModel::unigram) {
            score_user_symbols();
        } else {
            vocabulary_.merges_by_id = true;
            check_characters();
        }
        for (const std::int32_t id : user_defined_) {
            step_.kept_symbols.push_back(text_of(id));
            if (vocabulary_.model != SubwordModel::unigram)
                vocabulary_.added.push_back(
                    {.id = id, .text = text_of(id), .special = false, .normalized = true});
        }
        vocabulary_.removes_first_blank = step_.adds_blank || step_.removes_extra_blanks;
        vocabulary_.normalizer.push_back(std::move(step_));
        return std::move(vocabulary_);
    }

  private:
    const std::string& text_of(std::int32_t id) const {
        return vocabulary_.tokens[static_cast<std::size_t>(id)];
    }

    void read_piece(std::string_view bytes) {
        const auto id = static_cast<std::int32_t>(vocabulary_.tokens.size());
        check(id < max_byte_pair_vocabulary, "SentencePiece model: more than ", max_byte_pair_vocabulary,
              " pieces");
        std::string_view text;
        float score = 0.0f;
        auto type = PieceType::normal;
        for (ProtobufFields fields(bytes, "piece"); fields.next();) {
            if (fields.field() == piece_field::text) text = fields.bytes();
            if (fields.field() == piece_field::score) score = fields.float32();
            if (fields.field() == piece_field::type) type = static_cast<PieceType>(fields.number());
        }
        const auto refuse = [&](const char* reason) {
            throw Error(concat("piece ", id, ": '", printable(text, {.max_characters = 40}), "' ", reason));
        };
        if (text.empty() || !is_utf8(text)) refuse("is empty or not UTF-8");
        if (text.size() > max_token_bytes) refuse("is too long");
        switch (type) {
            case PieceType::normal:
            case PieceType::byte:
                break;
            case PieceType::unknown:
                if (vocabulary_.unknown >= 0) refuse("is a second piece of type UNKNOWN");
                vocabulary_.unknown = id;
                vocabulary_.added.push_back({.id = id, .text = std::string(text)});
                break;
            case PieceType::control:
                if (vocabulary_.added.size() >= max_added_tokens)
                    refuse("is one of too many of type CONTROL");
                vocabulary_.added.push_back({.id = id, .text = std::string(text)});
                break;
            case PieceType::user_defined:
                if (user_defined_.size() >= max_added_tokens)
                    refuse("is one of too many of type USER_DEFINED");
                user_defined_.push_back(id);
                break;
            case PieceType::unused:
                refuse("has the type UNUSED, which is not supported");
                break;
            default:
                refuse("has an unknown type");
        }
        if (type == PieceType::normal) highest_ = std::max(highest_, score);
        vocabulary_.tokens.emplace_back(text);
        vocabulary_.scores.push_back(static_cast<double>(score));
        vocabulary_.is_piece.push_back(type == PieceType::normal || type == PieceType::user_defined);
    }

    void read_trainer(std::string_view bytes) {
        auto type = ModelType::unigram;
        for (ProtobufFields fields(bytes, "trainer_spec"); fields.next();) {
            if (fields.field() == trainer_field::model_type) type = static_cast<ModelType>(fields.number());
            if (fields.field() == trainer_field::blank_at_end) step_.blank_at_end = fields.flag();
            if (fields.field() == trainer_field::byte_fallback) vocabulary_.byte_fallback = fields.flag();
        }
        check(type == ModelType::unigram || type == ModelType::bpe, "trainer_spec: model_type ",
              static_cast<std::uint64_t>(type), "; expected 1 (unigram) or 2 (BPE)");
        vocabulary_.model =
            type == ModelType::unigram ? SubwordModel::unigram : SubwordModel::character_pairs;
    }

    void read_normalizer(std::string_view bytes) {
        for (ProtobufFields fields(bytes, "normalizer_spec"); fields.next();) {
            if (fields.field() == normalizer_field::character_map) step_.character_map = fields.bytes();
            if (fields.field() == normalizer_field::adds_blank) step_.adds_blank = fields.flag();
            if (fields.field() == normalizer_field::removes_extra_blanks)
                step_.removes_extra_blanks = fields.flag();
            if (fields.field() == normalizer_field::escapes_blanks) step_.escapes_blanks = fields.flag();
        }
    }

    /// A user-defined symbol has nearly the highest score of all, for each of its bytes.
    void score_user_symbols() {
        for (const std::int32_t id : user_defined_)
            vocabulary_.scores[static_cast<std::size_t>(id)] =
                static_cast<double>(static_cast<float>(text_of(id).size()) * highest_) - 0.1;
    }

    /// SentencePiece merges characters that are no pieces, too; tokens with ids cannot express that.
    void check_characters() const {
        std::unordered_set<std::string_view> characters;
        for (const std::string_view text : vocabulary_.tokens)
            if (character_length(text, 0) == text.size()) characters.insert(text);
        for (std::size_t id = 0; id < vocabulary_.tokens.size(); ++id) {
            const std::string_view text = vocabulary_.tokens[id];
            if (!vocabulary_.is_piece[id] ||
                std::ranges::binary_search(user_defined_, static_cast<std::int32_t>(id)))
                continue;
            for (std::size_t place = 0; place < text.size(); place += character_length(text, place))
                check(characters.contains(text.substr(place, character_length(text, place))), "piece ", id,
                      ": '", printable(text, {.max_characters = 40}), "' has a character that is no piece");
        }
    }

    BytePairVocabulary vocabulary_{.model = SubwordModel::unigram,
                                   .sums_in_float32 = true,
                                   .fuses_unknown = true,
                                   .decodes_blanks = true};
    SentencePieceStep step_;
    std::vector<std::int32_t> user_defined_;
    float highest_ = std::numeric_limits<float>::min();  // of the scores, as SentencePiece begins it
};

}  // namespace

BytePairVocabulary vocabulary_of_sentencepiece(std::string_view model, std::string_view source) {
    return with_source(source, [&] { return ModelReader().read(model); });
}

}  // namespace gradtile
